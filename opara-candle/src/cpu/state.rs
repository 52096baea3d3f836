//! Detects modules that keep state on the host: by tensors that one call makes and a later one reads, and by calls with
//! equal inputs whose outputs differ.

use candle::{Tensor, TensorId};
use hashbrown::HashMap;

use super::program::{CpuProgram, HostOp, Source};
use crate::panics::caught;
use crate::reentrancy::run_nested;
use crate::verify::{self, same_values};
use crate::{Error, Mismatch, Result};

/// One recorded call of the module.
pub(super) struct Pass {
    pub program: CpuProgram,
    pub outputs: Vec<Tensor>,
    /// Duration in microseconds.
    pub us: f64,
}

/// Checks calls in their order. The first and the last are calls on the example, `inputs`.
///
/// # Errors
/// [`Error::Stateful`] with the evidence, or [`Error::DrawsRandomNumbers`] for an operator that draws random numbers.
pub(super) fn check(passes: &[Pass], inputs: &[Tensor]) -> Result<()> {
    check_tensors(passes)?;
    match passes {
        [first, .., last] => check_repeats(first, last, inputs),
        _ => Ok(()),
    }
}

/// Checks two consecutive calls on the example: `passes[again]` and the last of `passes`. Do their operators agree? If
/// not, they differ only in tensors of unrecorded operators.
///
/// # Errors
/// An error of [`check`], or [`Error::Stateful`] if the operators differ.
pub(super) fn check_calls(passes: &[Pass], again: usize, inputs: &[Tensor]) -> Result<bool> {
    check_tensors(passes)?;
    let (again, last) = (&passes[again], &passes[passes.len() - 1]);
    check_repeats(again, last, inputs)?;
    match again.program.agrees_with(&last.program) {
        Err(Error::Unstable { first, second, .. }) => {
            let reason = format!("it calls `{first}` at one call and `{second}` at the next, with the same inputs");
            Err(Error::stateful(reason))
        }
        agrees => Ok(agrees.is_ok()),
    }
}

/// Checks that no call uses a tensor that an operator of an earlier call made.
///
/// A table that the first call makes from weights alone counts as a weight in later calls: a module may build its
/// tables on first use.
///
/// # Errors
/// [`Error::Stateful`] for the first use of such a tensor.
fn check_tensors(passes: &[Pass]) -> Result<()> {
    // For each tensor of an earlier call: does it count as a weight?
    let mut earlier: HashMap<TensorId, bool> = HashMap::new();
    for (number, pass) in passes.iter().enumerate() {
        let of_earlier = |source: &Source| match source {
            Source::Constant(t) => earlier.get(&t.id()) == Some(&false),
            _ => false,
        };
        let ops = &pass.program.ops;
        if let Some(op) = ops.iter().find(|op| op.inputs.iter().any(of_earlier)) {
            let reason = format!("`{}` reads a tensor that an earlier call made", op.name);
            return Err(Error::Stateful { reason, scope: op.label.clone() });
        }
        if let Some(output) = pass.program.outputs.iter().position(of_earlier) {
            return Err(Error::stateful(format!("its output {output} is a tensor that an earlier call made")));
        }
        let of_inputs = depends_on_inputs(&pass.program);
        earlier.extend(ops.iter().zip(of_inputs).map(|(op, of_inputs)| (op.result, number == 0 && !of_inputs)));
    }
    Ok(())
}

/// For each operator: does its result depend on an input?
fn depends_on_inputs(program: &CpuProgram) -> Vec<bool> {
    let mut depends: Vec<bool> = Vec::with_capacity(program.ops.len());
    for op in &program.ops {
        let depends_on = |source: &Source| match source {
            Source::Argument(_) => true,
            Source::Op(i) => depends[*i],
            Source::Constant(_) => false,
        };
        let of_inputs = op.inputs.iter().any(depends_on);
        depends.push(of_inputs);
    }
    depends
}

/// Checks that two calls on `inputs` gave the same bits.
///
/// # Errors
/// [`Error::Stateful`] if they did not, or [`Error::DrawsRandomNumbers`] if an operator draws random numbers.
fn check_repeats(first: &Pass, again: &Pass, inputs: &[Tensor]) -> Result<()> {
    let detail = match verify::same_bits("second call", &first.outputs, &again.outputs) {
        Ok(()) => return Ok(()),
        Err(Error::Mismatch(Mismatch { output, differing, elements, .. })) => {
            format!("output {output} differs in {differing} of {elements} elements")
        }
        Err(error) => return Err(error),
    };
    let differs = |detail: String| format!("two calls with the same inputs give other outputs: {detail}");
    match first.program.check_outputs().and_then(|()| first.program.agrees_with(&again.program)) {
        Ok(()) => Err(changed_operator(&first.program, &again.program, inputs)?),
        Err(Error::Unstable { first, second, .. }) => {
            Err(Error::stateful(differs(format!("`{first}` is called the first time and `{second}` the second"))))
        }
        Err(Error::UntracedTensor { op, label, .. }) => {
            let reason =
                differs(format!("`{op}` reads a tensor that is new at every call. Or it draws random numbers"));
            Err(Error::Stateful { reason, scope: label })
        }
        // candle's own operators are not recorded, so their effects are unknown.
        Err(Error::UntracedOutput { .. }) => {
            Err(Error::stateful(differs(format!("{detail}. Or it draws random numbers"))))
        }
        Err(error) => Err(error),
    }
}

/// The reason why two calls of the same operators gave different outputs. Runs both operator by operator on the same
/// tensors.
fn changed_operator(first: &CpuProgram, again: &CpuProgram, inputs: &[Tensor]) -> Result<Error> {
    // Operators that write in place cannot run again on the same tensors.
    if again.ops.iter().any(|op| op.in_place) {
        return Ok(Error::stateful(
            "two calls with the same inputs and state give other results, by the same operators",
        ));
    }
    let mut values: Vec<Tensor> = Vec::with_capacity(first.ops.len());
    for (op, then) in first.ops.iter().zip(&again.ops) {
        let arguments: Vec<&Tensor> = then.inputs.iter().map(|source| value(source, inputs, &values)).collect();
        let run = |op: &HostOp| caught(|| Ok(run_nested(|| (op.kernel)(&arguments))?));
        let (expected, got) = (run(op)?, run(then)?);
        if !same(&expected, &got)? {
            return Ok(match same(&got, &run(then)?)? {
                true => {
                    let reason = format!("`{}` computes something else at every call, from the same tensors", op.name);
                    Error::Stateful { reason, scope: op.label.clone() }
                }
                false => unrepeatable(&op.label),
            });
        }
        values.push(got);
    }
    Ok(unrepeatable(""))
}

fn value<'a>(source: &'a Source, inputs: &'a [Tensor], values: &'a [Tensor]) -> &'a Tensor {
    match source {
        Source::Argument(i) => &inputs[*i],
        Source::Op(i) => &values[*i],
        Source::Constant(t) => t,
    }
}

fn same(a: &Tensor, b: &Tensor) -> candle::Result<bool> {
    Ok(a.shape() == b.shape() && a.dtype() == b.dtype() && same_values(a, b)?)
}

/// The error for an operator whose result differs each time, with the same function and the same tensors.
fn unrepeatable(label: &str) -> Error {
    let place = if label.is_empty() { String::new() } else { format!(" of `{label}`") };
    Error::DrawsRandomNumbers { reason: format!("the result{place} differs from run to run: it draws random numbers") }
}
