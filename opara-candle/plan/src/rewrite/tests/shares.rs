//! Softmax of scores, however it is written.

use super::scores::truths;
use super::*;

/// Scores of 2 heads for 6 tokens.
const LEN: u64 = 72;

/// What makes weights of scores, and the masks that attention has then; `None` if it is no attention.
type Case = (&'static str, fn(&mut Maker, BufferId) -> BufferId, Option<Vec<Mask>>);

fn step(maker: &mut Maker, name: &str, reads: Vec<View>) -> BufferId {
    let function = if reads.len() == 1 { Function::Unary(name.into()) } else { binary(name) };
    maker.made(function, reads, LEN)
}

/// A number of each row, over the row.
fn of_rows(buffer: BufferId) -> View {
    view(buffer, 0, &[(12, 1), (6, 0)])
}

fn row(maker: &mut Maker, function: Function, x: BufferId) -> View {
    of_rows(maker.made(function, vec![all(x, LEN)], 12))
}

fn apart(maker: &mut Maker, x: BufferId) -> BufferId {
    let most = row(maker, Function::RowMax(6), x);
    step(maker, "sub", vec![all(x, LEN), most])
}

fn over_sum(maker: &mut Maker, e: BufferId) -> BufferId {
    let sum = row(maker, Function::RowSum(6), e);
    step(maker, "div", vec![all(e, LEN), sum])
}

fn exp(maker: &mut Maker, x: BufferId) -> BufferId {
    step(maker, "exp", vec![all(x, LEN)])
}

fn times(maker: &mut Maker, x: BufferId, by: View) -> BufferId {
    step(maker, "mul", vec![all(x, LEN), by])
}

fn cases() -> Vec<Case> {
    let hidden = Mask::Filled { number: f32::NEG_INFINITY, where_zero: true };
    vec![
        ("one launch", |maker, x| maker.made(Function::Softmax(6), vec![all(x, LEN)], LEN), Some(Vec::new())),
        (
            "exponentials of what is less than the largest",
            |maker, x| {
                let x = apart(maker, x);
                let e = exp(maker, x);
                over_sum(maker, e)
            },
            Some(Vec::new()),
        ),
        (
            "exponentials",
            |maker, x| {
                let e = exp(maker, x);
                over_sum(maker, e)
            },
            Some(Vec::new()),
        ),
        (
            "logarithms",
            |maker, x| {
                let x = apart(maker, x);
                let e = exp(maker, x);
                let sum = maker.made(Function::RowSum(6), vec![all(e, LEN)], 12);
                let log = maker.made(Function::Unary("log".into()), vec![all(sum, 12)], 12);
                let y = step(maker, "sub", vec![all(x, LEN), of_rows(log)]);
                exp(maker, y)
            },
            Some(Vec::new()),
        ),
        (
            "exponentials that are taken out",
            |maker, x| {
                let x = apart(maker, x);
                let (e, by) = (exp(maker, x), truths(maker));
                let e = times(maker, e, by);
                over_sum(maker, e)
            },
            Some(vec![hidden]),
        ),
        (
            "exponentials times any numbers",
            |maker, x| {
                let x = apart(maker, x);
                let (e, by) = (exp(maker, x), maker.weight(36));
                let e = times(maker, e, view(by, 0, &[(2, 0), (36, 1)]));
                over_sum(maker, e)
            },
            None,
        ),
        (
            "weights that are taken out",
            |maker, x| {
                let p = maker.made(Function::Softmax(6), vec![all(x, LEN)], LEN);
                let by = truths(maker);
                times(maker, p, by)
            },
            None,
        ),
    ]
}

#[test]
fn products_of_keys_and_queries_are_scores_of_queries() {
    let mut maker = Maker::default();
    let [q, k, v] =
        [(0, 4 * 32), (1, 6 * 32), (2, 6 * 32)].map(|(input, row)| maker.buffer(2 * row, Role::Input(input)));
    let rows = |buffer, tokens| view(buffer, 0, &[(2, tokens * 32), (tokens, 32), (32, 1)]);
    let columns = view(q, 0, &[(2, 128), (32, 1), (4, 32)]);
    let products = maker.made(Function::Matmul, vec![rows(k, 6), columns], 48);
    let across = view(products, 0, &[(2, 24), (4, 1), (6, 4)]);
    let scores = maker.made(Function::Copy, vec![across], 48);
    let p = maker.made(Function::Softmax(6), vec![all(scores, 48)], 48);
    let y = maker.made(Function::Matmul, vec![view(p, 0, &[(2, 24), (4, 6), (6, 1)]), rows(v, 6)], 256);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    apply(&mut graph, &[]);
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    assert_eq!(graph.nodes[at].compute, Compute::Attention(Scores::of(1.)));
    let lens = |of: &Operand| of.dims.iter().map(|dim| dim.len).collect::<Vec<_>>();
    let heads: Vec<_> = graph.nodes[at].operands.iter().map(lens).collect();
    assert_eq!(heads, [[2, 4, 32], [2, 6, 32], [2, 6, 32]]);
}

#[test]
fn softmax_is_recognised_by_what_it_means() {
    for (said, change, expected) in cases() {
        let mut maker = Maker::default();
        let [q, k] = [0, 1].map(|input| maker.buffer(384, Role::Input(input)));
        // Heads of values have another size than those of queries and keys.
        let v = maker.buffer(192, Role::Input(2));
        let heads = |buffer, size| view(buffer, 0, &[(2, 6 * size), (6, size), (size, 1)]);
        let columns = view(k, 0, &[(2, 192), (32, 1), (6, 32)]);
        let scores = maker.made(Function::Matmul, vec![heads(q, 32), columns], LEN);
        let p = change(&mut maker, scores);
        let y = maker.made(Function::Matmul, vec![view(p, 0, &[(2, 36), (6, 6), (6, 1)]), heads(v, 16)], 192);
        maker.output(y);
        let mut graph = regions(&maker.0)[0].graph.clone();
        apply(&mut graph, &[]);
        let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
        let found = match &graph.nodes[at].compute {
            Compute::Attention(scores) => Some(scores.masks.clone()),
            _ => None,
        };
        assert_eq!(found, expected, "{said}");
    }
}
