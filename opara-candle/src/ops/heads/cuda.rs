//! Splitting into heads in one launch.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch::{self, Heads};
use crate::cuda::driver::kernels::{ptx, wide_blocks};
use crate::cuda::operator::{launched, rows_of, with_elements, Call, Kernel};

/// `(x + bias) * scale`, `(batch, seq, heads * dim)`, as `(batch, heads, seq, dim)`. `None` if the kernel does not
/// support the operands: the caller then runs candle's operators, which also report errors.
pub(super) fn split_heads(x: &Tensor, bias: Option<&Tensor>, heads: usize, scale: f64) -> Result<Option<Tensor>> {
    let (batch, seq, hidden) = x.dims3()?;
    if rows_of(x, &[bias]).is_none() {
        return Ok(None);
    }
    let as_it_lies = |x: &Tensor| pitch(x).and_then(|pitch| Heads::new(batch, seq, heads, hidden, pitch));
    let x = if as_it_lies(x).is_some() { x.clone() } else { x.contiguous()? };
    let Some(of) = as_it_lies(&x) else { return Ok(None) };
    if x.elem_count() == 0 {
        return x.reshape(of.before())?.transpose(1, 2).map(Some);
    }
    let bias = bias.map(Tensor::contiguous).transpose()?;
    launched(SplitHeads { of, bias, scale }, &x, of.after()).map(Some)
}

/// The stride, in elements, from one token of `(batch, seq, hidden)` to the next. `None` if it is not the same
/// everywhere.
fn pitch(x: &Tensor) -> Option<usize> {
    let (&[batch, seq, hidden], &[over_batch, over_seq, along]) = (x.dims(), x.stride()) else { return None };
    let rows = match (batch, seq) {
        (_, 1) => Some(over_batch),
        (1, _) => Some(over_seq),
        _ => (over_batch == seq * over_seq).then_some(over_seq),
    };
    rows.filter(|_| along == 1 || hidden == 1)
}

struct SplitHeads {
    of: Heads,
    bias: Option<Tensor>,
    scale: f64,
}

impl Kernel for SplitHeads {
    const NAME: &'static str = "split_heads";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        with_elements([self.bias.as_ref()], |[bias]| {
            let Heads { seq, heads, dim, pitch, .. } = self.of;
            let (numel, bias, y) = (self.of.elements(), bias.as_ref(), y.as_view_mut());
            launch::SplitHeads { numel, seq, heads, dim, pitch, scale: self.scale, x: &x, bias, y }.launch(
                device,
                dtype.as_str(),
                ptx::HEADS,
                wide_blocks(numel, dtype),
            )
        })
    }
}
