//! Gradients of attention on a GPU, in two launches, and one more for a bias.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::{CudaView, DeviceRepr};
use half::{bf16, f16};

use super::cuda::bias_of_scores;
use super::gradient_launch::{self as launch, Operands};
use super::scores::{Bias, Scores};
use super::sharing::shared_by;
use crate::cuda::driver::kernels::written;
use crate::cuda::operator::head_rows::HeadRows;
use crate::cuda::operator::{takes, tensor_of, with_elements};

/// Of queries, keys and values.
pub(super) type Gradients = [Tensor; 3];

/// [`gradients_of_scores`] whose bias is added.
pub(super) fn gradients(
    operands: [&Tensor; 3],
    bias: Option<&Tensor>,
    scale: f64,
    results: [&Tensor; 2],
) -> Result<Option<Gradients>> {
    gradients_of_scores(
        operands,
        bias,
        &Scores { scale, cap: None, bias: Bias::Added, in_f32: false, by_heads: false },
        results,
    )
}

/// The gradients of queries, keys and values by result and gradient, each `(batch, heads, tokens, size)`. The bias gets none. `None` if the
/// kernels do not support the operands.
pub(super) fn gradients_of_scores(
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Tensor>,
    of: &Scores,
    [y, g]: [&Tensor; 2],
) -> Result<Option<Gradients>> {
    let ((batch, heads, queries, dim), (_, of_keys, keys, _)) = (q.dims4()?, k.dims4()?);
    let of_values = v.dim(3)?;
    let result = [batch, heads, queries, of_values];
    let agree = k.dims() == [batch, of_keys, keys, dim]
        && v.dims() == [batch, of_keys, keys, of_values]
        && y.dims() == result
        && g.dims() == result
        && shared_by(heads, of_keys).is_some();
    let of_bias = if of.in_f32 { DType::F32 } else { q.dtype() };
    let is_bias = |bias: &Tensor| bias.dtype() == of_bias && bias.device().same_device(q.device());
    let is_plain = of.cap.is_none() && matches!(of.bias, Bias::Added | Bias::Hides);
    if !is_plain
        || !(of.scale as f32).is_normal()
        || of.scale < 0.
        || !agree
        || !takes(q, &[Some(k), Some(v), Some(y), Some(g)])
        || !bias.is_none_or(is_bias)
        || q.elem_count() * k.elem_count() * of_values == 0
        || batch * heads > u16::MAX as usize
        || !launch::runs(q.device().as_cuda_device()?, q.dtype(), [dim, of_values])?
    {
        return Ok(None);
    }
    let bias = match bias {
        Some(bias) => match bias_of_scores(bias, (batch, heads, queries, keys))? {
            Some(bias) => Some(bias),
            None => return Ok(None),
        },
        None => None,
    };
    let mut rows = Vec::new();
    for x in [q, k, v, y, g] {
        let x = if HeadRows::of(x.layout(), x.dtype()).is_some() { x.clone() } else { x.contiguous()? };
        let Some(of) = HeadRows::of(x.layout(), x.dtype()) else { return Ok(None) };
        rows.push((x, of));
    }
    let call = Call { rows, bias, scale: of.scale as f32 };
    match (q.dtype(), of.in_f32) {
        (DType::F16, false) => call.run::<f16, f16>(),
        (DType::F16, true) => call.run::<f16, f32>(),
        (DType::BF16, false) => call.run::<bf16, bf16>(),
        (DType::BF16, true) => call.run::<bf16, f32>(),
        (dtype, _) => bail!("no gradient of attention of {dtype:?}"),
    }
    .map(Some)
}

struct Call {
    /// Queries, keys, values, result and its gradient.
    rows: Vec<(Tensor, HeadRows)>,
    /// With strides over batches, heads and queries.
    bias: Option<(Tensor, [usize; 3])>,
    scale: f32,
}

impl Call {
    fn run<T, B>(&self) -> Result<Gradients>
    where
        T: CudaDType + WithDType + DeviceRepr,
        B: CudaDType + WithDType + DeviceRepr,
    {
        let [q, k, v, y, g] = &self.rows[..] else { bail!("attention without an operand") };
        with_elements::<T, _, 5>([q, k, v, y, g].map(|(x, _)| Some(x)), |operands| {
            with_elements::<B, _, 1>([self.bias.as_ref().map(|(bias, _)| bias)], |[bias]| {
                self.launched::<T, B>(&operands, bias.as_ref())
            })
        })
    }

    fn launched<T, B>(&self, operands: &[Option<CudaView<T>>; 5], bias: Option<&CudaView<B>>) -> Result<Gradients>
    where
        T: CudaDType + WithDType + DeviceRepr,
        B: CudaDType + WithDType + DeviceRepr,
    {
        let [Some(q), Some(k), Some(v), Some(y), Some(g)] = operands else { bail!("attention without an operand") };
        let of = |at: usize| self.rows[at].1;
        let device = self.rows[0].0.device().as_cuda_device()?;
        let count = |at: usize| of(at).dims().iter().product::<usize>();
        let [batch, heads, queries, _] = of(0).dims();
        let of_rows = written::<f32>(device, 2 * batch * heads * queries, |_| Ok(()))?;
        let mut of_keys = written::<T>(device, count(1), |_| Ok(()))?;
        let of_values = written::<T>(device, count(2), |_| Ok(()))?;
        let of_queries = written::<T>(device, count(0), |of_queries| {
            let strides = self.bias.as_ref().map(|(_, strides)| *strides);
            let operands = Operands {
                q: (q, of(0)),
                k: (k, of(1)),
                v: (v, of(2)),
                y: (y, of(3)),
                g: (g, of(4)),
                bias: bias.zip(strides),
                scale: self.scale,
            };
            let to = launch::Gradients {
                q: of_queries.as_view_mut(),
                k: of_keys.as_view_mut(),
                v: &of_values.as_view(),
                of_rows: &of_rows.as_view(),
            };
            launch::gradients(device, operands, to)
        })?;
        let gradient = |slice, at: usize| {
            let [batch, heads, tokens, size] = of(at).dims();
            tensor_of(slice, device, (batch, tokens, heads, size))?.transpose(1, 2)
        };
        Ok([gradient(of_queries, 0)?, gradient(of_keys, 1)?, gradient(of_values, 2)?])
    }
}
