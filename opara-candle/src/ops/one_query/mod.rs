//! Attention of one query a head, on a GPU: a launch whose warps share the keys.

pub(super) mod launch;

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor};
use cudarc::driver::DeviceRepr;

use self::launch::Sizes;
use crate::cuda::operator::head_rows::HeadRows;
use crate::cuda::operator::{begin_wide, launched, with_elements, Call, Kernel};

/// What [`attention`](super::attention) of one query a head gives, as `(batch, 1, heads, dim)`. Keys and values come with their layouts,
/// and the bias with its strides over items and heads. `None` where other kernels have to do it.
pub(super) fn one_query(
    (q, of_q): (&Tensor, HeadRows),
    (k, of_k): (&Tensor, HeadRows),
    (v, of_v): (&Tensor, HeadRows),
    bias: Option<(&Tensor, [usize; 2])>,
    [scale, cap]: [f32; 2],
) -> Result<Option<Tensor>> {
    let (batch, heads, _, dim) = q.dims4()?;
    let sizes = Sizes { dtype: q.dtype(), scale, cap, q: of_q, k: of_k, v: of_v, bias: bias.map_or([0; 2], |of| of.1) };
    if !sizes.is_known() {
        return Ok(None);
    }
    if !begin_wide([q, k, v])? {
        return Ok(None);
    }
    let bias = bias.map(|(bias, _)| bias.clone());
    launched(OneQuery { sizes, k: k.clone(), v: v.clone(), bias }, q, (batch, 1, heads, dim)).map(Some)
}

struct OneQuery {
    sizes: Sizes,
    k: Tensor,
    v: Tensor,
    bias: Option<Tensor>,
}

impl Kernel for OneQuery {
    const NAME: &'static str = "one_query_attention";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y, .. }: Call<T>) -> Result<()> {
        let Self { sizes, k, v, bias } = self;
        with_elements([Some(k), Some(v), bias.as_ref()], |[k, v, bias]| {
            let (Some(k), Some(v)) = (&k, &v) else { bail!("attention without keys or values") };
            launch::one_query(device, sizes, [&x, k, v], bias.as_ref(), y)
        })
    }
}
