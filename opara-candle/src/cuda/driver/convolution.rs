//! Convolutions with bias and activation in one call, by the library and the algorithm that are the fastest.

use candle::{bail, CudaDevice, DType, Error, Result};
use cudarc::cudnn::CudnnDataType;
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::cublaslt::{self, Product};
use super::{cudnn, kernels, Stream, StreamId};

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
    /// The same as a product of pixels, where a window is one of them.
    fn product(&self) -> Option<Product> {
        let [batch, inner, h, w] = self.x;
        let [columns, _, kh, kw] = self.weight;
        let is_product = (kh, kw, self.stride, self.groups) == (1, 1, 1, 1) && self.padding == [0, 0];
        let (dtype, relu) = (self.dtype, self.relu);
        (is_product && self.channels_last).then_some(Product { dtype, rows: batch * h * w, inner, columns, relu })
    }

    /// Shape of the result as it lies in memory.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        let [batch, channels, h, w] = self.y;
        match self.channels_last {
            true => (batch, h, w, channels),
            false => (batch, channels, h, w),
        }
    }
}

/// Operands of a convolution.
pub(in crate::cuda) struct Operands<'a, T> {
    pub x: CudaView<'a, T>,
    pub weight: CudaView<'a, T>,
    pub bias: CudaView<'a, T>,
}

/// How a convolution is computed.
#[derive(Clone, Copy)]
enum Way {
    Cudnn(cudnn::Algorithm),
    CublasLt(cublaslt::Algorithm),
}

/// A convolution whose operands all begin at multiples of so many bytes, on a stream.
type Key = (StreamId, Convolution, u32);

/// The way for each convolution that a stream has run: the same at every later call, so that a replay computes what eager
/// execution does.
static CHOSEN: Mutex<Option<HashMap<Key, Way>>> = Mutex::new(None);

/// The convolution `of` the operands plus the bias, and the activation, into `y`. `C` is what it adds up in.
///
/// # Errors
/// Slices that are too short or of another dtype, or what no library supports.
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
    if T::DTYPE != of.dtype || held.iter().zip(&needed).any(|(held, needed)| held < needed) {
        bail!("operands of {held:?} elements of {:?} where {needed:?} of {:?} are needed", T::DTYPE, of.dtype)
    }
    let product = of.product();
    // cuDNN takes any.
    let alignment = product.map_or(1, |_| cublaslt::alignment(device, operands, y));
    let mut run = |way| match (way, &product) {
        (Way::CublasLt(algorithm), Some(product)) => cublaslt::run(device, product, algorithm, operands, y),
        (Way::CublasLt(_), None) => bail!("{of:?} is no product"),
        (Way::Cudnn(algorithm), _) => cudnn::run::<T, C>(device, of, algorithm, operands, y),
    };
    let stream = Stream::of(&candle::Device::Cuda(device.clone())).map_err(Error::wrap)?;
    let key = (stream.id(), *of, alignment);
    let known = CHOSEN.lock().get_or_insert_default().get(&key).copied();
    let way = match known {
        Some(known) => known,
        None => {
            // A capture cannot measure: what comes there first goes by a guess.
            let way = if stream.is_capturing().map_err(Error::wrap)? {
                Way::Cudnn(cudnn::guess::<T, C>(device, of)?)
            } else {
                let mut ways: Vec<Way> = cudnn::algorithms::<T, C>(device, of)?.into_iter().map(Way::Cudnn).collect();
                if let Some(product) = &product {
                    ways.extend(cublaslt::algorithms(device, product, alignment)?.into_iter().map(Way::CublasLt));
                }
                fastest(device, &stream, &ways, &mut run)?
            };
            *CHOSEN.lock().get_or_insert_default().entry(key).or_insert(way)
        }
    };
    run(way)
}

/// The one of `ways` that takes the device the least time; the first one, if none works.
fn fastest(device: &CudaDevice, stream: &Stream, ways: &[Way], mut run: impl FnMut(Way) -> Result<()>) -> Result<Way> {
    const ROUNDS: usize = 3;
    /// The fastest counts: a host that falls behind makes a sample longer, never shorter.
    const SAMPLES: usize = 4;
    if let [only] = ways {
        return Ok(*only);
    }
    let event = || stream.event(true).map_err(Error::wrap);
    let (start, end) = (event()?, event()?);
    let mut best = (f64::INFINITY, ways[0]);
    for &way in ways {
        let mut time = || -> Result<f64> {
            run(way)?;
            let (launched, host_us) = crate::timing::wall_us(|| run(way));
            launched?;
            let mut least = f64::INFINITY;
            for _ in 0..SAMPLES {
                // Longer than the host takes for the rest: it is the GPU's time that counts.
                kernels::wait(device, 100 + (2. * ROUNDS as f64 * host_us) as u64)?;
                stream.record(&start).map_err(Error::wrap)?;
                (0..ROUNDS).try_for_each(|_| run(way))?;
                stream.record(&end).map_err(Error::wrap)?;
                least = least.min(start.elapsed_us(&end).map_err(Error::wrap)?);
            }
            Ok(least)
        };
        // Libraries say of some only when they run that they do not support this convolution.
        if let Some(us) = time().ok().filter(|us| *us < best.0) {
            best = (us, way);
        }
    }
    Ok(best.1)
}
