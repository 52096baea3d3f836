//! Images between copies of a number, which are pooled.

use super::*;

/// Copies of a number of f32, converted.
fn fill(maker: &mut Maker, number: f32, len: u64) -> BufferId {
    let wide = maker.buffer(2 * len, Role::Intermediate);
    let numbers = View::contiguous(wide, Element::F32, 0, len);
    maker.op(Function::Fill(number.to_bits().into()), vec![], numbers.clone());
    maker.made(Function::Copy, vec![numbers], len)
}

/// `lines` runs of `width` elements between copies of a number.
fn between(
    maker: &mut Maker,
    x: BufferId,
    number: f32,
    [lines, width]: [u64; 2],
    [before, after]: [u64; 2],
) -> BufferId {
    let row = before + width + after;
    let around = [before, after].map(|len| if len > 0 { fill(maker, number, lines * len) } else { x });
    let y = maker.buffer(lines * row, Role::Intermediate);
    for (from, first, width) in [(around[0], 0, before), (x, before, width), (around[1], before + width, after)] {
        if width > 0 {
            let dims = |stride| [(lines, stride), (width, 1)];
            maker.op(Function::Copy, vec![view(from, 0, &dims(width))], view(y, first, &dims(row)));
        }
    }
    y
}

fn pooled(kernel: u64, stride: u64) -> Window {
    Window { stride: [stride; 2], ..window(kernel, 0) }
}

/// A pool of planes of `side` by `side` elements with padding, as candle runs it.
fn pool(
    maker: &mut Maker,
    x: BufferId,
    [planes, side]: [u64; 2],
    padding: [u64; 2],
    function: Function,
    number: f32,
) -> BufferId {
    let (Function::MaxPool(window) | Function::MeanPool(window)) = &function else { panic!("{function:?}") };
    let padded = padding[0] + side + padding[1];
    let out = (padded - window.kernel[0]) / window.stride[0] + 1;
    let tall = between(maker, x, number, [planes, side * side], padding.map(|lines| lines * side));
    let wide = between(maker, tall, number, [planes * padded, side], padding);
    let dims = [(1, planes * padded * padded), (planes, padded * padded), (padded, padded), (padded, 1)];
    maker.made(function, vec![view(wide, 0, &dims)], planes * out * out)
}

/// A convolution of images of `side` by `side` pixels with a bias and `max(x, 0)`.
fn convolution(maker: &mut Maker, x: BufferId, side: u64, [inner, out]: [u64; 2]) -> BufferId {
    let (weight, bias) = (maker.weight(inner * out), maker.weight(out));
    let (pixels, len) = (side * side, side * side * out);
    let image = view(x, 0, &[(1, inner * pixels), (inner, pixels), (side, side), (side, 1)]);
    let y = maker.made(Function::Convolution(window(1, 0)), vec![image, all(weight, inner * out)], len);
    let y = maker.made(binary("add"), vec![all(y, len), view(bias, 0, &[(out, 1), (pixels, 0)])], len);
    maker.made(Function::Unary("relu".into()), vec![all(y, len)], len)
}

/// Two branches of GoogLeNet behind a pool, and their concatenation.
fn block() -> Trace {
    let mut maker = Maker::default();
    let x = maker.buffer(3 * 64, Role::Input(0));
    let y = convolution(&mut maker, x, 8, [3, 4]);
    let y = pool(&mut maker, y, [4, 8], [0, 1], Function::MaxPool(pooled(3, 2)), f32::NEG_INFINITY);
    let one = convolution(&mut maker, y, 4, [4, 6]);
    let other = pool(&mut maker, y, [4, 4], [1, 1], Function::MaxPool(pooled(3, 1)), f32::NEG_INFINITY);
    let other = convolution(&mut maker, other, 4, [4, 2]);
    let both = maker.buffer(8 * 16, Role::Output(0));
    for (from, first, len) in [(one, 0, 6 * 16), (other, 6 * 16, 2 * 16)] {
        maker.op(Function::Copy, vec![all(from, len)], View::contiguous(both, F16, first, len));
    }
    maker.0
}

#[test]
fn branches_and_pools_are_one_run_in_which_padding_is_no_copy() {
    let trace = block();
    let regions = regions(&trace);
    assert_eq!((regions.len(), regions[0].ops.clone()), (1, 0..trace.ops.len()));
    let mut graph = regions[0].graph.clone();
    let applied: Vec<_> = apply(&mut graph, &[]).iter().map(|(name, of)| (*name, of.times, of.saved)).collect();
    // Two copies along each dimension of the first pool, three along those of the second, and a number at each of six edges, converted.
    let expected =
        [("convolution", 3, 0), ("pool-padding", 2, 22), ("convolution-bias", 3, 3), ("convolution-activation", 3, 3)];
    assert_eq!(applied, expected);
    let live = graph.live();
    let nodes: Vec<&Node> =
        graph.nodes.iter().zip(live).filter(|(_, is_live)| *is_live).map(|(node, _)| node).collect();
    // The convolutions, the pools, and the concatenation.
    assert_eq!(nodes.len(), 6, "{graph:?}");
    let pools: Vec<_> = nodes.iter().filter(|node| matches!(node.compute, Compute::Pool { .. })).collect();
    let of = |padding, stride, end| Compute::Pool {
        window: Window { padding: [padding; 2], ..pooled(3, stride) },
        end: [end; 2],
        is_max: true,
    };
    assert_eq!((&pools[0].compute, &pools[1].compute), (&of(0, 2, 1), &of(1, 1, 1)));
    let dims = |node: &Node| node.operands[0].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
    assert_eq!(dims(pools[0]), [(1, 256), (4, 64), (8, 8), (8, 1)]);
    assert_eq!(dims(pools[1]), [(1, 64), (4, 16), (4, 4), (4, 1)]);
}

/// How often the rule fits a pool of 3 planes of 6 x 6.
fn fits(function: Function, number: f32, padding: [u64; 2]) -> usize {
    let mut maker = Maker::default();
    let x = maker.buffer(3 * 36, Role::Input(0));
    let y = pool(&mut maker, x, [3, 6], padding, function, number);
    maker.output(y);
    let mut graph = regions(&maker.0)[0].graph.clone();
    apply(&mut graph, &[]).iter().map(|(name, applied)| if *name == "pool-padding" { applied.times } else { 0 }).sum()
}

#[test]
fn padding_of_maxima_is_lowest_and_that_of_means_zero() {
    let max = || Function::MaxPool(pooled(3, 1));
    let mean = || Function::MeanPool(pooled(3, 1));
    for lowest in [f32::NEG_INFINITY, f32::MIN, -65504.] {
        assert_eq!((fits(max(), lowest, [1, 1]), fits(mean(), lowest, [1, 1])), (1, 0), "{lowest}");
    }
    for other in [-65503., 1., f32::INFINITY, f32::NAN] {
        assert_eq!((fits(max(), other, [1, 1]), fits(mean(), other, [1, 1])), (0, 0), "{other}");
    }
    for zero in [0., -0.] {
        assert_eq!((fits(max(), zero, [1, 1]), fits(mean(), zero, [1, 1])), (0, 1), "{zero}");
    }
}

#[test]
fn a_window_in_the_padding_alone_stays() {
    let fits = |padding, window| fits(Function::MaxPool(window), f32::MIN, padding);
    assert_eq!((fits([2, 2], pooled(3, 1)), fits([0, 2], pooled(3, 2))), (1, 1));
    assert_eq!((fits([3, 0], pooled(3, 1)), fits([0, 3], pooled(3, 1))), (0, 0));
    // Windows that are not square.
    assert_eq!(fits([1, 1], Window { kernel: [3, 3], stride: [1, 2], ..pooled(3, 1) }), 0);
}

#[test]
fn fills_alone_are_no_run() {
    let mut maker = Maker::default();
    let filled = fill(&mut maker, 1., 8);
    maker.unknown(filled);
    assert_eq!(regions(&maker.0), []);
}

/// `lines` runs of `width` elements, and beside each `copies` of its first and its last `step` ones, as candle copies them.
fn between_edges(maker: &mut Maker, x: BufferId, [lines, width, step]: [u64; 3], copies: [u64; 2]) -> BufferId {
    let (of_x, row) = (width, width + (copies[0] + copies[1]) * step);
    let y = maker.buffer(lines * row, Role::Intermediate);
    let mut first = 0;
    let firsts = std::iter::repeat_n((0, step), copies[0] as usize).chain([(0, width)]);
    for (from, width) in firsts.chain(std::iter::repeat_n((width - step, step), copies[1] as usize)) {
        let dims = |stride| [(lines, stride), (width, 1)];
        maker.op(Function::Copy, vec![view(x, from, &dims(of_x))], view(y, first, &dims(row)));
        first += width;
    }
    y
}

#[test]
fn copies_of_edges_are_no_maxima_of_their_own() {
    // 3 planes of 6 x 6 between copies of their edges.
    let fits = |copies: [u64; 2], function: Function| {
        let mut maker = Maker::default();
        let x = maker.buffer(3 * 36, Role::Input(0));
        let x = maker.made(Function::Unary("relu".into()), vec![all(x, 3 * 36)], 3 * 36);
        let (Function::MaxPool(window) | Function::MeanPool(window)) = &function else { panic!("{function:?}") };
        let side = 6 + copies[0] + copies[1];
        let out = (side - window.kernel[0]) / window.stride[0] + 1;
        let wide = between_edges(&mut maker, x, [3 * 6, 6, 1], copies);
        let tall = between_edges(&mut maker, wide, [3, 6 * side, side], copies);
        let dims = [(1, 3 * side * side), (3, side * side), (side, side), (side, 1)];
        let y = maker.made(function, vec![view(tall, 0, &dims)], 3 * out * out);
        maker.output(y);
        let mut graph = regions(&maker.0)[0].graph.clone();
        let applied = apply(&mut graph, &[]);
        let pool = graph.nodes.iter().find_map(|node| match node.compute {
            Compute::Pool { window, end, .. } => Some([window.padding, end]),
            _ => None,
        });
        (applied.iter().any(|(name, _)| *name == "pool-padding"), pool)
    };
    let max = |kernel| Function::MaxPool(pooled(kernel, 2));
    assert_eq!(fits([1, 1], max(3)), (true, Some([[1, 1], [1, 1]])));
    assert_eq!(fits([0, 2], max(3)), (true, Some([[0, 0], [2, 2]])));
    assert_eq!(fits([2, 2], max(2)), (false, None), "windows of copies alone");
    assert_eq!(fits([1, 1], Function::MeanPool(pooled(3, 2))), (false, None), "a mean counts them");
}
