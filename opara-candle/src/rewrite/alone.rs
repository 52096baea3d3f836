//! Changed nodes by themselves: which are no less accurate than candle's.

use candle::{DType, Result, Tensor};
use hashbrown::{HashMap, HashSet};
use opara_plan::rewrite::{Compared, Graph, Value};

use super::accuracy::compare_beside;
use super::evaluate::{last_readers, Arithmetic};
use super::evaluation::Evaluation;
use super::operators::compute;
use super::set::{in_one_row, nearby, runs_for, Set, ENOUGH, NEARBY};
use super::verdicts::Verdict;

/// As many numbers tell errors apart of nodes whose rows each share an error.
const ENOUGH_OF_ROWS: usize = 4 * ENOUGH;

/// Tells what is said against a node of a changed graph: that it is less accurate than candle's on one of the sets.
pub(super) fn said_against<'a>(
    original: &'a Graph,
    sets: &'a [Set],
) -> impl FnMut(&Graph, usize) -> Result<Option<String>> + 'a {
    let mut candles: Vec<Candles> = sets.iter().map(|set| Candles::new(original, set)).collect();
    move |changed, at| {
        let mut verdicts = candles.iter_mut().map(|candles| candles.judge(changed, at, 0.));
        verdicts.find_map(|verdict| verdict.map(std::result::Result::err).transpose()).transpose()
    }
}

/// candle's values of a run's nodes, one after the other, each kept until its last reader.
pub(super) struct Candles<'a> {
    original: &'a Graph,
    set: &'a Set,
    live: Vec<bool>,
    typed: Evaluation<'a>,
    /// Nodes that are computed.
    computed: usize,
    last_readers: HashMap<Value, usize>,
}

impl<'a> Candles<'a> {
    pub fn new(original: &'a Graph, set: &'a Set) -> Self {
        let (live, last_readers) = (original.live(), HashMap::new());
        Self { original, set, live, typed: typed(original, set), computed: 0, last_readers }
    }

    /// Holds a changed node against double precision: see [`verdict`]. Nodes that come later are computed from there. What follows is off
    /// by `noise` ([`compare_beside`]).
    pub fn judge(&mut self, changed: &Graph, at: usize, noise: f64) -> Result<Verdict> {
        let (node, verdicts) = (&changed.nodes[at], &self.set.verdicts);
        if noise > 0. {
            return self.judge_anew(changed, at, noise);
        }
        if let Some(known) = verdicts.find(at, node) {
            return Ok(known);
        }
        let verdict = self.judge_anew(changed, at, noise)?;
        verdicts.keep(at, node, &verdict);
        Ok(verdict)
    }

    fn judge_anew(&mut self, changed: &Graph, at: usize, noise: f64) -> Result<Verdict> {
        if self.computed == 0 || at + 1 < self.computed {
            (self.typed, self.computed) = (typed(self.original, self.set), 0);
            self.last_readers = last_readers(self.original);
            for (value, reader) in last_readers(changed) {
                let last = self.last_readers.entry(value).or_insert(reader);
                *last = reader.max(*last);
            }
        }
        while self.computed <= at {
            if let Some(before) = self.computed.checked_sub(1) {
                self.forget_read_at(before, changed);
            }
            if self.live[self.computed] {
                self.typed.tensor(Value::Node(self.computed))?;
            }
            self.computed += 1;
        }
        verdict(self.original, (changed, at), &mut self.typed, self.set, noise)
    }

    fn forget_read_at(&mut self, at: usize, changed: &Graph) {
        for node in [&self.original.nodes[at], &changed.nodes[at]] {
            for value in node.operands.iter().map(|operand| operand.value) {
                if self.last_readers.get(&value) == Some(&at) {
                    self.typed.forget(value);
                }
            }
        }
    }
}

fn typed<'a>(original: &'a Graph, set: &'a Set) -> Evaluation<'a> {
    Evaluation::new(original, set.inputs(), Arithmetic::Typed, set.numbers, compute)
}

/// Holds a changed node against double precision, on operands as candle's operators give them. A node of few numbers is held on operands
/// nearby, too, all of them together: the numbers of one row share the error of its norm, or of its attention's weights.
fn verdict(
    original: &Graph,
    (changed, at): (&Graph, usize),
    typed: &mut Evaluation,
    set: &Set,
    noise: f64,
) -> Result<Verdict> {
    let constant = changed.constant();
    let has_others = |value: &Value| !changed.is_constant(*value, &constant) && changed.element(*value).is_float();
    let operands: HashSet<Value> = changed.nodes[at].operands.iter().map(|operand| operand.value).collect();
    let operands = operands.into_iter().map(|value| Ok((value, typed.tensor(value)?))).collect::<Result<Vec<_>>>()?;
    let varying = operands.iter().filter(|(value, _)| has_others(value)).map(|(_, tensor)| tensor.elem_count()).sum();
    let values: Vec<Value> =
        std::iter::once(at).chain(changed.nodes[at].given_beside().iter().copied()).map(Value::Node).collect();
    let first = typed.tensor(values[0])?;
    let run = |number: usize| -> Result<Vec<[Tensor; 3]>> {
        let of = |graph, arithmetic| Evaluation::new(graph, set.inputs(), arithmetic, set.numbers, compute);
        let double = Arithmetic::In(DType::F64);
        let (mut reference, mut candle) = (of(original, double), of(original, Arithmetic::Typed));
        let mut other = of(changed, Arithmetic::Typed);
        for (value, tensor) in &operands {
            let tensor = if has_others(value) { nearby(tensor, number, NEARBY)? } else { tensor.clone() };
            reference.assume(*value, tensor.to_dtype(double.dtype(original.element(*value)))?);
            candle.assume(*value, tensor.clone());
            other.assume(*value, tensor);
        }
        if number == 0 {
            candle.assume(values[0], first.clone());
        }
        let of = |&value: &Value| {
            // A node that gives others computes them with its own value.
            other.tensor(values[0])?;
            Ok([reference.tensor(value)?, candle.tensor(value)?, other.tensor(value)?])
        };
        values.iter().map(of).collect()
    };
    let runs = (0..runs_for(first.elem_count(), ENOUGH_OF_ROWS, varying)).map(run).collect::<Result<Vec<_>>>()?;
    let mut worst = Compared::default();
    for value in 0..values.len() {
        let [reference, candle, other] = [0, 1, 2].map(|at| in_one_row(runs.iter().map(|run| &run[value][at])));
        match compare_beside(noise, [&reference?, &candle?, &other?])? {
            Ok(compared) => worst = worst.or_worse(compared),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(worst))
}
