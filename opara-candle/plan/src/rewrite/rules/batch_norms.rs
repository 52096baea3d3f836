//! Norms of images by the moments of the batch, which running statistics read, too.

use super::facts::Facts;
use super::found::Found;
use super::pattern::{pattern, Pattern};
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::Dim;

pub(super) const RULES: [Rule; 2] = [
    // of each channel, (x - mean(x)) / sqrt(var(x) + e) * w + b -> batch_norm(x, mean(x), var(x), w, b)
    rule!("batch-norm": { SCALED } => join_scaled; { BARE } => join_bare),
    // of each channel, mean(x) and var(x) -> one pass over the images
    rule!("batch-moments": any() => join_moments),
];

/// What a batch norm multiplies with its weight.
const BARE: Pattern = pattern!(div(d, per_row(sqrt(e = plus(v)))));

/// With its weight and bias; it may be of another type before.
const SCALED: Pattern = pattern!(add(mul(either(copy({ BARE }), { BARE }), w), b));

/// Readers between a norm before its weight and the one with its bias.
const BEHIND: usize = 3;

/// A norm by moments, whose rows are channels.
struct Batch {
    /// `(images, channels, pixels)`.
    x: Operand,
    mean: Operand,
    variance: Operand,
    epsilon: f32,
    /// Channels, and elements of one.
    rows: [u64; 2],
}

impl Batch {
    fn of(found: &Found) -> Option<Self> {
        let (facts, columns, [_, epsilon]) = (found.facts, found.columns()?, found.affine("e")?);
        let (d, variance) = (found.operand("d")?, found.operand("v")?);
        let rows = [found.root().len.checked_div(columns)?, columns];
        let centred = facts.whole(d).filter(|&of| facts.is_of(of, "sub"))?;
        let [x, mean] = &facts.node(centred).operands[..] else { return None };
        let squares = facts.whole(summed(facts, facts.whole(variance)?)?).filter(|&of| facts.is_of(of, "sqr"))?;
        if facts.whole(facts.node(squares).operands.first()?)? != centred {
            return None;
        }
        let is_by_row = mean.first == 0 && strides_over(&mean.dims, &rows)? == [1, 0];
        let Value::Node(of_mean) = mean.value else { return None };
        let mean = Operand::whole(mean.value, rows[0]);
        let fits = is_by_row && facts.whole(&mean) == Some(of_mean) && is_same(summed(facts, of_mean)?, x, &rows);
        let x = images(facts, x, found.root(), rows[0])?;
        fits.then(|| Self { x, mean, variance: variance.clone(), epsilon, rows })
    }

    /// An operand with one number a channel, as a vector.
    fn by_channel(&self, vector: &Operand) -> Option<Operand> {
        let [stride, 0] = strides_over(&vector.dims, &self.rows)?[..] else { return None };
        Some(Operand { dims: vec![Dim { len: self.rows[0], stride }], ..vector.clone() })
    }

    fn with(self, found: &Found, vectors: Vec<Operand>) -> Node {
        let Self { x, mean, variance, epsilon, .. } = self;
        found.replace_by(Compute::BatchNorm { epsilon }, [vec![x, mean, variance], vectors].concat())
    }
}

/// The rows that a node is the means of.
fn summed<'a>(facts: &'a Facts, mean: usize) -> Option<&'a Operand> {
    let sum = facts.is_of(mean, "mean").then(|| facts.whole(facts.node(mean).operands.first()?)).flatten()?;
    facts.node(sum).operands.first()
}

/// Whether two views are the same elements over a shape.
fn is_same(a: &Operand, b: &Operand, shape: &[u64]) -> bool {
    let strides = |of: &Operand| strides_over(&of.dims, shape);
    a.value == b.value && a.first == b.first && strides(a).is_some() && strides(a) == strides(b)
}

/// The images, `(images, channels, pixels)`, that were copied as rows of channels, of the type of the norm's results.
fn images(facts: &Facts, rows: &Operand, root: &Node, channels: u64) -> Option<Operand> {
    let copy = |of: &Operand| {
        let of = facts.whole(&Operand::whole(of.value, facts.graph.len(of.value)))?;
        facts.is_of(of, "copy").then(|| facts.node(of).operands.first()).flatten()
    };
    facts.whole(rows)?;
    let mut x = copy(rows)?.clone();
    if !facts.have_type_of(root, [&x]) {
        let before = copy(&x).filter(|before| before.is_whole(facts.graph.len(before.value)))?;
        x.value = before.value;
    }
    let one = Dim { len: 1, stride: 1 };
    let [of_channels, images, pixels] = match x.dims[..] {
        [channels, images] => [channels, images, one],
        [channels, images, pixels] => [channels, images, pixels],
        _ => return None,
    };
    let fits = facts.have_type_of(root, [&x]) && of_channels.len == channels;
    fits.then(|| Operand { dims: vec![images, of_channels, pixels], ..x })
}

fn join_scaled(found: &Found) -> Option<Node> {
    let batch = Batch::of(found)?;
    let vectors = vec![batch.by_channel(found.operand("w")?)?, batch.by_channel(found.operand("b")?)?];
    found.facts.have_type_of(found.root(), &vectors).then(|| batch.with(found, vectors))
}

fn join_bare(found: &Found) -> Option<Node> {
    let (facts, batch) = (found.facts, Batch::of(found)?);
    // Its weight and bias make it part of that.
    let behind = std::iter::successors(facts.reader(found.at), |&at| facts.reader(at)).take(BEHIND);
    let mut scaled = behind.flat_map(|at| Found::find_all(facts, &SCALED, at));
    (!scaled.any(|found| join_scaled(&found).is_some())).then(|| batch.with(found, Vec::new()))
}

fn join_moments(found: &Found) -> Option<Node> {
    let (facts, at) = (found.facts, found.at);
    // What nothing else reads: the sum, and before that of a variance the squares and the differences from the mean.
    let before = |at: usize| facts.only(facts.node(at).operands.first()?);
    let sum = facts.is_of(at, "mean").then(|| before(at)).flatten()?;
    let norms = facts.users[at].iter().filter_map(|&of| facts.graph.nodes.get(of));
    norms.filter(|norm| matches!(norm.compute, Compute::BatchNorm { .. })).find_map(|norm| {
        let [x, mean, variance, ..] = &norm.operands[..] else { return None };
        let variance = facts.whole(variance)?;
        let moment = match facts.whole(mean)? {
            mean if mean == at => (variance > at).then_some(Some(variance))?,
            _ if variance == at => {
                before(before(sum)?)?;
                None
            }
            _ => return None,
        };
        Some(found.replace_by(Compute::BatchMoments { variance: moment }, vec![x.clone()]))
    })
}
