//! Transposed convolutions that candle computes by two launches: a product, and one that adds up its columns.

use crate::trace::{Dim, Function, Meaning, OpId, Role, Trace, View};

/// Says of products whose columns the launch behind them folds that both are a transposed convolution: the second one has the meaning.
pub(super) fn lift_folded_products(trace: &mut Trace) {
    let users = trace.users();
    let found: Vec<(OpId, Meaning)> =
        (1..trace.ops.len()).filter_map(|at| Some((at, folded_product(trace, &users, at)?))).collect();
    for (at, meaning) in found {
        trace.ops[at - 1].meaning = Some(Meaning::part().into());
        trace.ops[at].meaning = Some(meaning.into());
    }
}

/// The transposed convolution that this op and the one before it compute, if nothing else reads what is between them.
fn folded_product(trace: &Trace, users: &[Vec<OpId>], at: OpId) -> Option<Meaning> {
    let [product, fold] = [at - 1, at].map(|op| trace.ops[op].meaning.as_deref());
    let (product, fold) = (product?, fold?);
    let (Function::Fold(window), [windows]) = (&fold.function, &fold.reads[..]) else { return None };
    let (Function::Matmul, [x, weight], Some(columns)) = (&product.function, &product.reads[..], &product.writes)
    else {
        return None;
    };
    let is_between =
        trace.buffers[columns.buffer].role == Role::Intermediate && users[columns.buffer].last() == Some(&at);
    let is_all = columns.buffer == windows.buffer
        && columns.first == windows.first
        && columns.element == windows.element
        && columns.elements() == windows.elements();
    let ([batch, rows, inner], [of_batch, _, of_columns]) = (&x.dims[..], &weight.dims[..]) else { return None };
    let [images, windows_down, _, channels, kernel, _] = windows.dims[..] else { return None };
    let is_one_weight = of_batch.len == 1 || of_batch.stride == 0;
    let is_product = [batch.len, rows.len] == [images.len, windows_down.len]
        && of_columns.len == channels.len * kernel.len
        && of_columns.stride == 1;
    if !is_between || !is_all || !is_one_weight || !is_product {
        return None;
    }
    let one = Dim { len: 1, stride: 1 };
    let of_inner = Dim { len: inner.len, stride: weight.dims[1].stride };
    let of_channels = Dim { len: channels.len, stride: kernel.len };
    let taps = Dim { len: kernel.len, stride: 1 };
    Some(Meaning {
        function: Function::TransposedConvolution { window: *window, output_padding: [0; 2] },
        reads: vec![
            View { dims: vec![*batch, *inner, *rows, one], ..x.clone() },
            View { dims: vec![of_inner, of_channels, taps, one], ..weight.clone() },
        ],
        writes: fold.writes.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Access, AccessMode, Buffer, Element, Op, Region, Window, Work};

    fn view(buffer: usize, dims: &[(u64, u64)]) -> View {
        let dims = dims.iter().map(|&(len, stride)| Dim { len, stride }).collect();
        View { buffer, element: Element::F32, first: 0, dims }
    }

    fn op(function: Function, reads: Vec<View>, writes: View) -> Op {
        let access = |view: &View, mode| Access { buffer: view.buffer, region: Region::contiguous(0, 4), mode };
        let accesses = reads.iter().map(|view| access(view, AccessMode::Read));
        let accesses = accesses.chain([access(&writes, AccessMode::Write)]).collect();
        let meaning = Some(Meaning { function, reads, writes: Some(writes) }.into());
        Op { name: "op".into(), label: String::new(), work: Work::Memset(0), accesses, nanos: None, meaning }
    }

    /// Two texts of five places and three channels, to four channels by windows of six.
    fn trace() -> Trace {
        let roles = [Role::Input(0), Role::External, Role::Intermediate, Role::Output(0)];
        let buffers = roles.into_iter().map(|role| Buffer { bytes: 1 << 12, role }).collect();
        let window = Window { kernel: [6, 1], padding: [0; 2], stride: [2, 1], dilation: [1; 2], groups: 1 };
        let x = view(0, &[(2, 15), (5, 1), (3, 5)]);
        let weight = view(1, &[(2, 0), (3, 24), (24, 1)]);
        let windows = view(2, &[(2, 120), (5, 24), (1, 24), (4, 6), (6, 1), (1, 1)]);
        let ops = vec![
            op(Function::Matmul, vec![x, weight], view(2, &[(240, 1)])),
            op(Function::Fold(window), vec![windows], view(3, &[(112, 1)])),
        ];
        Trace { ops, buffers, ..Default::default() }
    }

    #[test]
    fn a_product_whose_columns_are_folded_is_a_transposed_convolution() {
        let mut made = trace();
        lift_folded_products(&mut made);
        assert_eq!(made.ops[0].meaning.as_deref(), Some(&Meaning::part()));
        let meaning = made.ops[1].meaning.as_deref().unwrap();
        assert!(matches!(meaning.function, Function::TransposedConvolution { output_padding: [0, 0], .. }));
        let dims = |at: usize| meaning.reads[at].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
        assert_eq!(dims(0), [(2, 15), (3, 5), (5, 1), (1, 1)]);
        assert_eq!(dims(1), [(3, 24), (4, 6), (6, 1), (1, 1)]);
    }

    #[test]
    fn columns_that_something_else_reads_stay() {
        let mut made = trace();
        let copy = op(Function::Copy, vec![view(2, &[(240, 1)])], view(3, &[(240, 1)]));
        made.ops.push(copy);
        let before = made.clone();
        lift_folded_products(&mut made);
        assert_eq!(made, before);
    }
}
