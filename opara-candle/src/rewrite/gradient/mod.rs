//! Gradients of a graph: each node gives the gradients of its operands, from the last node to the first.
//!
//! Values that no wanted input is behind get none. The gradients of a value that several nodes read are added in the nodes' order.

mod attention;
mod batch_norm;
mod derivative;
mod elementwise;
mod images;
mod indexed;
mod order;
mod products;
mod rows;
mod spread;
mod step;
mod sum;

use std::ops::Range;

use candle::{bail, Result, Tensor};
use hashbrown::HashMap;
use opara_plan::rewrite::{Graph, Operand, Segments, Value};

use self::derivative::{derivative, is_given, is_read};
use self::step::Step;
use self::sum::Sum;
use super::evaluation::{Arithmetic, Evaluation, Numbers};
use super::operators::compute;

/// The ways along which gradients of a graph's first output go to the inputs that are wanted.
pub(crate) struct Paths<'a> {
    graph: &'a Graph,
    wanted: &'a [usize],
    /// For each node, whether the first output changes with it and it changes with a wanted input.
    is_on: Vec<bool>,
}

/// A node without a derivative, and inputs that get no gradient through it.
#[derive(Debug, PartialEq)]
pub(crate) struct Missing {
    pub node: usize,
    pub inputs: Vec<usize>,
}

impl<'a> Paths<'a> {
    pub fn of(graph: &'a Graph, wanted: &'a [usize]) -> Self {
        let mut is_on = changed(graph, wanted);
        let mut is_needed = vec![false; graph.nodes.len()];
        if let Some(Value::Node(loss)) = graph.outputs.first().map(|output| output.value) {
            is_needed[loss] = true;
        }
        for (at, node) in graph.nodes.iter().enumerate().rev().filter(|(at, _)| is_on[*at]) {
            let read =
                node.operands.iter().enumerate().filter(|(operand, _)| is_needed[at] && is_read(graph, node, *operand));
            for (_, operand) in read.collect::<Vec<_>>() {
                if let Value::Node(of) = operand.value {
                    is_needed[of] = true;
                }
            }
        }
        is_on.iter_mut().zip(is_needed).for_each(|(is_on, is_needed)| *is_on &= is_needed);
        Self { graph, wanted, is_on }
    }

    /// For each operand of a node, whether its gradient is needed.
    fn needs(&self, at: usize) -> Vec<bool> {
        let node = &self.graph.nodes[at];
        let is_wanted = |value: Value| match value {
            Value::Input(input) => self.wanted.contains(&input),
            Value::Node(of) => self.is_on[of],
        };
        let needs = |(operand, of): (usize, &Operand)| is_wanted(of.value) && is_read(self.graph, node, operand);
        node.operands.iter().enumerate().map(needs).collect()
    }

    /// For each wanted input, whether the first output changes with it.
    pub fn reached(&self) -> Vec<bool> {
        let is_reached = |&input: &usize| {
            let reads = |at: usize| {
                let operands = self.graph.nodes[at].operands.iter().zip(self.needs(at));
                operands.into_iter().any(|(operand, needs)| needs && operand.value == Value::Input(input))
            };
            (0..self.graph.nodes.len()).any(|at| self.is_on[at] && reads(at))
        };
        self.wanted.iter().map(is_reached).collect()
    }

    /// The first node on the way that has no derivative.
    pub fn missing(&self) -> Option<Missing> {
        let lacks = |&at: &usize| {
            let node = &self.graph.nodes[at];
            let is_left_out = |(operand, needs): (usize, bool)| needs && !is_given(node, operand);
            self.is_on[at]
                && (derivative(&node.compute).is_none() || self.needs(at).into_iter().enumerate().any(is_left_out))
        };
        let node = (0..self.graph.nodes.len()).find(lacks)?;
        let reaches = |&input: &usize| changed(self.graph, &[input])[node];
        Some(Missing { node, inputs: self.wanted.iter().copied().filter(reaches).collect() })
    }
}

/// For each node, whether it changes with one of these inputs.
fn changed(graph: &Graph, inputs: &[usize]) -> Vec<bool> {
    let mut changed: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let changes = |value: Value| match value {
            Value::Input(input) => inputs.contains(&input),
            Value::Node(of) => changed[of],
        };
        let by = |(at, operand): (usize, &Operand)| changes(operand.value) && is_read(graph, node, at);
        let is_changed = node.operands.iter().enumerate().any(by);
        changed.push(is_changed);
    }
    changed
}

/// The outputs of a graph, and the gradients of the first one.
pub(crate) struct Differentiated {
    pub outputs: Vec<Tensor>,
    /// Of each wanted input, if there is one; its elements are in their order.
    pub gradients: Vec<Option<Tensor>>,
}

/// Computes a graph, and the gradients of its first output, one number, with respect to inputs. On the way back all segments but the last
/// are computed again.
///
/// # Errors
/// A node without a derivative, or an operator that failed.
pub(crate) fn differentiate(
    graph: &Graph,
    inputs: &[Tensor],
    arithmetic: Arithmetic,
    wanted: &[usize],
    segments: &Segments,
) -> Result<Differentiated> {
    let paths = Paths::of(graph, wanted);
    let mut of = Evaluation::new(graph, inputs, arithmetic, Numbers::All, compute);
    let live = graph.live();
    let forward = |of: &mut Evaluation, segment: Range<usize>| {
        segment.filter(|&at| live[at]).try_for_each(|at| of.tensor(Value::Node(at)).map(drop))
    };
    let Some((last, others)) = segments.ranges().split_last() else { bail!("a graph without segments") };
    for segment in others {
        forward(&mut of, segment.clone())?;
        segment.clone().filter(|&at| !segments.is_kept(at)).for_each(|at| of.forget(Value::Node(at)));
    }
    forward(&mut of, last.clone())?;
    let outputs = graph.outputs.iter().map(|output| of.tensor(output.value)).collect::<Result<Vec<_>>>()?;
    let mut sums: HashMap<Value, Sum> = HashMap::new();
    if let (Some(output), Some(loss)) = (graph.outputs.first(), outputs.first()) {
        let one = Operand::whole(output.value, 1);
        sums.entry(output.value).or_default().add(one, loss.ones_like()?, 1)?;
    }
    for segment in segments.ranges().iter().rev() {
        if segment != last {
            forward(&mut of, segment.clone())?;
        }
        for at in segment.clone().rev() {
            let node = &graph.nodes[at];
            if let Some(sum) = sums.remove(&Value::Node(at)).filter(|_| paths.is_on[at]) {
                let gradient = sum.total(node.len)?;
                let Some(derivative) = derivative(&node.compute) else { bail!("{:?} has no derivative", node.compute) };
                derivative(&mut Step::new(&mut of, &mut sums, (at, node), gradient, paths.needs(at)))?;
            }
            of.forget(Value::Node(at));
        }
    }
    let total = |&input: &usize| {
        let sum = sums.remove(&Value::Input(input));
        sum.map(|sum| sum.total(graph.inputs[input].len)).transpose()
    };
    Ok(Differentiated { outputs, gradients: wanted.iter().map(total).collect::<Result<_>>()? })
}
