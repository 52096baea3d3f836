//! How candle's errors scatter: the same run on operands that are moved by a rounding.

use candle::{DType, Result, Tensor};
use opara_plan::rewrite::{Graph, Input};

use super::accuracy::{compare, distance, errors, unit, Scatter};
use super::set::{has_convolutions_of_f32, inputs_of, nearby, varies, Run, Set};

impl Set {
    /// How candle's errors of this output scatter; `None` if its numbers are of other kinds on moved operands. Without memory for it,
    /// the run's own errors have to do.
    pub(super) fn scatter(&self, graph: &Graph, output: usize) -> Option<&Scatter> {
        let graph = self.item.as_ref().map_or(graph, |item| &item.graph);
        self.scatter.get_or_init(|| self.scattered(graph).unwrap_or_default()).get(output)?.as_ref()
    }

    fn scattered(&self, graph: &Graph) -> Result<Vec<Option<Scatter>>> {
        /// Four errors differ by about twice their standard deviation.
        const MOVED: usize = 3;
        let least = if has_convolutions_of_f32(graph) { unit(DType::F16) } else { 0. };
        if !graph.inputs.iter().any(varies) {
            return Ok(Vec::new());
        }
        let [references, candle] = self.outputs()?;
        let mut all = vec![[references, candle]];
        for number in 1..=MOVED {
            let moved = self.runs.iter().map(|run| {
                let inputs =
                    self.item.as_ref().map_or_else(|| Ok(run.inputs.clone()), |item| inputs_of(item, &run.inputs))?;
                Run::computed(graph, moved(graph, &inputs, (number, least))?, self.numbers)
            });
            let moved = Self { runs: moved.collect::<Result<_>>()?, ..Self::of(self.numbers, Run::default()) };
            all.push(moved.outputs()?);
        }
        (0..graph.outputs.len())
            .map(|at| scatter(all.iter().map(|[references, candle]| [&references[at], &candle[at]])))
            .collect()
    }

    /// Why no change of the run can be judged: double precision does not reproduce candle's results, nor does a rounding of its operands
    /// move them as far, or nothing is finite.
    ///
    /// # Errors
    /// A graph that cannot be computed.
    pub(super) fn unexplained(&self, graph: &Graph) -> Result<Option<String>> {
        let [references, candle] = self.outputs()?;
        for (at, (reference, candle)) in references.iter().zip(&candle).enumerate() {
            let tensors = [reference, candle, candle];
            let Err(reason) = compare(reference, candle, candle)? else { continue };
            let Some(scatter) = self.scatter(graph, at) else { return Ok(Some(reason)) };
            if let Err(reason) = scatter.compare(tensors)? {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }
}

/// The errors of one output, each beside its own result in double precision, the run's own first.
fn scatter<'a>(outputs: impl Iterator<Item = [&'a Tensor; 2]> + Clone) -> Result<Option<Scatter>> {
    let Some([_, own]) = outputs.clone().next() else { return Ok(None) };
    let (mut of, mut moved) = (Vec::new(), f64::INFINITY);
    for [reference, candle] in outputs {
        let Ok([errors, _]) = errors(unit(candle.dtype()), [reference, candle, candle])? else { return Ok(None) };
        if !of.is_empty() {
            let Ok(apart) = distance(own, candle)? else { return Ok(None) };
            moved = moved.min(apart);
        }
        of.push(errors);
    }
    Ok(Some(Scatter { errors: of, moved }))
}

/// The operands of a run, those that differ from pass to pass moved by a rounding at most, or by a `least` one: for each number in other
/// ways.
fn moved(graph: &Graph, inputs: &[Tensor], (number, least): (usize, f64)) -> Result<Vec<Tensor>> {
    // Masks and counts have no roundings.
    let is_whole = |x: &Tensor| {
        Ok::<_, candle::Error>(x.ne(&x.round()?)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? == 0.)
    };
    let moved = |(input, of): (&Tensor, &Input)| match varies(of) && !is_whole(input)? {
        true => nearby(input, number, 2. * unit(input.dtype()).max(least)),
        false => Ok(input.clone()),
    };
    inputs.iter().zip(&graph.inputs).map(moved).collect()
}
