//! Scores of attention, however they are written.

use super::*;

/// Elements of the scores of 2 heads for 6 tokens.
const LEN: u64 = 72;

/// What is done to scores, and what attention makes of it.
type Case = (&'static str, fn(&mut Maker, BufferId) -> BufferId, Option<Scores>);

fn step(maker: &mut Maker, function: Function, reads: Vec<View>) -> BufferId {
    maker.made(function, reads, LEN)
}

fn times(maker: &mut Maker, x: BufferId, factor: f32) -> BufferId {
    step(maker, Function::Affine(factor, 0.), vec![all(x, LEN)])
}

/// A view of a weight that each head has.
fn of_each_head(maker: &mut Maker, element: Element) -> View {
    View { element, ..view(maker.weight(36), 0, &[(2, 0), (36, 1)]) }
}

fn added(maker: &mut Maker, x: BufferId, name: &str) -> BufferId {
    let mask = of_each_head(maker, F16);
    step(maker, binary(name), vec![all(x, LEN), mask])
}

fn filled(maker: &mut Maker, x: BufferId, bits: u64) -> BufferId {
    let mask = of_each_head(maker, Element::U8);
    step(maker, Function::MaskedFill(bits), vec![mask, all(x, LEN)])
}

/// Scores where a mask says so, else those of another buffer.
fn chosen(maker: &mut Maker, scores_first: bool, x: BufferId, other: View) -> BufferId {
    let mask = of_each_head(maker, Element::U32);
    let operands = if scores_first { [all(x, LEN), other] } else { [other, all(x, LEN)] };
    step(maker, Function::Where, [vec![mask], operands.into()].concat())
}

/// Scores by a number that the module holds.
fn divided(maker: &mut Maker, x: BufferId) -> BufferId {
    let divisor = maker.weight(1);
    step(maker, binary("div"), vec![all(x, LEN), view(divisor, 0, &[(LEN, 0)])])
}

/// A number that the module computes, over all scores.
fn number(maker: &mut Maker, bits: u64) -> View {
    let number = maker.made(Function::Fill(bits), Vec::new(), 1);
    view(number, 0, &[(LEN, 0)])
}

/// Ones and zeros that each head has: those that a comparison of integers does not give.
pub(super) fn truths(maker: &mut Maker) -> View {
    let integers = [0, 1].map(|_| View { element: Element::U32, ..all(maker.weight(72), 36) });
    let truths = maker.made(binary("lt"), integers.into(), 36);
    let opposite = maker.made(Function::Affine(-1., 1.), vec![all(truths, 36)], 36);
    view(opposite, 0, &[(2, 0), (36, 1)])
}

const LOW: u64 = 0xf8e2; // -40000
const HIDDEN: u64 = 0xfc00;

fn with(cap: Option<f32>, masks: &[Mask]) -> Option<Scores> {
    Some(Scores { cap, masks: masks.into(), ..Scores::of(1.) })
}

fn cases() -> Vec<Case> {
    let low = Mask::Filled { number: -40_000., where_zero: false };
    let hidden = Mask::Filled { number: f32::NEG_INFINITY, where_zero: false };
    vec![
        (
            "a factor of each side of a mask",
            |maker, x| {
                let x = times(maker, x, 0.5);
                let x = added(maker, x, "add");
                times(maker, x, 4.)
            },
            Some(Scores { masks: vec![Mask::Added(4.)], ..Scores::of(2.) }),
        ),
        ("a mask that is taken away", |maker, x| added(maker, x, "sub"), with(None, &[Mask::Added(-1.)])),
        (
            "two biases",
            |maker, x| {
                let x = added(maker, x, "add");
                added(maker, x, "add")
            },
            with(None, &[Mask::Added(1.); 2]),
        ),
        (
            "a cap",
            |maker, x| {
                let x = times(maker, x, 0.5);
                let x = step(maker, Function::Unary("tanh".into()), vec![all(x, LEN)]);
                let x = times(maker, x, 30.);
                added(maker, x, "add")
            },
            Some(Scores { cap: Some(30.), masks: vec![Mask::Added(1.)], ..Scores::of(0.5) }),
        ),
        (
            "a number of the module",
            |maker, x| {
                let low = number(maker, LOW);
                chosen(maker, false, x, low)
            },
            with(None, &[low]),
        ),
        (
            "a number elsewhere",
            |maker, x| {
                let low = number(maker, LOW);
                chosen(maker, true, x, low)
            },
            with(None, &[Mask::Filled { number: -40_000., where_zero: true }]),
        ),
        (
            "numbers that are not known",
            |maker, x| {
                let others = of_each_head(maker, F16);
                chosen(maker, false, x, others)
            },
            with(None, &[Mask::Replaced { where_zero: false }]),
        ),
        (
            "a bias, and what a mask hides",
            |maker, x| {
                let x = added(maker, x, "add");
                filled(maker, x, HIDDEN)
            },
            with(None, &[Mask::Added(1.), hidden]),
        ),
        (
            "a divisor that the module holds",
            |maker, x| {
                let x = divided(maker, x);
                added(maker, x, "add")
            },
            Some(Scores { are_divisors: vec![true], masks: vec![Mask::Added(1.)], ..Scores::of(1.) }),
        ),
        (
            "a divisor of what is masked",
            |maker, x| {
                let x = added(maker, x, "add");
                divided(maker, x)
            },
            None,
        ),
        (
            "a bias, and a low number",
            |maker, x| {
                let x = added(maker, x, "add");
                filled(maker, x, LOW)
            },
            with(None, &[Mask::Added(1.), low]),
        ),
        (
            "a low number, and a bias",
            |maker, x| {
                let x = filled(maker, x, LOW);
                added(maker, x, "add")
            },
            with(None, &[low, Mask::Added(1.)]),
        ),
        (
            "a factor of ones and zeros",
            |maker, x| {
                let factor = truths(maker);
                let x = step(maker, binary("mul"), vec![factor, all(x, LEN)]);
                added(maker, x, "sub")
            },
            with(None, &[Mask::Filled { number: 0., where_zero: true }, Mask::Added(-1.)]),
        ),
        ("a factor of any numbers", |maker, x| added(maker, x, "mul"), None),
        (
            "a cap of what is masked",
            |maker, x| {
                let x = added(maker, x, "add");
                step(maker, Function::Unary("tanh".into()), vec![all(x, LEN)])
            },
            None,
        ),
        ("scores of the other sign", |maker, x| times(maker, x, -1.), None),
        ("an exponential", |maker, x| step(maker, Function::Unary("exp".into()), vec![all(x, LEN)]), None),
    ]
}

/// Attention of 2 heads of 32 for 6 tokens, of which `change` makes something else of scores.
fn attention(change: impl Fn(&mut Maker, BufferId) -> BufferId) -> Graph {
    let mut maker = Maker::default();
    let [q, k, v] = [0, 1, 2].map(|input| maker.buffer(384, Role::Input(input)));
    let heads = |buffer| view(buffer, 0, &[(2, 192), (6, 32), (32, 1)]);
    let columns = view(k, 0, &[(2, 192), (32, 1), (6, 32)]);
    let scores = maker.made(Function::Matmul, vec![heads(q), columns], LEN);
    let scores = change(&mut maker, scores);
    let p = maker.made(Function::Softmax(6), vec![all(scores, LEN)], LEN);
    let y = maker.made(Function::Matmul, vec![view(p, 0, &[(2, 36), (6, 6), (6, 1)]), heads(v)], 384);
    maker.output(y);
    regions(&maker.0)[0].graph.clone()
}

/// The scores of the attention that rules make of a graph, if they do, and how many operands it has.
fn found(mut graph: Graph) -> (Option<Scores>, usize) {
    apply(&mut graph, &[]);
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    let found = match &graph.nodes[at].compute {
        Compute::Attention(scores) => Some(scores.clone()),
        _ => None,
    };
    (found, graph.nodes[at].operands.len())
}

#[test]
fn scores_are_recognised_by_what_they_mean() {
    for (said, change, expected) in cases() {
        let operands = expected
            .as_ref()
            .map_or(2, |of| 3 + of.are_divisors.len() + of.masks.iter().map(|mask| mask.operands()).sum::<usize>());
        assert_eq!(found(attention(change)), (expected, operands), "{said}");
    }
}

#[test]
fn numbers_from_the_host_are_told() {
    let uploaded = |maker: &mut Maker, x| {
        let low = maker.weight(1);
        chosen(maker, false, x, view(low, 0, &[(LEN, 0)]))
    };
    let mut graph = attention(uploaded);
    assert_eq!(found(graph.clone()).0, with(None, &[Mask::Replaced { where_zero: false }]));
    graph.tell(|input| (input.len == 1).then_some(HIDDEN));
    let hidden = Mask::Filled { number: f32::NEG_INFINITY, where_zero: false };
    assert_eq!(found(graph), (with(None, &[hidden]), 4));
}
