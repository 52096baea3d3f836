//! The order in which elements lie in memory: candle's operators write in the order of dimensions, which would move those of images whose
//! channels lie beside each other.

use candle::{Result, Tensor};

use crate::ops;

/// An order of dimensions.
pub(super) struct Order(Option<Vec<usize>>);

impl Order {
    /// That of the first tensor whose elements fill a range of memory in another order than that of its dimensions.
    pub fn of<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> Self {
        let turned = |t: &Tensor| {
            let mut order: Vec<usize> = (0..t.rank()).collect();
            // Dimensions of one have any stride.
            let stride = |dim: usize| if t.dims()[dim] > 1 { t.stride()[dim] } else { usize::MAX };
            order.sort_by_key(|&dim| std::cmp::Reverse(stride(dim)));
            let is_whole = || t.permute(order.clone()).is_ok_and(|t| t.is_contiguous());
            (!t.is_contiguous() && is_whole()).then_some(order)
        };
        Self(tensors.into_iter().find_map(turned))
    }

    /// The tensor with its dimensions in this order.
    pub fn inside(&self, t: &Tensor) -> Result<Tensor> {
        self.0.as_ref().map_or_else(|| Ok(t.clone()), |order| t.permute(order.clone()))
    }

    /// The other way round.
    pub fn outside(&self, t: Tensor) -> Result<Tensor> {
        let Some(order) = &self.0 else { return Ok(t) };
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &dim)| back[dim] = at);
        t.permute(back)
    }
}

/// `a + b`, which have one shape.
pub(super) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let order = Order::of([a, b]);
    order.outside((order.inside(a)? + order.inside(b)?)?)
}

/// In the type of sums.
pub(super) fn in_sums(t: &Tensor) -> Result<Tensor> {
    let order = Order::of([t]);
    order.outside(ops::in_sums(&order.inside(t)?)?)
}
