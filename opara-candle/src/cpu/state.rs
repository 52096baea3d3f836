//! What shows that a module keeps state on the host: tensors that go from one call to a later one, and calls with the same
//! inputs that differ.

use candle::{Tensor, TensorId};
use hashbrown::HashMap;

use super::record::{CpuProgram, HostOp, Source};
use crate::panics::caught;
use crate::reentrancy::run_nested;
use crate::verify::{self, same_values};
use crate::{Error, Result};

/// One call of the module, recorded.
pub(super) struct Pass {
    pub program: CpuProgram,
    pub outputs: Vec<Tensor>,
    /// Microseconds that it took.
    pub us: f64,
}

/// Checks calls in order, of which the first and the last are on the example, `inputs`.
///
/// # Errors
/// [`Error::Stateful`] with what shows state, [`Error::DrawsRandomNumbers`] for an operator that draws random numbers.
pub(super) fn check(passes: &[Pass], inputs: &[Tensor]) -> Result<()> {
    check_tensors(passes)?;
    match passes {
        [first, .., last] => check_repeats(first, last, inputs),
        _ => Ok(()),
    }
}

/// Checks two calls on the example in a row, of which `again` is the first and the last of `passes` the second. Returns
/// whether their operators agree; if not, it is for tensors of unrecorded operators.
///
/// # Errors
/// Those of [`check`], and [`Error::Stateful`] for other operators.
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

/// Checks that no call uses a tensor which an operator of an earlier one made.
///
/// A table that the first call makes from weights alone, and later ones find, is a weight: a module may make its tables
/// when it first needs them.
///
/// # Errors
/// [`Error::Stateful`] for the first use of such a tensor.
fn check_tensors(passes: &[Pass]) -> Result<()> {
    // For each tensor of an earlier call whether it counts as a weight.
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

/// For each operator whether its result depends on an input.
fn depends_on_inputs(program: &CpuProgram) -> Vec<bool> {
    let mut depends: Vec<bool> = Vec::with_capacity(program.ops.len());
    for op in &program.ops {
        let depends_on = |source: &Source| match source {
            Source::Input(_) => true,
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
/// [`Error::Stateful`] if they did not, but [`Error::DrawsRandomNumbers`] if an operator draws random numbers.
fn check_repeats(first: &Pass, again: &Pass, inputs: &[Tensor]) -> Result<()> {
    let detail = match verify::same_bits("second call", &first.outputs, &again.outputs) {
        Ok(()) => return Ok(()),
        Err(Error::Mismatch { output, differing, elements, .. }) => {
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
        // What candle's own operators do is not seen.
        Err(Error::UntracedOutput { .. }) => {
            Err(Error::stateful(differs(format!("{detail}. Or it draws random numbers"))))
        }
        Err(error) => Err(error),
    }
}

/// Why two calls of the same operators give other outputs: runs both, operator by operator, on the same tensors.
fn changed_operator(first: &CpuProgram, again: &CpuProgram, inputs: &[Tensor]) -> Result<Error> {
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
        Source::Input(i) => &inputs[*i],
        Source::Op(i) => &values[*i],
        Source::Constant(t) => t,
    }
}

fn same(a: &Tensor, b: &Tensor) -> candle::Result<bool> {
    Ok(a.shape() == b.shape() && a.dtype() == b.dtype() && same_values(a, b)?)
}

/// The error that an operator, with the same function and the same tensors, gives another result each time.
fn unrepeatable(label: &str) -> Error {
    let place = if label.is_empty() { String::new() } else { format!(" of `{label}`") };
    Error::DrawsRandomNumbers { reason: format!("the result{place} differs from run to run: it draws random numbers") }
}
