//! Rewriting on a GPU: runs of recorded launches give way to this library's operators, where these are no less accurate and faster.
//!
//! [`opara_plan::rewrite`] finds the runs and changes them by rules. Here each changed run is computed on the values that the
//! recorded pass had, and held against double precision ([`crate::rewrite::accuracy`]), unless an earlier build has done so; then it is
//! captured, and its launches take the place of those that were recorded.

mod fragment;
mod splice;
mod values;
mod weights;

use candle::Tensor;
use hashbrown::HashSet;
use opara_plan::rewrite::rules::{self, counted, Match};
use opara_plan::rewrite::{regions, Compared, Decision, Graph, Input, Outcome, Region};

use self::fragment::fragment;
use self::values::{
    busy_us, of_eager_calls, operands, run, sets, uploaded_number, uploads, wanted, Uploads, Values, Wanted,
};
use self::weights::sample;
use super::capture::Capture;
use super::driver::kernels::CompilerAhead;
use super::driver::lacks_memory;
use super::program::CudaProgram;
use super::target::Target;
use crate::backend::{Example, Recorded, Rewriting, RewrittenProgram};
use crate::panics::caught_as;
use crate::report::Rewrite;
use crate::rewrite::accuracy::{near, near_in_kind};
use crate::rewrite::choice::{choose_usable, Choice};
use crate::rewrite::evaluate::{arranged_bytes, evaluate, Arithmetic, Numbers};
use crate::timing::{wall_us, StageTimes};
use crate::trace::BufferId;
use crate::{capture_thread, Error, Result};
use opara_plan::prepared::Settings;

/// The program with other operators in the place of recorded launches, as an earlier build decided if that still stands.
pub(super) fn rewrite(
    program: Box<CudaProgram>,
    examples: Vec<Example>,
    rewriting: Rewriting,
    kept: Option<Outcome>,
) -> Result<RewrittenProgram> {
    capture_thread::run(move || Rewriter::new(rewriting, examples, StageTimes::default()).rewrite(program, kept))
}

/// The examples on which runs are held against double precision. That takes several times as long as candle does: of a pass that keeps the
/// device busy for so long that this counts, these are the ones that the caller gave, and each run is judged on altered operands of its
/// own. On all others the rewritten pass has to be near what candle gives.
fn judged_examples(examples: &[Example], busy_us: Option<f64>) -> &[Example] {
    let given = examples.iter().take_while(|example| example.is_given).count();
    match busy_us {
        Some(_) => &examples[..given],
        None => examples,
    }
}

struct Rewriter {
    rewriting: Rewriting,
    examples: Vec<Example>,
    notes: Vec<String>,
    times: StageTimes,
    /// A hash of a sample of the weights, if outcomes are kept.
    weights: Option<String>,
    /// The decisions for each run so far.
    runs: Vec<Decision>,
    /// Do candle's launches keep the device busy for long?
    is_long: bool,
    /// Is it all as an earlier build decided?
    is_kept: bool,
    /// Is a run rewritten as an earlier build decided, so that this one has not judged it?
    has_trusted: bool,
    /// Has nothing failed that may succeed in a later build, such as for lack of memory?
    is_final: bool,
}

/// A run that gives way.
struct RewrittenRun {
    region: Region,
    graph: Graph,
    fits: Vec<Match>,
    compared: Compared,
    captured: Capture,
}

impl Rewriter {
    fn new(rewriting: Rewriting, examples: Vec<Example>, times: StageTimes) -> Self {
        let (notes, runs) = (Vec::new(), Vec::new());
        let (is_long, is_kept, has_trusted, is_final) = (false, false, false, true);
        Self { rewriting, examples, notes, times, weights: None, runs, is_long, is_kept, has_trusted, is_final }
    }

    fn rewrite(mut self, program: Box<CudaProgram>, kept: Option<Outcome>) -> Result<RewrittenProgram> {
        if self.examples.iter().any(|example| example.inputs.len() > program.capture.inputs) {
            self.notes.push("nothing is rewritten: a step writes its state in place".into());
            return Ok(self.unchanged(program, None));
        }
        let trace = &program.capture.trace;
        let fits = |region: &Region| rules::apply(&mut region.graph.clone(), &self.without(), &HashSet::new());
        let found = |region: &Region| !fits(region).is_empty();
        let uploads = uploads(&program.capture);
        let mut regions = regions(trace);
        regions.iter_mut().for_each(|region| region.graph.tell(|input| uploaded_number(&uploads, input)));
        regions.retain(found);
        if self.rewriting.folder.is_some() && !regions.is_empty() {
            self.weights = match self.times.time("rewrite weights", || sample(&program)) {
                Err(error @ Error::DeviceLost { .. }) => return Err(error),
                weights => weights.ok(),
            };
        }
        let kept = kept.filter(|kept| self.weights.as_ref().is_some_and(|weights| kept.is_of(&regions, weights)));
        self.is_kept = kept.is_some();
        if let Some(Outcome { runs, refused: Some(reason), .. }) = &kept {
            self.notes.extend(runs.iter().flat_map(|run| run.notes.clone()).chain([reason.clone()]));
            return Ok(self.unchanged(program, None));
        }
        let earlier = |at: usize| kept.as_ref().map(|kept| &kept.runs[at]);
        let stays = |at: usize| earlier(at).is_some_and(|run| run.standing.is_none());
        let judged = regions.iter().enumerate().filter(|(at, _)| !stays(*at)).map(|(_, region)| region);
        let (wanted, judged) = (wanted(&program.capture, judged.clone(), &uploads), judged.count());
        let busy_us = busy_us(&self.examples, trace.ops.len());
        self.is_long = busy_us.is_some();
        let (mut program, mut values, mut candle_us) = (program, Vec::new(), f64::INFINITY);
        let examples = judged_examples(&self.examples, busy_us);
        if let (Some(found), Some(us), 1..) = (of_eager_calls(examples, &wanted), busy_us, judged) {
            (values, candle_us) = (found, us);
        } else if judged > 0 {
            let settings = self.rewriting.settings;
            let (recorded, result) = self.times.time("rewrite values", || run(program, examples, &wanted, settings));
            program = recorded;
            (values, candle_us) = match result {
                Ok(found) => found,
                Err(error @ Error::DeviceLost { .. }) => return Err(error),
                Err(error) => {
                    self.is_final = false;
                    self.notes.push(format!("nothing is rewritten: {error}"));
                    return Ok(self.unchanged(program, None));
                }
            };
        }
        let mut replacements = Vec::new();
        for (at, region) in regions.into_iter().enumerate() {
            replacements.extend(self.replacement(&program, region, earlier(at), &values, &uploads)?);
        }
        drop(values);
        if replacements.is_empty() {
            return Ok(self.unchanged(program, None));
        }
        // Nothing is put into this one.
        let exact = Box::new(program.duplicate());
        // The last first: what comes before keeps its place.
        let (mut rewrites, mut room, mut apart) = (Vec::new(), 0, [0f64; 2]);
        for RewrittenRun { region, graph, fits, compared, captured } in replacements.into_iter().rev() {
            let weights = graph.inputs.iter().filter(|input| input.is_constant);
            let bytes_of = |input: &Input| program.capture.trace.buffers[input.buffer].bytes;
            room += weights.map(|input| arranged_bytes(input.element, bytes_of(input))).sum::<u64>();
            let buffers: [Vec<BufferId>; 2] = [
                graph.inputs.iter().map(|input| input.buffer).collect(),
                graph.outputs.iter().map(|output| output.buffer).collect(),
            ];
            let [inputs, outputs] = &buffers;
            apart = [apart[0] + compared.apart, apart[1].max(compared.apart)];
            program.capture.splice(region.ops, &region.kept, captured, [inputs, outputs]);
            rewrites.extend(counted(&fits).into_iter().map(|counted| Rewrite::of(counted, compared)));
        }
        program.watch_externals();
        let settings = Settings { constant_room: room, ..self.rewriting.settings };
        let kernels = self.rewriting.fusing.as_ref().map(|fusing| (program.capture.fused_kernels(), &fusing.folder));
        let ahead = kernels.and_then(|(kernels, folder)| CompilerAhead::of(&program.device, kernels, folder.clone()));
        let mut timed =
            |program| self.times.time("rewrite run", || run(program, &self.examples, &Wanted::new(), settings));
        let (mut program, mut values) = timed(program);
        if let Some(ahead) = ahead {
            let (compiled, compile_us) = wall_us(|| ahead.finish());
            if values.as_ref().is_ok_and(|(_, us)| *us >= candle_us) {
                // The compiler may have kept the host from launching in time.
                (program, values) = timed(program);
            }
            program.compiled = compiled;
            self.times.add("rewrite compile", compile_us / 1e3);
        }
        let refused = match values {
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            Err(error) => {
                self.is_final = false;
                error.to_string()
            }
            // An earlier build has compared the times of whole replays.
            Ok((_, us)) if us >= candle_us && !self.is_kept => {
                format!("the rewritten launches take {us:.0} us one after the other, candle's {candle_us:.0}")
            }
            Ok((values, us)) => match self.are_near(&values, apart)? {
                Err(reason) if self.has_trusted => {
                    tracing::warn!(reason, "what an earlier build decided on rewriting does not stand: deciding anew");
                    // There may be no memory for both.
                    drop((program, values));
                    return Self::new(self.rewriting, self.examples, self.times).rewrite(exact, None);
                }
                Err(reason) => reason,
                Ok(()) => {
                    tracing::debug!(us, candle_us, "rewritten");
                    let exact = Recorded { examples: self.examples.clone(), program: exact, sequential_us: candle_us };
                    // From now on these are what replays have to give.
                    for (example, values) in self.examples.iter_mut().zip(values) {
                        example.outputs = values.outputs;
                    }
                    let (rewrites, exact) = (Rewrite::merged(rewrites), Some(exact));
                    return Ok(RewrittenProgram { rewrites, room, exact, ..self.unchanged(program, None) });
                }
            },
        };
        let reason = format!("nothing is rewritten: {refused}");
        self.notes.push(reason.clone());
        Ok(self.unchanged(exact, Some(reason)))
    }

    /// Whether a rewritten pass gives what candle gave for each example. Where an earlier decision is trusted, integers have to be equal, and
    /// numbers finite where candle's are: nothing else holds them against anything.
    fn are_near(&self, values: &[Values], apart: [f64; 2]) -> Result<std::result::Result<(), String>> {
        for (example, values) in self.examples.iter().zip(values) {
            for (candle, other) in example.outputs.iter().zip(&values.outputs) {
                let holds = if self.has_trusted { near_in_kind } else { near };
                if let Err(reason) = holds(candle, other, apart)? {
                    return Ok(Err(reason));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Rules that are not used.
    fn without(&self) -> Vec<&str> {
        self.rewriting.without.iter().map(String::as_str).collect()
    }

    /// The program as it is now, with what came of the runs. `refused` says why that does not count.
    fn unchanged(self, program: Box<CudaProgram>, refused: Option<String>) -> RewrittenProgram {
        let Self { examples, notes, times, weights, runs, is_kept, is_final, .. } = self;
        let is_new = is_final && !is_kept && !runs.is_empty();
        let outcome = weights.filter(|_| is_new).map(|weights| Outcome { weights, runs, refused, times: None });
        let trace = program.capture.trace.clone().into();
        RewrittenProgram {
            notes,
            outcome,
            is_kept: is_kept && is_final,
            ..RewrittenProgram::unchanged(trace, examples, times, program)
        }
    }

    /// The replacement of a run, if there is one.
    ///
    /// # Errors
    /// A lost device.
    fn replacement(
        &mut self,
        program: &CudaProgram,
        region: Region,
        earlier: Option<&Decision>,
        values: &[Values],
        uploads: &Uploads,
    ) -> Result<Option<RewrittenRun>> {
        if let Some(decided) = earlier.filter(|earlier| earlier.standing.is_none()) {
            self.decided(decided.clone());
            return Ok(None);
        }
        let panicked = |message: String| Error::Internal { message: format!("an operator panicked: {message}") };
        let chosen = caught_as(panicked, || self.choice(program, &region, earlier, values, uploads));
        let ops = region.ops.clone();
        let stays = |why: String| vec![format!("launches {ops:?} stay candle's: {why}")];
        let (standing, notes, replacement) = match chosen {
            Ok(Ok((Choice { graph, fits, compared, notes, standing }, captured))) => {
                let notes = notes.into_iter().map(|note| format!("of launches {ops:?} {note}")).collect();
                (Some((standing, compared)), notes, Some(RewrittenRun { region, graph, fits, compared, captured }))
            }
            Ok(Err(reason)) => (None, stays(reason), None),
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            Err(error) => {
                self.is_final = false;
                (None, stays(error.to_string()), None)
            }
        };
        // What was noted then is so still.
        let notes =
            earlier.filter(|earlier| earlier.standing == standing).map_or(notes, |earlier| earlier.notes.clone());
        self.decided(Decision { ops, standing, notes });
        Ok(replacement)
    }

    /// Notes what came of a run.
    fn decided(&mut self, decided: Decision) {
        self.notes.extend(decided.notes.iter().cloned());
        self.runs.push(decided);
    }

    /// The rewritten run and its launches, as an earlier build decided if its rules fit where they did and can be captured, or by a new
    /// decision.
    fn choice(
        &mut self,
        program: &CudaProgram,
        region: &Region,
        earlier: Option<&Decision>,
        values: &[Values],
        uploads: &Uploads,
    ) -> Result<std::result::Result<(Choice, Capture), String>> {
        let target = Target { device: program.device.clone(), stream: program.stream.clone() };
        let (mut checks_us, mut capture_us, mut is_final) = (0., 0., true);
        let mut capture = |graph: &Graph, inputs: &[Tensor]| {
            let (captured, us) = wall_us(|| fragment(&target, graph, inputs));
            capture_us += us;
            match captured {
                Err(error @ Error::DeviceLost { .. }) => Err(error),
                captured => Ok(captured.map_err(|error| {
                    is_final &= !lacks_memory(&error);
                    error.to_string()
                })),
            }
        };
        let earlier = earlier.and_then(|earlier| earlier.standing.as_ref());
        let applied =
            earlier.and_then(|(standing, compared)| Some((standing.applied(&region.graph)?, standing, compared)));
        let kept = match applied {
            Some(((graph, fits), standing, &compared)) => {
                let inputs = operands(program, &self.examples, region, values, uploads)?;
                // Inside a capture no operator can look for its fastest implementation, not even on disk.
                let is_computed = evaluate(&graph, &inputs, Arithmetic::Typed, Numbers::All).is_ok();
                let captured = if is_computed { capture(&graph, &inputs)?.ok() } else { None };
                let (notes, standing) = (Vec::new(), standing.clone());
                self.has_trusted |= captured.is_some();
                captured.map(|captured| (Choice { graph, fits, compared, notes, standing }, captured))
            }
            None => None,
        };
        let chosen = match kept {
            Some(kept) => Ok(Ok(kept)),
            None => {
                self.is_kept = false;
                let (sets, us) = wall_us(|| sets(program, &self.examples, region, values, uploads, self.is_long));
                self.times.add("rewrite references", us / 1e3);
                let sets = sets?;
                let (chosen, us) = wall_us(|| choose_usable(&region.graph, &self.without(), &sets, &mut capture));
                checks_us = us - capture_us;
                chosen
            }
        };
        self.times.add("rewrite checks", checks_us / 1e3);
        self.times.add("rewrite capture", capture_us / 1e3);
        self.is_final &= is_final;
        chosen
    }
}
