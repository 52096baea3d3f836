//! Convolutions by cuDNN, with bias and activation in the same call.

use std::cell::RefCell;
use std::sync::Arc;

use candle::{bail, CudaDevice, DType, Result};
use cudarc::cudnn::{
    sys, ActivationDescriptor, ConvBiasActivationForward, ConvDescriptor, ConvForward, Cudnn, CudnnDataType,
    FilterDescriptor, TensorDescriptor,
};
use cudarc::driver::{CudaSlice, CudaView, DevicePtr, DeviceRepr};
use hashbrown::HashMap;
use parking_lot::Mutex;
use sys::cudnnConvolutionFwdAlgo_t as Algorithm;

use super::{kernels, Stream, StreamId};

/// The most that an algorithm's workspace may take: as much as all others of a stream share.
const WORKSPACE: usize = crate::memory::WORKSPACE_LIMIT as usize;

/// All that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct Convolution {
    /// Of all operands.
    pub dtype: DType,
    /// Whether the channels of a pixel lie together, in the operand, the weight and the result.
    pub channels_last: bool,
    /// Batch, channels, h, w.
    pub x: [usize; 4],
    /// Result channels, channels of a group, h, w.
    pub weight: [usize; 4],
    /// Batch, channels, h, w.
    pub y: [usize; 4],
    /// Rows and columns beyond opposite edges.
    pub padding: [usize; 2],
    /// Elements from one window to the next.
    pub stride: usize,
    /// Elements from one of a window to the next.
    pub dilation: usize,
    /// Parts that the channels fall into.
    pub groups: usize,
    /// Whether `max(x, 0)` follows.
    pub relu: bool,
}

impl Convolution {
    /// Shape of the result as it lies in memory.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        let [batch, channels, h, w] = self.y;
        match self.channels_last {
            true => (batch, h, w, channels),
            false => (batch, channels, h, w),
        }
    }
}

thread_local! {
    /// cuDNN's handles must not be shared between threads.
    static HANDLES: RefCell<HashMap<candle::cuda_backend::DeviceId, Arc<Cudnn>>> = RefCell::default();
}

/// The algorithm for each convolution that a device has run: the same at every later call, so that a replay computes what
/// eager execution does.
static CHOSEN: Mutex<Option<HashMap<(StreamId, Convolution), Algorithm>>> = Mutex::new(None);

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

/// Operands of a convolution.
pub(in crate::cuda) struct Operands<'a, T> {
    pub x: CudaView<'a, T>,
    pub weight: CudaView<'a, T>,
    pub bias: CudaView<'a, T>,
}

/// The convolution `of` the operands plus the bias, and the activation, into `y`. `C` is what it adds up in.
///
/// # Errors
/// Slices that are too short, or what cuDNN does not support.
pub(in crate::cuda) fn convolve<T, C>(
    device: &CudaDevice,
    of: &Convolution,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    let count = |sizes: &[usize]| sizes.iter().product::<usize>();
    let held = [operands.x.len(), operands.weight.len(), operands.bias.len(), y.len()];
    let needed = [count(&of.x), count(&of.weight), of.y[1], count(&of.y)];
    if held.iter().zip(&needed).any(|(held, needed)| held < needed) {
        bail!("operands of {held:?} elements where {needed:?} are needed")
    }
    let described = Described::<T, C>::new(&handle(device)?, of)?;
    let algorithm = choose(device, of, &described, operands, y)?;
    run(device, &described, algorithm, operands, y)
}

/// The fastest algorithm, measured when a convolution runs for the first time. A capture cannot measure: what comes
/// there first goes by cuDNN's own guess.
fn choose<T, C>(
    device: &CudaDevice,
    of: &Convolution,
    described: &Described<T, C>,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<Algorithm>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    use Algorithm::*;
    const ROUNDS: usize = 3;
    /// The fastest counts: a host that falls behind makes a sample longer, never shorter.
    const SAMPLES: usize = 4;
    /// The only one that does without an activation.
    const ALWAYS: Algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    const OTHERS: [Algorithm; 6] = [
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_FFT,
        CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
    ];
    let stream = Stream::of(&candle::Device::Cuda(device.clone())).map_err(candle::Error::wrap)?;
    let key = (stream.id(), *of);
    if let Some(&known) = CHOSEN.lock().get_or_insert_default().get(&key) {
        return Ok(known);
    }
    let fits = |algorithm: &Algorithm| described.bare().get_workspace_size(*algorithm).is_ok_and(|n| n <= WORKSPACE);
    let chosen = if !of.relu {
        ALWAYS
    } else if stream.is_capturing().map_err(candle::Error::wrap)? {
        described.bare().pick_algorithm().ok().filter(fits).unwrap_or(ALWAYS)
    } else {
        let (start, end) = (stream.event(true), stream.event(true));
        let (start, end) = (start.map_err(candle::Error::wrap)?, end.map_err(candle::Error::wrap)?);
        let mut best = (f64::INFINITY, ALWAYS);
        for algorithm in std::iter::once(ALWAYS).chain(OTHERS).filter(fits) {
            let mut time = || -> Result<f64> {
                run(device, described, algorithm, operands, y)?;
                let (launched, host_us) = crate::timing::wall_us(|| run(device, described, algorithm, operands, y));
                launched?;
                let mut least = f64::INFINITY;
                for _ in 0..SAMPLES {
                    // Longer than the host takes for the rest: it is the GPU's time that counts.
                    kernels::wait(device, 100 + (2. * ROUNDS as f64 * host_us) as u64)?;
                    stream.record(&start).map_err(candle::Error::wrap)?;
                    (0..ROUNDS).try_for_each(|_| run(device, described, algorithm, operands, y))?;
                    stream.record(&end).map_err(candle::Error::wrap)?;
                    least = least.min(start.elapsed_us(&end).map_err(candle::Error::wrap)?);
                }
                Ok(least)
            };
            // cuDNN says of some only when they run that they do not support this convolution.
            if let Some(us) = time().ok().filter(|us| *us < best.0) {
                best = (us, algorithm);
            }
        }
        best.1
    };
    Ok(*CHOSEN.lock().get_or_insert_default().entry(key).or_insert(chosen))
}

fn run<T, C>(
    device: &CudaDevice,
    described: &Described<T, C>,
    algorithm: Algorithm,
    operands: &Operands<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()>
where
    T: CudnnDataType + DeviceRepr + candle::WithDType,
    C: CudnnDataType,
{
    let bytes = described.bare().get_workspace_size(algorithm)?;
    let mut workspace = (bytes > 0).then(|| kernels::uninit::<u8>(device, bytes)).transpose()?;
    let (one, zero) = (T::from_f64(1.), T::from_f64(0.));
    let stream = device.cuda_stream();
    let (address, elements) = (y.device_ptr(&stream).0, y.len());
    // SAFETY: the second handle on the result's memory is given up below, before the first one is. It is the summand
    // that cuDNN asks for, which counts nothing here. The descriptors were made from the sizes that `convolve` held
    // against the slices, and the workspace is as large as cuDNN asks.
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
