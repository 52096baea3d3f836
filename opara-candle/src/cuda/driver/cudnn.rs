//! Convolutions by cuDNN.

use std::cell::RefCell;
use std::sync::Arc;

use candle::{CudaDevice, DType, Result};
use cudarc::cudnn::{
    sys, ActivationDescriptor, ConvBiasActivationForward, ConvDescriptor, ConvForward, Cudnn, CudnnDataType,
    FilterDescriptor, TensorDescriptor,
};
use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use hashbrown::HashMap;
pub(crate) use sys::cudnnConvolutionFwdAlgo_t as Algorithm;

use super::convolution::{Convolution, Operands};
use super::kernels;
use crate::memory::WORKSPACE_LIMIT;

/// The only one that does without an activation.
const ALWAYS: Algorithm = Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

/// The others that add up the products of a window and nothing else. Winograd's transform and Fourier's mix the windows of a tile
/// or of the picture: one infinity makes NaN of all of them, and a large number takes the digits of its neighbours.
const OTHERS: [Algorithm; 2] =
    [Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_GEMM];

thread_local! {
    /// cuDNN's handles must not be shared between threads.
    static HANDLES: RefCell<HashMap<candle::cuda_backend::DeviceId, Arc<Cudnn>>> = RefCell::default();
}

fn handle(device: &CudaDevice) -> Result<Arc<Cudnn>> {
    HANDLES.with_borrow_mut(|handles| {
        if let Some(handle) = handles.get(&device.id()) {
            return Ok(handle.clone());
        }
        let handle = Cudnn::new(device.cuda_stream())?;
        Ok(handles.entry(device.id()).or_insert(handle).clone())
    })
}

/// What cuDNN is told of a convolution; `C` is what it adds up in.
struct Described<T: CudnnDataType, C: CudnnDataType> {
    convolution: ConvDescriptor<C>,
    activation: ActivationDescriptor<C>,
    x: TensorDescriptor<T>,
    weight: FilterDescriptor<T>,
    bias: TensorDescriptor<T>,
    y: TensorDescriptor<T>,
}

impl<T: CudnnDataType, C: CudnnDataType> Described<T, C> {
    fn new(handle: &Arc<Cudnn>, of: &Convolution) -> Result<Self> {
        use sys::cudnnActivationMode_t::{CUDNN_ACTIVATION_IDENTITY, CUDNN_ACTIVATION_RELU};
        use sys::cudnnTensorFormat_t::{CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC};
        let format = if of.channels_last { CUDNN_TENSOR_NHWC } else { CUDNN_TENSOR_NCHW };
        let activation = if of.relu { CUDNN_ACTIVATION_RELU } else { CUDNN_ACTIVATION_IDENTITY };
        let int = |sizes: [usize; 4]| sizes.map(|size| size as i32);
        let mut convolution = handle.create_conv2d::<C>(
            of.padding.map(|n| n as i32),
            [of.stride as i32; 2],
            [of.dilation as i32; 2],
            sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
        )?;
        convolution.set_group_count(of.groups as i32)?;
        if of.dtype != DType::F32 {
            // Of f32 the default already is what tensor cores make of it, unless NVIDIA_TF32_OVERRIDE=0.
            convolution.set_math_type(sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH)?;
        }
        Ok(Self {
            convolution,
            activation: handle.create_activation(activation, sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN, 0.)?,
            x: handle.create_4d_tensor(format, int(of.x))?,
            weight: handle.create_4d_filter(format, int(of.weight))?,
            bias: handle.create_4d_tensor(format, int([1, of.y[1], 1, 1]))?,
            y: handle.create_4d_tensor(format, int(of.y))?,
        })
    }

    fn bare(&self) -> ConvForward<'_, T, C, T> {
        ConvForward { conv: &self.convolution, x: &self.x, w: &self.weight, y: &self.y }
    }

    /// Whether there is room for what an algorithm needs.
    fn fits(&self, algorithm: Algorithm) -> bool {
        self.bare().get_workspace_size(algorithm).is_ok_and(|bytes| bytes as u64 <= WORKSPACE_LIMIT)
    }

    fn fused(&self) -> ConvBiasActivationForward<'_, T, C, C, T> {
        ConvBiasActivationForward {
            conv: &self.convolution,
            act: &self.activation,
            x: &self.x,
            w: &self.weight,
            z: &self.y,
            bias: &self.bias,
            y: &self.y,
        }
    }
}

/// What may be asked to run: of some cuDNN says only then that they do not support the convolution. The first always works.
pub(crate) fn algorithms<T, C>(device: &CudaDevice, of: &Convolution) -> Result<Vec<Algorithm>>
where
    T: CudnnDataType,
    C: CudnnDataType,
{
    if !of.relu {
        return Ok(vec![ALWAYS]);
    }
    let described = Described::<T, C>::new(&handle(device)?, of)?;
    Ok([ALWAYS].into_iter().chain(OTHERS.into_iter().filter(|&other| described.fits(other))).collect())
}

/// What cuDNN itself would choose, if it is one of [`algorithms`].
pub(crate) fn guess<T, C>(device: &CudaDevice, of: &Convolution) -> Result<Algorithm>
where
    T: CudnnDataType,
    C: CudnnDataType,
{
    let described = Described::<T, C>::new(&handle(device)?, of)?;
    let is_known = |guess: &Algorithm| of.relu && OTHERS.contains(guess) && described.fits(*guess);
    let guess = described.bare().pick_algorithm().ok().filter(is_known);
    Ok(guess.unwrap_or(ALWAYS))
}

/// The convolution `of` the operands, the bias and the activation, into `y`. `C` is what it adds up in.
///
/// # Errors
/// Slices that are too short or of another dtype, or what cuDNN does not support.
pub(crate) fn run<T, C>(
    device: &CudaDevice,
    of: &Convolution,
    algorithm: Algorithm,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    operands.check(of, y)?;
    let described = Described::<T, C>::new(&handle(device)?, of)?;
    let bytes = described.bare().get_workspace_size(algorithm)?;
    let mut workspace = (bytes > 0).then(|| kernels::uninit::<u8>(device, bytes)).transpose()?;
    let (one, zero) = (T::from_f64(1.), T::from_f64(0.));
    let stream = device.cuda_stream();
    let (address, elements) = (y.device_ptr(&stream).0, y.len());
    // SAFETY: the second handle on the result's memory is given up below, before the first one is. It is the summand
    // that cuDNN asks for, which counts nothing here. The descriptors were made from the sizes that were held
    // against the slices above, and the workspace is as large as cuDNN asks.
    unsafe {
        let summand = stream.upgrade_device_ptr::<T>(address, elements);
        let launched = described.fused().launch(
            algorithm,
            workspace.as_mut(),
            (one, zero),
            &operands.x,
            &operands.weight,
            &summand.as_view(),
            &operands.bias,
            y,
        );
        summand.leak();
        Ok(launched?)
    }
}
