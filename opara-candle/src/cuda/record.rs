//! Recording: eager passes, and captures that agree.

use std::sync::Arc;

use candle::Tensor;
use parking_lot::Mutex;

use super::arena::Arena;
use super::confirmed::{confirmed, Confirmed};
use super::eager::{contiguous, Answers, Eager};
use super::lift::lift;
use super::program::CudaProgram;
use super::target::Target;
use crate::backend::{Example, Function, Recording};
use crate::examples::Examples;
use crate::{capture_thread, ops, Error, Result};

/// Captures `function` on copies of `inputs`; replays share `arena`.
pub(crate) fn record(
    function: &Function,
    inputs: &[Tensor],
    examples: &Examples,
    arena: &Arc<Arena>,
) -> Result<Recording> {
    let (function, inputs, arena) = (function.clone(), inputs.to_vec(), arena.clone());
    let further = examples.clone();
    capture_thread::run(move || {
        let target = Target::of(&inputs)?;
        let inputs = contiguous(&inputs)?;
        let mut eager = Eager::new(&function, &target, &further.state);
        let answers = eager.answers(&inputs, &further)?;
        let attempt = attempt(&mut eager, answers, |eager| confirmed(&target, &function, &inputs, eager))?;
        let (confirmed, examples) = attempt.verdict()?;
        let unfinished_us = eager.unfinished_us;
        let state = Arc::new(Mutex::new(Some(eager.into_state())));
        // Features that the device lacks.
        let notes = ops::lacks(target.device.as_cuda_device()?)?;
        let Confirmed { mut capture, external } = confirmed;
        lift(&mut capture.trace, &capture.launches.get_mut().of);
        let trace = capture.trace.clone().into();
        let Target { device, stream } = target;
        let workspaces = Arena::of_workspaces(&stream);
        let program =
            CudaProgram { compiled: Vec::new(), capture, external, stream, device, function, arena, workspaces, state };
        Ok(Recording { trace, notes, examples, program: Box::new(program), unfinished_us })
    })
}

/// The result of capturing a module, and the results of its eager calls.
struct Attempt {
    answers: Answers,
    captured: Result<Confirmed>,
}

/// Number of repeated captures if a capture shows state but the module's eager results repeat.
const RETRIES: usize = 12;

/// Captures a module. Calls and captures it again if the capture shows state that the eager results do not show.
///
/// # Errors
/// The module's own.
fn attempt(
    eager: &mut Eager,
    mut answers: Answers,
    capture: impl Fn(&mut Eager) -> Result<Confirmed>,
) -> Result<Attempt> {
    let mut captured = match answers.refused.take() {
        Some(refused) if answers.repeats.is_ok() => Err(refused),
        _ => capture(eager),
    };
    for _ in 0..RETRIES {
        // If eager results repeat, another thread may have made the module replace a table by one for other shapes. One more pass
        // restores the table.
        if answers.repeats.is_err() || !matches!(captured, Err(Error::Stateful { .. })) {
            break;
        }
        answers.repeats = eager.repeats(&answers.examples[0])?;
        captured = capture(eager);
    }
    let draws = matches!(captured, Err(Error::DrawsRandomNumbers { .. }));
    if captured.as_ref().is_err_and(Error::is_uncapturable) && !draws {
        // It would run eagerly from now on. Two calls in a row also find state that alternates.
        for _ in 0..2 {
            if answers.repeats.is_ok() {
                answers.repeats = eager.repeats(&answers.examples[0])?;
            }
        }
    }
    Ok(Attempt { answers, captured })
}

impl Attempt {
    /// The capture and the examples.
    ///
    /// # Errors
    /// Why there is no capture. Answers that do not repeat come first, unless the capture says where the module keeps state,
    /// or why calls differ without any.
    fn verdict(self) -> Result<(Confirmed, Vec<Example>)> {
        let Answers { examples, repeats, .. } = self.answers;
        match (repeats, self.captured) {
            (Ok(()), captured) => Ok((captured?, examples)),
            (Err(_), Err(error @ (Error::DrawsRandomNumbers { .. } | Error::Stateful { .. }))) => Err(error),
            (Err(error), _) => Err(error),
        }
    }
}
