//! Launches of `heads.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{arg_or_null, expect, extent, function, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

/// Attention's operands: each of `seq` tokens has `heads` heads of `dim` elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    /// Elements from one token to the next, before the split.
    pitch: usize,
}

impl Heads {
    /// Those that `hidden` elements fall into; `None` if 32 bits do not count all elements.
    pub fn new(batch: usize, seq: usize, heads: usize, hidden: usize, pitch: usize) -> Option<Self> {
        let countable = Rows::of(&[batch, seq, hidden.max(pitch)]).is_some_and(|rows| rows.are_countable());
        (countable && heads > 0 && hidden.is_multiple_of(heads)).then(|| Self {
            batch,
            seq,
            heads,
            dim: hidden / heads,
            pitch,
        })
    }

    fn elements(&self) -> usize {
        self.batch * self.seq * self.heads * self.dim
    }

    /// Shape as a product gives them.
    pub fn before(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.seq, self.heads, self.dim)
    }

    /// Shape as attention takes them.
    pub fn after(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.seq, self.dim)
    }
}

/// Writes `(x + bias) * scale` to `y`, heads before tokens. The bias has one element for each element of a token.
///
/// # Errors
/// Slices that are too short, or a launch that fails.
pub(super) fn split_heads<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: &Heads,
    scale: f64,
    x: &CudaView<T>,
    bias: Option<&CudaView<T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let hidden = of.heads * of.dim;
    expect("the operand", x.len(), extent([(of.batch * of.seq, of.pitch), (hidden, 1)]))?;
    expect("the bias", bias.map_or(hidden, CudaView::len), hidden)?;
    expect("the result", y.len(), of.elements())?;
    if of.elements() == 0 {
        return Ok(());
    }
    let function = function(device, &format!("opara_split_heads_{}", dtype.as_str()), "heads", ptx::HEADS)?;
    let sizes = [of.elements(), of.seq, of.heads, of.dim, of.pitch].map(|n| n as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&scale).arg(x);
    arg_or_null(&mut launch, bias);
    launch.arg(y);
    // SAFETY: the arguments are those that the kernel declares. It reads `x` up to the last place, and `heads * dim` of the
    // bias, nothing through null, and writes each of `elements()` of `y`: all were held against the slices above, and
    // `Heads::new` saw that 31 bits count them.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}
