//! Norms of rows and of groups of channels that are written as sums, squares and quotients, norms of sums, and softmax in parts.

use super::channels::by_channel;
use super::facts::Facts;
use super::found::Found;
use super::means::{self, OF_MEANS};
use super::pattern::{pattern, Pattern};
use super::rule::{rule, Rule};
use crate::rewrite::compute::Compute;
use crate::rewrite::graph::{strides_over, Node, Operand, Value};
use crate::trace::{Dim, Function};

pub(super) const RULES: [Rule; 5] = [
    // (x - mean(x)) / sqrt(var(x) + e) * w + b -> layer_norm(x); x / sqrt(mean(x * x) + e) * w -> rms_norm(x)
    rule!("row-norm": add(mul({ NORMAL }, w), b) => join_layer_norm; mul({ NORMAL }, w) => join_norm),
    // the same over groups of channels, and silu of it -> group_norm(x)
    rule!("group-norm": add(mul({ NORMAL }, w), b) => join_group_norm; silu(y = group_norm()) => add_silu),
    // f * rowsum(x), g * colsum(f * rowsum(x)) -> one launch
    rule!("row-mean": { OF_MEANS } => means::join_planes; times(inner = row_sum(x)) => means::join_rows),
    // (x - max(x) - log(rowsum(exp(x - max(x)))))[class] -> one launch
    rule!("log-softmax-at": gather({ LOG_SOFTMAX }) => at_class),
    // norm(x + y) -> one launch, with x + y as a second result of an RMS norm
    rule!("residual-norm": norm(add(a, b)) => add_sum; add(a, b) => give_norm),
];

/// What a layer norm multiplies with its weight.
const LAYER: Pattern =
    pattern!(div(d = sub(x, per_row(mean(row_sum(x)))), per_row(sqrt(e = plus(mean(row_sum(sqr(d))))))));

/// The same of an RMS norm.
const RMS: Pattern = pattern!(div(x, per_row(sqrt(e = plus(mean(row_sum(sqr(x))))))));

/// One of them, which may be of another type in between.
const NORMAL: Pattern = pattern!(either(cast = copy(either({ LAYER }, { RMS })), { LAYER }, { RMS }));

/// The logarithm of the softmax of rows.
const LOG_SOFTMAX: Pattern = pattern!(sub(d = sub(x, per_row(row_max(x))), per_row(log(row_sum(exp(d))))));

/// A norm before its weight and bias.
struct Normal {
    /// The operand.
    x: Operand,
    /// Elements of a row.
    columns: u64,
    /// Epsilon, added to the mean square.
    epsilon: f32,
    /// Whether the mean stays.
    is_rms: bool,
}

impl Normal {
    fn of(found: &Found) -> Option<Self> {
        let (columns, [_, epsilon]) = (found.columns()?, found.affine("e")?);
        let mut x = found.operand("x")?;
        if found.operand("cast").is_some() {
            let before = found.facts.whole(x).filter(|&before| found.facts.is_of(before, "copy"))?;
            x = found.facts.node(before).operands.first()?;
        }
        let is_rms = found.operand("d").is_none();
        let is_typed = found.facts.have_type_of(found.root(), [x]);
        is_typed.then(|| Self { x: x.clone(), columns, epsilon, is_rms })
    }

    /// Whether an operand of so many elements has one number a column.
    fn is_by_column(&self, vector: &Operand, len: u64) -> bool {
        let strides = strides_over(&vector.dims, &[len / self.columns, self.columns]);
        strides.is_some_and(|strides| strides[0] == 0 && strides[1] > 0)
    }

    /// The norm with these numbers, each for a column.
    fn with(self, found: &Found, vectors: &[&Operand]) -> Option<Node> {
        let Self { columns, epsilon, is_rms, .. } = self;
        let are_by_column = vectors.iter().all(|vector| self.is_by_column(vector, found.root().len));
        let operands = [&self.x].into_iter().chain(vectors.iter().copied()).cloned().collect();
        are_by_column.then(|| found.replace_by(Compute::RowNorm { columns, epsilon, is_rms }, operands))
    }
}

fn join_layer_norm(found: &Found) -> Option<Node> {
    let normal = Normal::of(found).filter(|normal| !normal.is_rms)?;
    normal.with(found, &[found.operand("w")?, found.operand("b")?])
}

fn join_norm(found: &Found) -> Option<Node> {
    let (facts, normal) = (found.facts, Normal::of(found)?);
    // Its bias makes it part of that.
    let has_bias = |&user: &usize| {
        let is_sum = user < facts.graph.nodes.len() && facts.is_of(user, "add");
        is_sum && facts.node(user).operands.iter().any(|bias| normal.is_by_column(bias, facts.node(user).len))
    };
    let stays = !normal.is_rms && facts.users[found.at].iter().any(has_bias);
    (!stays).then(|| normal.with(found, &[found.operand("w")?]))?
}

fn join_group_norm(found: &Found) -> Option<Node> {
    let len = found.root().len;
    let Normal { x, columns, epsilon, .. } =
        Normal::of(found).filter(|normal| !normal.is_rms && normal.x.is_run_of(len))?;
    let (weight, bias) = (found.operand("w")?, found.operand("b")?);
    let shape @ [images, channels, pixels] = shape(weight, len)?;
    let groups = (len / columns).checked_div(images)?;
    let are_whole = groups > 0 && channels % groups == 0 && channels / groups * pixels == columns;
    let strides = [channels * pixels, pixels, 1];
    let dims = shape.into_iter().zip(strides).map(|(len, stride)| Dim { len, stride }).collect();
    let operands = vec![Operand { dims, ..x }, by_channel(weight, shape)?, by_channel(bias, shape)?];
    are_whole.then(|| found.replace_by(Compute::GroupNorm { groups, epsilon, silu: false }, operands))
}

/// Images, channels and pixels of a tensor of so many elements that is scaled by one number a channel.
fn shape(scale: &Operand, len: u64) -> Option<[u64; 3]> {
    let mut dims = scale.dims.iter().filter(|dim| dim.len != 1);
    let before = dims.clone().take_while(|dim| dim.stride == 0).count();
    let channels = dims.nth(before).map(|dim| dim.len)?;
    let pixels = dims.map(|dim| dim.len).product::<u64>();
    Some([len.checked_div(channels * pixels)?, channels, pixels])
}

fn add_silu(found: &Found) -> Option<Node> {
    let before = found.node("y")?;
    let Compute::GroupNorm { groups, epsilon, silu: false } = before.compute else { return None };
    Some(found.replace_by(Compute::GroupNorm { groups, epsilon, silu: true }, before.operands.clone()))
}

/// Of rows that were converted before, those from before.
fn at_class(found: &Found) -> Option<Node> {
    let (facts, root, x) = (found.facts, found.root(), found.operand("x")?);
    let Compute::Recorded(Function::Gather(of)) = root.compute else { return None };
    let columns = found.node("d")?.len.checked_div(root.len)?;
    let takes_one = [of.left, of.from, of.to, of.right] == [root.len, columns, 1, 1];
    let is_cast = |&at: &usize| {
        let before = &facts.node(at).operands[0];
        facts.is_of(at, "copy") && facts.graph.element(before.value).is_float()
    };
    let x = facts.whole(x).filter(is_cast).map_or(x, |at| &facts.node(at).operands[0]);
    let classes = root.operands.get(1).filter(|classes| classes.len() == root.len)?;
    let operands = vec![x.clone(), classes.clone()];
    takes_one.then(|| found.replace_by(Compute::LogSoftmaxAt { columns }, operands))
}

/// A norm of a sum that nothing else reads.
fn add_sum(found: &Found) -> Option<Node> {
    let Norm { vectors, columns, epsilon, is_rms, .. } = Norm::of(found.facts, found.at)?;
    let [x, residual] = summands(found)?;
    let operands = [x, residual].into_iter().chain(vectors).cloned().collect();
    Some(found.replace_by(Compute::NormOfSum { columns, epsilon, is_rms }, operands))
}

/// A sum that others read, too, beside the RMS norm of it, if there is one.
fn give_norm(found: &Found) -> Option<Node> {
    let (facts, at) = (found.facts, found.at);
    let [x, residual] = summands(found)?;
    let is_norm = |of: usize| of < facts.users.len() && Norm::of(facts, of).is_some_and(|norm| norm.is_rms);
    let mut norms = facts.users[at].iter().copied().filter(|&of| is_norm(of));
    let (Some(norm), None) = (norms.next(), norms.next()) else { return None };
    let Norm { operand, vectors: [weight], columns, epsilon, .. } = Norm::of(facts, norm)? else { return None };
    let comes_before = !matches!(weight.value, Value::Node(of) if of >= at);
    // Of a sum that nothing else reads, the norm is enough.
    let fits = facts.whole(operand) == Some(at) && facts.users[at].len() > 1 && comes_before;
    let operands = vec![x.clone(), residual.clone(), weight.clone()];
    fits.then(|| found.replace_by(Compute::SumBesideNorm { norm, columns, epsilon }, operands))
}

/// A norm of rows.
pub(super) struct Norm<'a> {
    operand: &'a Operand,
    /// The weight, and the bias of a layer norm.
    vectors: &'a [Operand],
    pub columns: u64,
    pub epsilon: f32,
    pub is_rms: bool,
}

impl<'a> Norm<'a> {
    /// The one that a node is, if all of it is of one type.
    pub fn of(facts: &'a Facts, at: usize) -> Option<Self> {
        let node = facts.node(at);
        let (operand, vectors) = node.operands.split_first()?;
        let (columns, epsilon, is_rms) = match node.compute {
            Compute::Recorded(Function::LayerNorm(columns, epsilon)) => (columns, epsilon, false),
            Compute::Recorded(Function::RmsNorm(columns, epsilon)) => (columns, epsilon, true),
            Compute::RowNorm { columns, epsilon, is_rms } => (columns, epsilon, is_rms),
            _ => return None,
        };
        // A layer norm without a bias has no launch with a sum.
        if vectors.len() != if is_rms { 1 } else { 2 } {
            return None;
        }
        let norm = Self { operand, vectors, columns, epsilon, is_rms };
        facts.have_type_of(node, &node.operands).then_some(norm)
    }
}

/// The summands, if neither repeats.
fn summands<'a>(found: &Found<'a>) -> Option<[&'a Operand; 2]> {
    let summands = [found.operand("a")?, found.operand("b")?];
    let len = summands[0].len();
    summands.iter().all(|summand| summand.is_run_of(len)).then_some(summands)
}
