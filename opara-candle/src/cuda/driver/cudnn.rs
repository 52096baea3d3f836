//! Convolutions by cuDNN.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use candle::{bail, CudaDevice, DType, Result};
use cudarc::cudnn::{
    sys, ActivationDescriptor, ConvBackwardData, ConvBackwardFilter, ConvBiasActivationForward, ConvDescriptor,
    ConvForward, Cudnn, CudnnDataType, FilterDescriptor, TensorDescriptor,
};
use cudarc::driver::{CudaSlice, CudaView, DevicePtr, DeviceRepr};
use hashbrown::HashMap;
use parking_lot::Mutex;
pub(crate) use sys::cudnnConvolutionFwdAlgo_t as Algorithm;

use super::convolution::{Convolution, Operands};
use crate::ops::ProductPrecision;
use opara_plan::memory::WORKSPACE_LIMIT;

/// The only algorithm that also works without an activation.
const DEFAULT: Algorithm = Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

/// The other algorithms that sum the products of each window by itself. Winograd and FFT algorithms mix the windows of
/// a tile or of the whole image: one infinity turns all of them into NaN, and a large value costs its neighbours
/// digits.
const WITH_ACTIVATION: [Algorithm; 2] =
    [Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_GEMM];

thread_local! {
    /// A cuDNN handle must not be shared between threads.
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

/// Device, convolution and algorithm.
type Planned = (usize, Convolution, Algorithm);

/// Bytes of the workspaces that cuDNN needs. It plans the whole convolution to tell. All handles of a device are made alike here, so they
/// give the same answers.
static WORKSPACES: LazyLock<Mutex<HashMap<Planned, usize>>> = LazyLock::new(Mutex::default);

/// Device, convolution, and whether it is the image's gradient, with bytes of the workspace; `None` where cuDNN does not support it.
type BackwardWorkspaces = HashMap<(usize, Convolution, bool), Option<usize>>;

/// The same for gradients.
static BACKWARD_WORKSPACES: LazyLock<Mutex<BackwardWorkspaces>> = LazyLock::new(Mutex::default);

/// The cuDNN descriptors of a convolution. `C` is the accumulator type.
struct Descriptors<T: CudnnDataType, C: CudnnDataType> {
    convolution: ConvDescriptor<C>,
    activation: ActivationDescriptor<C>,
    x: TensorDescriptor<T>,
    weight: FilterDescriptor<T>,
    bias: TensorDescriptor<T>,
    y: TensorDescriptor<T>,
}

impl<T: CudnnDataType, C: CudnnDataType> Descriptors<T, C> {
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
        match (of.dtype, of.precision) {
            // The default already allows TF32, unless NVIDIA_TF32_OVERRIDE=0.
            (DType::F32, ProductPrecision::Fastest) => {}
            (DType::F32, _) => convolution.set_math_type(sys::cudnnMathType_t::CUDNN_FMA_MATH)?,
            _ => convolution.set_math_type(sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH)?,
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

    /// Bytes of the workspace that cuDNN needs for the algorithm: as it told before, or tells now.
    fn workspace_bytes(&self, device: &CudaDevice, of: &Convolution, algorithm: Algorithm) -> Result<usize> {
        let planned = (device.cuda_stream().context().ordinal(), *of, algorithm);
        if let Some(&bytes) = WORKSPACES.lock().get(&planned) {
            return Ok(bytes);
        }
        let bytes = self.bare().get_workspace_size(algorithm)?;
        WORKSPACES.lock().insert(planned, bytes);
        Ok(bytes)
    }

    /// Is the algorithm's workspace below the limit?
    fn fits(&self, device: &CudaDevice, of: &Convolution, algorithm: Algorithm) -> bool {
        self.workspace_bytes(device, of, algorithm).is_ok_and(|bytes| bytes as u64 <= WORKSPACE_LIMIT)
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

/// Candidate algorithms. For some, cuDNN reports only at run time that they do not support the convolution; the first
/// one always works.
pub(crate) fn algorithms<T, C>(device: &CudaDevice, of: &Convolution) -> Result<Vec<Algorithm>>
where
    T: CudnnDataType,
    C: CudnnDataType,
{
    if !of.relu {
        return Ok(vec![DEFAULT]);
    }
    let descriptors = Descriptors::<T, C>::new(&handle(device)?, of)?;
    Ok([DEFAULT]
        .into_iter()
        .chain(WITH_ACTIVATION.into_iter().filter(|&other| descriptors.fits(device, of, other)))
        .collect())
}

/// cuDNN's own choice, if it is one of [`algorithms`].
pub(crate) fn guess<T, C>(device: &CudaDevice, of: &Convolution) -> Result<Algorithm>
where
    T: CudnnDataType,
    C: CudnnDataType,
{
    let descriptors = Descriptors::<T, C>::new(&handle(device)?, of)?;
    let is_known =
        |guess: &Algorithm| of.relu && WITH_ACTIVATION.contains(guess) && descriptors.fits(device, of, *guess);
    let guess = descriptors.bare().pick_algorithm().ok().filter(is_known);
    Ok(guess.unwrap_or(DEFAULT))
}

/// Convolution, bias, residual and activation of the operands, into `y`. `C` is the accumulator type.
///
/// # Errors
/// Slices that are too short or of another dtype, or a convolution that cuDNN does not support.
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
    let descriptors = Descriptors::<T, C>::new(&handle(device)?, of)?;
    let bytes = descriptors.workspace_bytes(device, of, algorithm)?;
    // SAFETY: only cuDNN uses the workspace.
    let mut workspace = (bytes > 0).then(|| unsafe { device.alloc::<u8>(bytes) }).transpose()?;
    let (one, zero) = (T::from_f64(1.), T::from_f64(0.));
    let stream = device.cuda_stream();
    let Operands { x, weight, bias, residual } = operands;
    if let Some(residual) = residual.as_ref().filter(|_| of.residual) {
        // SAFETY: the descriptors have the sizes that were checked above against the slices, the residual's being the result's, and
        // the workspace is as large as cuDNN needs.
        let launched = unsafe {
            descriptors.fused().launch(algorithm, workspace.as_mut(), (one, one), x, weight, residual, bias, y)
        };
        return Ok(launched?);
    }
    let (address, elements) = (y.device_ptr(&stream).0, y.len());
    // SAFETY: the second handle to the result's memory is leaked below, before the first one is used again. cuDNN
    // requires it as a summand and ignores it, since its factor is zero. The descriptors have the sizes that were
    // checked above against the slices, and the workspace is as large as cuDNN needs.
    unsafe {
        let summand = stream.upgrade_device_ptr::<T>(address, elements);
        let summed = &summand.as_view();
        let launched =
            descriptors.fused().launch(algorithm, workspace.as_mut(), (one, zero), x, weight, summed, bias, y);
        summand.leak();
        Ok(launched?)
    }
}

/// An operand of a convolution whose gradient is computed.
pub(crate) enum Gradient<'a, T> {
    /// Of the image, by the weight.
    OfX { weight: &'a CudaView<'a, T> },
    /// Of the weight, by the image.
    OfWeight { x: &'a CudaView<'a, T> },
}

/// The gradient of a convolution's image or weight, by that of its result before bias, residual and activation, into `y`. The algorithms
/// give the same bits on every run. `C` is the accumulator type. Is the convolution supported?
///
/// # Errors
/// Slices that are too short or of another dtype, or a failed call.
pub(crate) fn run_backward<T, C>(
    device: &CudaDevice,
    of: &Convolution,
    kind: &Gradient<'_, T>,
    gradient: &CudaView<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<bool>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    const DATA: sys::cudnnConvolutionBwdDataAlgo_t =
        sys::cudnnConvolutionBwdDataAlgo_t::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    const FILTER: sys::cudnnConvolutionBwdFilterAlgo_t =
        sys::cudnnConvolutionBwdFilterAlgo_t::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    let [image, weight, result] = [of.x, of.weight, of.y].map(|sizes| sizes.iter().product::<usize>());
    let (other, held, written) = match kind {
        Gradient::OfX { weight: held } => (weight, held.len(), image),
        Gradient::OfWeight { x } => (image, x.len(), weight),
    };
    if T::DTYPE != of.dtype || held < other || gradient.len() < result || y.len() < written {
        bail!("operands of {held}, {} and {} elements of {:?} for {of:?}", gradient.len(), y.len(), T::DTYPE)
    }
    let descriptors = Descriptors::<T, C>::new(&handle(device)?, of)?;
    let Descriptors { convolution: conv, x, weight: w, y: dy, .. } = &descriptors;
    let (data, filter) = (ConvBackwardData { conv, dx: x, w, dy }, ConvBackwardFilter { conv, x, dw: w, dy });
    let planned = (device.cuda_stream().context().ordinal(), *of, matches!(kind, Gradient::OfX { .. }));
    let known = BACKWARD_WORKSPACES.lock().get(&planned).copied();
    let bytes = known.unwrap_or_else(|| {
        let bytes = match kind {
            Gradient::OfX { .. } => data.get_workspace_size(DATA),
            Gradient::OfWeight { .. } => filter.get_workspace_size(FILTER),
        };
        *BACKWARD_WORKSPACES.lock().entry(planned).or_insert(bytes.ok())
    });
    let Some(bytes) = bytes else { return Ok(false) };
    // SAFETY: only cuDNN uses the workspace.
    let mut workspace = (bytes > 0).then(|| unsafe { device.alloc::<u8>(bytes) }).transpose()?;
    let (workspace, factors) = (workspace.as_mut(), (T::from_f64(1.), T::from_f64(0.)));
    // SAFETY: the descriptors have the sizes that were checked above against the slices, and the workspace is as large as cuDNN needs.
    let launched = unsafe {
        match kind {
            Gradient::OfX { weight } => data.launch(DATA, workspace, factors, y, *weight, gradient),
            Gradient::OfWeight { x } => filter.launch(FILTER, workspace, factors, *x, y, gradient),
        }
    };
    match launched {
        // For some convolutions cuDNN tells only here.
        Err(error) if is_unsupported(error.0) => {
            BACKWARD_WORKSPACES.lock().insert(planned, None);
            Ok(false)
        }
        launched => Ok(launched.map(|()| true)?),
    }
}

fn is_unsupported(status: sys::cudnnStatus_t) -> bool {
    /// These statuses have such numbers from cuDNN 9 on.
    const UNSUPPORTED: std::ops::Range<u32> = 3000..4000;
    status == sys::cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED || UNSUPPORTED.contains(&(status as u32))
}
