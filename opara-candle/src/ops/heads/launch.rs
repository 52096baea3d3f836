//! Launches of `heads.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, PushKernelArg};

use crate::cuda::driver::kernels::{arg_or_null, expect, extent, function, ptx, wide_blocks};
use crate::cuda::operator::rows::Rows;

/// The shape of an attention operand: `heads` heads of `dim` elements for each of `seq` tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    batch: usize,
    seq: usize,
    heads: usize,
    dim: usize,
    /// Elements from one token to the next before the split.
    pitch: usize,
}

impl Heads {
    /// Splits `hidden` elements into `heads` heads. `None` if that does not divide evenly, or if an index exceeds 31
    /// bits.
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

    /// The shape before the split, as a matmul gives it.
    pub fn before(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.seq, self.heads, self.dim)
    }

    /// The shape after the split, as attention takes it.
    pub fn after(&self) -> (usize, usize, usize, usize) {
        (self.batch, self.heads, self.seq, self.dim)
    }
}

/// Writes `(x + bias) * scale` to `y`, heads before tokens. The bias has one element per element of a token.
///
/// # Errors
/// Slices that are too short, or a failed launch.
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
    let function = function(device, &format!("opara_split_heads_{}", dtype.as_str()), ptx::HEADS)?;
    let sizes = [of.elements(), of.seq, of.heads, of.dim, of.pitch].map(|n| n as u32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&scale).arg(x);
    arg_or_null(&mut launch, bias);
    launch.arg(y);
    // SAFETY: the arguments match the kernel's declaration. It reads `x` up to its last token, reads `heads * dim`
    // elements of the bias unless that is null, and writes `elements()` elements of `y`. The slice lengths were checked
    // above, and `Heads::new` checked that indices fit into 31 bits.
    unsafe { launch.launch(wide_blocks(of.elements(), dtype)) }.w()?;
    Ok(())
}
