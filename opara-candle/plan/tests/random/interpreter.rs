//! Computes a graph of values in double precision, element by element and without the library's operators: in another way than what it
//! is to check.

use anyhow::{bail, ensure, Context, Result};
use opara_plan::rewrite::{strides_over, Compute, Graph, Node, Operand, Value};

use crate::{operators, recorded};

/// The values of a graph.
pub struct Interpreter<'a> {
    graph: &'a Graph,
    inputs: &'a [Vec<f64>],
    known: Vec<Option<Vec<f64>>>,
}

impl<'a> Interpreter<'a> {
    /// The outputs of a graph.
    pub fn outputs(graph: &'a Graph, inputs: &'a [Vec<f64>]) -> Result<Vec<Vec<f64>>> {
        let mut of = Self { graph, inputs, known: vec![None; graph.nodes.len()] };
        let live = graph.live();
        for at in (0..graph.nodes.len()).filter(|&at| live[at]) {
            of.compute(at)?;
        }
        graph.outputs.iter().map(|output| Ok(of.value(output.value)?.to_vec())).collect()
    }

    fn compute(&mut self, at: usize) -> Result<()> {
        if self.known[at].is_some() {
            return Ok(());
        }
        let node = &self.graph.nodes[at];
        let mut results = match &node.compute {
            Compute::Recorded(function) => vec![recorded::compute(self, node, function)?],
            _ => operators::compute(self, node)?,
        };
        let said = || format!("node {at}, {:?}", node.compute);
        for (&other, result) in node.given_beside().iter().zip(results.drain(1..)) {
            ensure!(result.len() as u64 == self.graph.nodes[other].len, "{} gives {} elements", said(), result.len());
            self.known[other] = Some(result);
        }
        let result = results.pop().with_context(said)?;
        ensure!(result.len() as u64 == node.len, "{} gives {} elements, not {}", said(), result.len(), node.len);
        self.known[at] = Some(result);
        Ok(())
    }

    fn value(&self, value: Value) -> Result<&[f64]> {
        match value {
            Value::Input(at) => Ok(&self.inputs[at]),
            Value::Node(at) => {
                self.known[at].as_deref().with_context(|| format!("node {at} is read before it is known"))
            }
        }
    }

    /// The elements of an operand, in its order.
    pub fn operand(&self, operand: &Operand) -> Result<Vec<f64>> {
        let from = self.value(operand.value)?;
        let mut places = vec![operand.first];
        for dim in &operand.dims {
            let along = |&place: &u64| (0..dim.len).map(move |at| place + at * dim.stride);
            places = places.iter().flat_map(along).collect();
        }
        let of = |place: u64| from.get(place as usize).copied();
        places.into_iter().map(of).collect::<Option<_>>().with_context(|| format!("{operand:?} ends behind its value"))
    }

    /// All operands of a node.
    pub fn operands(&self, node: &Node) -> Result<Vec<Vec<f64>>> {
        node.operands.iter().map(|operand| self.operand(operand)).collect()
    }
}

/// The lengths of an operand's dimensions.
pub fn lens<const N: usize>(operand: &Operand) -> Result<[usize; N]> {
    let lens: Vec<usize> = operand.dims.iter().map(|dim| dim.len as usize).collect();
    lens.try_into().map_err(|lens| anyhow::anyhow!("{N} dimensions, not {lens:?}"))
}

/// The elements of an operand over a shape, which it may repeat over.
pub fn over(of: &Interpreter, operand: &Operand, shape: &[u64]) -> Result<Vec<f64>> {
    match strides_over(&operand.dims, shape) {
        Some(strides) => {
            let dims = shape.iter().zip(strides).map(|(&len, stride)| opara_plan::trace::Dim { len, stride }).collect();
            of.operand(&Operand { dims, ..operand.clone() })
        }
        None if operand.len() == shape.iter().product::<u64>() => of.operand(operand),
        None => bail!("{operand:?} is no view over {shape:?}"),
    }
}
