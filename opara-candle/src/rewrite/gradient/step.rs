//! One node on the way back: its operands, its results, their gradient, and the gradients that it gives.

use candle::{Result, Tensor};
use hashbrown::HashMap;
use opara_plan::rewrite::{Node, Operand, Value};
use opara_plan::trace::Dim;

use super::super::evaluation::{Arithmetic, Evaluation};
use super::super::strided::shaped;
use super::order::{in_sums, Order};
use super::sum::Sum;
use crate::ops;

/// One node on the way back. Operands of 16 bits are read in f32, except by products.
pub(super) struct Step<'s, 'a> {
    pub of: &'s mut Evaluation<'a>,
    pub node: &'a Node,
    value: Value,
    gradient: Tensor,
    /// For each operand, whether its gradient is asked for.
    needs: Vec<bool>,
    /// The gradients of views that were given so far.
    sums: &'s mut HashMap<Value, Sum>,
}

/// Operands and gradient of a function of single elements.
pub(super) struct Elements {
    /// What repeats has length one.
    own: Vec<Tensor>,
    pub gradient: Tensor,
    shape: Vec<usize>,
    order: Order,
}

impl Elements {
    pub fn operand(&self, at: usize) -> Result<Tensor> {
        self.own[at].broadcast_as(self.gradient.dims())
    }

    pub fn count(&self) -> usize {
        self.own.len()
    }

    /// The operands and the gradient in the types of sums. Of what repeats one element is cast.
    pub fn in_sums(&self) -> Result<(Vec<Tensor>, Tensor)> {
        let cast = |own: &Tensor| ops::in_sums(own)?.broadcast_as(self.gradient.dims());
        Ok((self.own.iter().map(cast).collect::<Result<_>>()?, ops::in_sums(&self.gradient)?))
    }
}

impl<'s, 'a> Step<'s, 'a> {
    pub fn new(
        of: &'s mut Evaluation<'a>,
        sums: &'s mut HashMap<Value, Sum>,
        (at, node): (usize, &'a Node),
        gradient: Tensor,
        needs: Vec<bool>,
    ) -> Self {
        Self { of, node, value: Value::Node(at), gradient, needs, sums }
    }

    /// Whether the graph's own types are computed with.
    pub fn is_typed(&self) -> bool {
        self.of.arithmetic == Arithmetic::Typed
    }

    /// Whether an operand's gradient is asked for.
    pub fn needs(&self, operand: usize) -> bool {
        self.needs[operand]
    }

    /// The gradient of the results in their type.
    pub fn typed_gradient(&self, shape: &[usize]) -> Result<Tensor> {
        shaped(&self.gradient, shape)
    }

    pub fn gradient(&self, shape: &[usize]) -> Result<Tensor> {
        in_sums(&self.typed_gradient(shape)?)
    }

    /// The results in their type.
    pub fn typed_result(&mut self, shape: &[usize]) -> Result<Tensor> {
        shaped(&self.of.tensor(self.value)?, shape)
    }

    pub fn result(&mut self, shape: &[usize]) -> Result<Tensor> {
        in_sums(&self.typed_result(shape)?)
    }

    /// An operand over its own dimensions.
    pub fn operand(&mut self, at: usize) -> Result<Tensor> {
        in_sums(&self.of.own(&self.node.operands[at])?)
    }

    /// An operand over a shape.
    pub fn operand_as(&mut self, at: usize, shape: &[usize]) -> Result<Tensor> {
        in_sums(&self.of.operand(&self.node.operands[at], shape)?.broadcast_as(shape)?)
    }

    /// All operands over one shape, and the gradient, in the order in which they lie in memory.
    pub fn elements(&mut self) -> Result<Elements> {
        let operands = self.of.operands(self.node)?;
        let longest = |dim: usize| operands.iter().map(|operand| operand.dims()[dim]).max().unwrap_or(1);
        let shape: Vec<usize> = (0..operands[0].rank()).map(longest).collect();
        let gradient = self.typed_gradient(&shape)?;
        let whole = operands.iter().filter(|operand| operand.dims() == shape);
        let order = Order::of(whole.chain([&gradient]));
        let own = operands.iter().map(|operand| order.inside(operand)).collect::<Result<_>>()?;
        Ok(Elements { own, gradient: order.inside(&gradient)?, shape, order })
    }

    /// The results beside them.
    pub fn result_of(&mut self, elements: &Elements) -> Result<Tensor> {
        ops::in_sums(&elements.order.inside(&shaped(&self.of.tensor(self.value)?, &elements.shape)?)?)
    }

    /// Gives an operand's gradient, which lies like them.
    pub fn give_of(&mut self, elements: &Elements, at: usize, gradient: Tensor) -> Result<()> {
        self.give(at, elements.order.outside(gradient)?)
    }

    /// The gradient of the results in their type and in some shape.
    pub fn whole_gradient(&self) -> Tensor {
        self.gradient.clone()
    }

    /// Gives an operand's gradient, in the order of its elements.
    pub fn give(&mut self, at: usize, gradient: Tensor) -> Result<()> {
        self.give_view(self.node.operands[at].clone(), gradient)
    }

    /// Gives the gradient of an operand over other dimensions than its own: those that repeat nothing.
    pub fn give_over(&mut self, at: usize, dims: Vec<Dim>, gradient: Tensor) -> Result<()> {
        self.give_view(Operand { dims, ..self.node.operands[at].clone() }, gradient)
    }

    /// The gradient that an operand, all of a value, has so far, of products only if they are asked for. The operand's own is then the sum
    /// with it.
    pub fn take(&mut self, at: usize, with_products: bool) -> Option<Tensor> {
        let operand = &self.node.operands[at];
        let sum = self.sums.get_mut(&operand.value).filter(|_| operand.is_whole(self.of.len(operand.value)))?;
        sum.take(with_products)
    }

    /// Gives an operand's gradient that is a product.
    pub fn give_product(&mut self, at: usize, gradient: Tensor) -> Result<()> {
        self.give(at, gradient)?;
        self.sums.entry(self.node.operands[at].value).or_default().note_product();
        Ok(())
    }

    fn give_view(&mut self, view: Operand, gradient: Tensor) -> Result<()> {
        let order = Order::of([&gradient]);
        let gradient = order.outside(order.inside(&gradient)?.to_dtype(self.of.dtype(view.value))?)?;
        let len = self.of.len(view.value);
        self.sums.entry(view.value).or_default().add(view, gradient, len)
    }
}
