//! Rewriting on a GPU: runs of recorded launches give way to this library's operators, where these are no less accurate and faster.
//!
//! [`opara_plan::rewrite`] finds the runs and changes them by rules. Here each changed run is computed on the values that the
//! recorded pass had, and held against double precision ([`crate::rewrite::accuracy`]); then it is captured, and its launches
//! take the place of those that were recorded.

mod fragment;
mod splice;
mod values;

use candle::Tensor;
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::rules::{self, counted, Applied, Fit};
use opara_plan::rewrite::{regions, Graph, Region};

use self::fragment::fragment;
use self::values::{run, Values, Wanted};
use super::capture::Capture;
use super::driver::copy_of;
use super::program::CudaProgram;
use super::target::Target;
use crate::backend::{Example, Recorded, Rewriting, RewrittenProgram};
use crate::prepared::Settings;
use crate::report::Rewrite;
use crate::rewrite::accuracy::{near, Compared};
use crate::rewrite::choice::{choose_usable, Choice};
use crate::rewrite::evaluate::Arithmetic;
use crate::rewrite::set::Set;
use crate::timing::{wall_us, StageTimes};
use crate::trace::{BufferId, Role};
use crate::{capture_thread, Error, Result};

/// The program with other operators in the place of recorded launches.
pub(super) fn rewrite(
    program: Box<CudaProgram>,
    examples: Vec<Example>,
    rewriting: Rewriting,
) -> Result<RewrittenProgram> {
    capture_thread::run(move || {
        Rewriter { rewriting, examples, notes: Vec::new(), times: StageTimes::default() }.rewrite(program)
    })
}

struct Rewriter {
    rewriting: Rewriting,
    examples: Vec<Example>,
    notes: Vec<String>,
    times: StageTimes,
}

/// A run that gives way.
struct Replacement {
    region: Region,
    graph: Graph,
    fits: Vec<Fit>,
    compared: Compared,
    captured: Capture,
}

impl Rewriter {
    fn rewrite(mut self, program: Box<CudaProgram>) -> Result<RewrittenProgram> {
        if self.examples.iter().any(|example| example.inputs.len() > program.capture.inputs) {
            self.notes.push("nothing is rewritten: a step writes its state in place".into());
            return Ok(self.unchanged(program));
        }
        let trace = &program.capture.trace;
        let fits = |region: &Region| rules::apply(&mut region.graph.clone(), &self.without(), &HashSet::new());
        let found = |region: &Region| !fits(region).is_empty();
        let regions: Vec<Region> = regions(trace).into_iter().filter(found).collect();
        if regions.is_empty() {
            return Ok(self.unchanged(program));
        }
        let wanted = wanted(&program.capture, &regions);
        let settings = self.rewriting.settings;
        let (mut program, values) =
            self.times.time("rewrite values", || run(program, &self.examples, &wanted, settings));
        let (values, candle_us) = match values {
            Ok(values) => values,
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            Err(error) => {
                self.notes.push(format!("nothing is rewritten: {error}"));
                return Ok(self.unchanged(program));
            }
        };
        let mut replacements = Vec::new();
        for region in regions {
            replacements.extend(self.replacement(&program, region, &values)?);
        }
        drop(values);
        // Nothing is put into this one.
        let exact = Box::new(program.twin());
        // The last first: what comes before keeps its place.
        let (mut rewrites, mut room, mut apart) = (Vec::new(), 0, 0.);
        for Replacement { region, graph, fits, compared, captured } in replacements.into_iter().rev() {
            let weights = graph.inputs.iter().filter(|input| input.is_constant);
            room += weights.map(|input| program.capture.trace.buffers[input.buffer].bytes).sum::<u64>();
            let buffers: [Vec<BufferId>; 2] = [
                graph.inputs.iter().map(|input| input.buffer).collect(),
                graph.outputs.iter().map(|output| output.buffer).collect(),
            ];
            let [inputs, outputs] = &buffers;
            apart += compared.apart();
            program.capture.splice(region.ops, &region.kept, captured, [inputs, outputs]);
            rewrites.extend(counted(&fits).into_iter().map(|counted| told(counted, compared)));
        }
        if rewrites.is_empty() {
            return Ok(self.unchanged(program));
        }
        program.watch_externals();
        let settings = Settings { constant_room: room, ..self.rewriting.settings };
        let (program, values) =
            self.times.time("rewrite run", || run(program, &self.examples, &Wanted::new(), settings));
        let refused = match values {
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            Err(error) => error.to_string(),
            Ok((_, us)) if us >= candle_us => {
                format!("the rewritten launches take {us:.0} us one after the other, candle's {candle_us:.0}")
            }
            Ok((values, us)) => match self.are_near(&values, apart)? {
                Err(reason) => reason,
                Ok(()) => {
                    tracing::debug!(us, candle_us, "rewritten");
                    let exact = Recorded { examples: self.examples.clone(), program: exact, sequential_us: candle_us };
                    // From now on these are what replays have to give.
                    for (example, values) in self.examples.iter_mut().zip(values) {
                        example.outputs = values.outputs;
                    }
                    let trace = program.capture.trace.clone().into();
                    let Self { examples, notes, times, .. } = self;
                    let rewrites = merged(rewrites);
                    let exact = Some(exact);
                    return Ok(RewrittenProgram { trace, rewrites, room, notes, examples, times, program, exact });
                }
            },
        };
        self.notes.push(format!("nothing is rewritten: {refused}"));
        Ok(self.unchanged(exact))
    }

    /// Whether a rewritten pass gives what candle gave for each example.
    fn are_near(&self, values: &[Values], apart: f64) -> Result<std::result::Result<(), String>> {
        for (example, values) in self.examples.iter().zip(values) {
            for (candle, other) in example.outputs.iter().zip(&values.outputs) {
                if let Err(reason) = near(candle, other, apart)? {
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

    fn unchanged(self, program: Box<CudaProgram>) -> RewrittenProgram {
        let trace = program.capture.trace.clone().into();
        let Self { examples, notes, times, .. } = self;
        RewrittenProgram { trace, rewrites: Vec::new(), room: 0, notes, examples, times, program, exact: None }
    }

    /// What may take the place of a run, if anything may.
    ///
    /// # Errors
    /// A lost device.
    fn replacement(&mut self, program: &CudaProgram, region: Region, values: &[Values]) -> Result<Option<Replacement>> {
        let stays = |why: String| format!("launches {:?} stay candle's: {why}", region.ops);
        let (sets, us) = wall_us(|| self.sets(program, &region, values));
        self.times.add("rewrite references", us / 1e3);
        let sets = match sets {
            Ok(sets) => sets,
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            Err(error) => {
                self.notes.push(stays(error.to_string()));
                return Ok(None);
            }
        };
        let target = Target { device: program.device.clone(), stream: program.stream.clone() };
        let mut capture_us = 0.;
        let capture = |graph: &Graph, inputs: &[Tensor]| {
            let (captured, us) = wall_us(|| fragment(&target, graph, inputs));
            capture_us += us;
            match captured {
                Err(error @ Error::DeviceLost { .. }) => Err(error),
                captured => Ok(captured.map_err(|error| error.to_string())),
            }
        };
        let (chosen, us) = wall_us(|| choose_usable(&region.graph, &self.without(), &sets, capture));
        self.times.add("rewrite checks", (us - capture_us) / 1e3);
        self.times.add("rewrite capture", capture_us / 1e3);
        let why = match chosen {
            Ok(Ok((Choice { graph, fits, compared, notes, .. }, captured))) => {
                let told = |note| format!("of launches {:?} {note}", region.ops);
                self.notes.extend(notes.into_iter().map(told));
                return Ok(Some(Replacement { region, graph, fits, compared, captured }));
            }
            Ok(Err(reason)) => reason,
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            Err(error) => error.to_string(),
        };
        self.notes.push(stays(why));
        Ok(None)
    }

    /// For each example, what the run read and gave.
    fn sets(&self, program: &CudaProgram, region: &Region, values: &[Values]) -> Result<Vec<Set>> {
        let buffers = &program.capture.trace.buffers;
        let addresses: HashMap<BufferId, u64> =
            program.capture.external.iter().map(|&(address, id)| (id, address)).collect();
        let unknown = |buffer| Error::Internal { message: format!("buffer {buffer} has no value") };
        let mut weights: HashMap<BufferId, Tensor> = HashMap::new();
        for input in region.graph.inputs.iter().filter(|input| buffers[input.buffer].role == Role::External) {
            let address = *addresses.get(&input.buffer).ok_or_else(|| unknown(input.buffer))?;
            let dtype = Arithmetic::Typed.dtype(input.element);
            weights.insert(input.buffer, copy_of(&program.device, address, dtype, input.len as usize)?);
        }
        let of = |example: &Example, values: &Values, buffer: BufferId| -> Result<Tensor> {
            let found = match buffers[buffer].role {
                Role::Input(i) => example.inputs.get(i).map(|input| input.flatten_all()).transpose()?,
                Role::Output(i) => values.outputs.get(i).map(|output| output.flatten_all()).transpose()?,
                _ => weights.get(&buffer).or(values.of.get(&buffer)).cloned(),
            };
            found.ok_or_else(|| unknown(buffer))
        };
        let set = |(example, values): (&Example, &Values)| {
            let of = |buffer| of(example, values, buffer);
            let inputs = region.graph.inputs.iter().map(|input| of(input.buffer)).collect::<Result<Vec<_>>>()?;
            let outputs = region.graph.outputs.iter().map(|output| of(output.buffer)).collect::<Result<_>>()?;
            let set = Set::new(&region.graph, inputs, outputs)?;
            program.device.synchronize()?;
            Ok(set)
        };
        self.examples.iter().zip(values).map(set).collect()
    }
}

/// The intermediate buffers that the regions read and give.
fn wanted(capture: &Capture, regions: &[Region]) -> Wanted {
    let mut wanted: Wanted = Vec::new();
    for Region { graph, .. } in regions {
        let inputs = graph.inputs.iter().map(|input| (input.buffer, input.element));
        let outputs = graph.outputs.iter().map(|output| (output.buffer, graph.element(output.value)));
        for (buffer, element) in inputs.chain(outputs) {
            let is_inside = capture.trace.buffers[buffer].role == Role::Intermediate;
            if is_inside && wanted.iter().all(|&(known, _)| known != buffer) {
                wanted.push((buffer, Arithmetic::Typed.dtype(element)));
            }
        }
    }
    wanted
}

/// What a report says of a rule.
fn told(
    (rule, Applied { times, saved }): (&'static str, Applied),
    Compared { candle, other, .. }: Compared,
) -> Rewrite {
    Rewrite { rule, times, saved, error: other.rms, candle_error: candle.rms }
}

/// One line a rule.
fn merged(rewrites: Vec<Rewrite>) -> Vec<Rewrite> {
    let mut merged: Vec<Rewrite> = Vec::new();
    for rewrite in rewrites {
        match merged.iter_mut().find(|known| known.rule == rewrite.rule) {
            Some(known) => known.add(&rewrite),
            None => merged.push(rewrite),
        }
    }
    merged
}
