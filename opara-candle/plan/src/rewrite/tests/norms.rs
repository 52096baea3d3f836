//! Norms that are written as sums, squares and quotients.

use super::*;

/// What a written norm is of.
#[derive(Clone, Copy)]
struct Of {
    rows: u64,
    columns: u64,
    is_rms: bool,
    /// Whether sums are of another type.
    is_cast: bool,
}

/// Normalised rows of an input, as candle writes them.
fn normalised(maker: &mut Maker, of: Of) -> BufferId {
    let Of { rows, columns, is_rms, is_cast } = of;
    let (len, first) = (rows * columns, maker.0.ops.len());
    let x = maker.buffer(len, Role::Input(0));
    let x = if is_cast { maker.made(Function::Copy, vec![all(x, len)], len) } else { x };
    let each = |buffer| view(buffer, 0, &[(rows, 1), (columns, 0)]);
    let mean = |maker: &mut Maker, x| {
        let sum = maker.made(Function::RowSum(columns), vec![all(x, len)], rows);
        maker.made(Function::Affine(1. / columns as f32, 0.), vec![all(sum, rows)], rows)
    };
    let distance = match is_rms {
        true => x,
        false => {
            let mean = mean(maker, x);
            maker.made(binary("sub"), vec![all(x, len), each(mean)], len)
        }
    };
    let squares = maker.made(Function::Unary("sqr".into()), vec![all(distance, len)], len);
    let squares = mean(maker, squares);
    let sum = maker.made(Function::Affine(1., 1e-5), vec![all(squares, rows)], rows);
    let root = maker.made(Function::Unary("sqrt".into()), vec![all(sum, rows)], rows);
    let y = maker.made(binary("div"), vec![all(distance, len), each(root)], len);
    if !is_cast {
        return y;
    }
    // In between, all elements are wider.
    let is_first = |id: BufferId| id == 0;
    for buffer in maker.0.buffers.iter_mut().filter(|buffer| buffer.role == Role::Intermediate) {
        buffer.bytes *= 2;
    }
    for op in &mut maker.0.ops[first..] {
        let meaning = op.meaning.as_mut().unwrap();
        let views = meaning.reads.iter_mut().chain(&mut meaning.writes);
        views.filter(|view| !is_first(view.buffer)).for_each(|view| view.element = Element::F32);
    }
    let wide = View { element: Element::F32, ..all(y, len) };
    maker.made(Function::Copy, vec![wide], len)
}

/// The same with a vector that it is multiplied by, and one that is added, each a view of these dimensions.
fn norm(of: Of, vectors: &[&[(u64, u64)]], silu: bool) -> Trace {
    let mut maker = Maker::default();
    let len = of.rows * of.columns;
    let mut y = normalised(&mut maker, of);
    for (name, dims) in ["mul", "add"].into_iter().zip(vectors) {
        let vector = maker.weight(dims.iter().filter(|dim| dim.1 > 0).map(|dim| dim.0).product());
        y = maker.made(binary(name), vec![all(y, len), view(vector, 0, dims)], len);
    }
    if silu {
        y = maker.made(Function::Unary("silu".into()), vec![all(y, len)], len);
    }
    maker.output(y);
    maker.0
}

/// What rules made of a trace: their names with the launches that they saved, the node of the output, and how many are left.
fn changed(trace: &Trace) -> (Vec<(&'static str, usize)>, Node, usize) {
    let mut graph = regions(trace)[0].graph.clone();
    let names = apply(&mut graph, &[]).into_iter().map(|(name, applied)| (name, applied.saved)).collect();
    let Value::Node(at) = graph.outputs[0].value else { panic!("the output is computed") };
    (names, graph.nodes[at].clone(), graph.live().iter().filter(|live| **live).count())
}

const ROWS: [(u64, u64); 2] = [(3, 0), (8, 1)];

#[test]
fn norms_of_rows_become_one_launch() {
    for is_cast in [false, true] {
        let casts = if is_cast { 2 } else { 0 };
        for (is_rms, vectors, saved) in [(true, 1, 6), (false, 1, 9), (false, 2, 10)] {
            let of = Of { rows: 3, columns: 8, is_rms, is_cast };
            let (names, node, live) = changed(&norm(of, &[&ROWS[..]; 2][..vectors], false));
            assert_eq!((names, live), (vec![("row-norm", saved + casts)], 1));
            assert_eq!(node.compute, Compute::RowNorm { columns: 8, epsilon: 1e-5, is_rms });
            assert_eq!(node.operands.len(), 1 + vectors);
            assert_eq!((node.operands[0].value, node.element), (Value::Input(0), F16));
        }
    }
}

#[test]
fn norms_of_channels_become_one_launch_with_silu() {
    // Two images of six channels of four pixels, in three groups.
    let of = |is_cast| Of { rows: 6, columns: 8, is_rms: false, is_cast };
    let channels: &[(u64, u64)] = &[(2, 0), (6, 1), (4, 0)];
    for (is_cast, silu) in [(false, false), (false, true), (true, true)] {
        let (names, node, live) = changed(&norm(of(is_cast), &[channels; 2], silu));
        let saved = 10 + usize::from(silu) + if is_cast { 2 } else { 0 };
        assert_eq!((names, live), (vec![("group-norm", saved)], 1));
        assert_eq!(node.compute, Compute::GroupNorm { groups: 3, epsilon: 1e-5, silu });
        let dims = |at: usize| node.operands[at].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
        assert_eq!([dims(0), dims(1), dims(2)], [vec![(2, 24), (6, 4), (4, 1)], vec![(6, 1)], vec![(6, 1)]]);
    }
}

#[test]
fn what_is_no_norm_stays() {
    let of = Of { rows: 3, columns: 8, is_rms: false, is_cast: false };
    // A mean over another number of elements, another function than the root, and channels that are not whole groups.
    let mut other_mean = norm(of, &[&ROWS[..]; 2], false);
    other_mean.ops[5].meaning.as_mut().unwrap().function = Function::Affine(0.25, 0.);
    let mut other_root = norm(of, &[&ROWS[..]; 2], false);
    other_root.ops[7].meaning.as_mut().unwrap().function = Function::Unary("exp".into());
    let parts: &[(u64, u64)] = &[(4, 1), (6, 0)];
    let groups_of_parts = norm(of, &[parts; 2], false);
    // The squares are read elsewhere.
    let mut read_elsewhere = norm(of, &[&ROWS[..]; 2], false);
    let squares = read_elsewhere.ops[3].meaning.as_ref().unwrap().writes.as_ref().unwrap().buffer;
    read_elsewhere.buffers[squares].role = Role::Output(1);
    for (at, trace) in [other_mean, other_root, groups_of_parts, read_elsewhere].iter().enumerate() {
        let mut graph = regions(trace)[0].graph.clone();
        let names: Vec<_> = apply(&mut graph, &["row-mean"]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [""; 0], "{at}");
    }
}

/// A layer norm of something else than the distances from the mean is an RMS norm of those, and then a sum.
#[test]
fn a_norm_of_other_distances_is_an_rms_norm_of_them() {
    let of = Of { rows: 3, columns: 8, is_rms: false, is_cast: false };
    let mut trace = norm(of, &[&ROWS[..]; 2], false);
    trace.ops[1].meaning.as_mut().unwrap().function = Function::Affine(0.25, 0.);
    let (names, node, live) = changed(&trace);
    assert_eq!((names, live), (vec![("row-norm", 6), ("row-mean", 1)], 4));
    assert_eq!(node.compute, Compute::Recorded(binary("add")));
}

#[test]
fn a_written_norm_of_a_sum_is_one_launch_with_it() {
    let of = Of { rows: 3, columns: 8, is_rms: true, is_cast: true };
    let mut trace = norm(of, &[&ROWS[..]], false);
    // Its operand is a sum of two inputs.
    let mut maker = Maker::default();
    std::mem::swap(&mut maker.0, &mut trace);
    let first = maker.buffer(24, Role::Input(1));
    maker.0.buffers[0].role = Role::Intermediate;
    let other = maker.buffer(24, Role::Input(0));
    maker.op(binary("add"), vec![all(first, 24), all(other, 24)], all(0, 24));
    let sum = maker.0.ops.pop().unwrap();
    maker.0.ops.insert(0, sum);
    let (names, node, live) = changed(&maker.0);
    assert_eq!((names, live), (vec![("row-norm", 8), ("residual-norm", 1)], 1));
    assert_eq!(node.compute, Compute::NormOfSum { columns: 8, epsilon: 1e-5, is_rms: true });
}
