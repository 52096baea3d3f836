//! Tests of the grouping of ops.

mod memory;

use super::*;
use crate::trace::{Access, AccessMode, Buffer, BufferId, Op, Region, Role, Work};

const MAX_MEMBERS: usize = 4;
const ROWS: usize = 2;
const COLUMNS: usize = 3;

/// The elements or rows that an op computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It cannot be in a group.
    Other,
    Elements,
    /// Elements; each result depends on its whole row.
    Norm,
    /// Rows; one scalar per row.
    Reduction,
    RowScalars,
}
use Kind::{Elements, Norm, Other, Reduction, RowScalars};

impl Kind {
    /// The number of results.
    fn results(self) -> usize {
        if matches!(self, Reduction | RowScalars) {
            ROWS
        } else {
            ROWS * COLUMNS
        }
    }
}

#[derive(Debug, Clone)]
struct Launch {
    kind: Kind,
    reads: Vec<Operand>,
    result: BufferId,
}

fn launch<const N: usize>(kind: Kind, reads: [Operand; N], result: BufferId) -> Launch {
    Launch { kind, reads: reads.into(), result }
}

fn view(dims: &[u64], strides: &[u64]) -> StridedView {
    StridedView::new(dims, strides).unwrap()
}

/// Buffer 0 is the input, 1 a weight, the last the output.
fn trace(buffers: usize, launches: &[Launch]) -> (Trace, Vec<Option<Fusible>>) {
    let role = |id| match id {
        0 => Role::Input(0),
        1 => Role::External,
        _ if id + 1 == buffers => Role::Output(0),
        _ => Role::Intermediate,
    };
    let buffers = (0..buffers).map(|id| Buffer { bytes: 8, role: role(id) }).collect();
    let access = |buffer, mode| Access { buffer, region: Region::contiguous(0, 8), mode };
    let op = |Launch { reads, result, .. }: &Launch| Op {
        name: "op".into(),
        label: String::new(),
        work: Work::Memset(0),
        accesses: reads
            .iter()
            .map(|read| access(read.buffer, AccessMode::Read))
            .chain([access(*result, AccessMode::Write)])
            .collect(),
        nanos: None,
        meaning: None,
    };
    let fusible = |launch: &Launch| {
        let Launch { kind, ref reads, result } = *launch;
        let elements = if kind == RowScalars { ROWS } else { ROWS * COLUMNS } as u64;
        let columns = matches!(kind, Norm | Reduction).then_some(COLUMNS as u64);
        let (reduces, gains_alone, operands) = (kind == Reduction, kind == Norm, reads.clone());
        (kind != Other).then_some(Fusible { elements, columns, reduces, operands, result, gains_alone })
    };
    let ops = launches.iter().map(op).collect();
    (Trace { ops, buffers, ..Default::default() }, launches.iter().map(fusible).collect())
}

fn of(fusible: &[Option<Fusible>]) -> Vec<Option<&Fusible>> {
    fusible.iter().map(Option::as_ref).collect()
}

fn found(buffers: usize, launches: &[Launch]) -> Vec<FusionGroup> {
    let (trace, fusible) = trace(buffers, launches);
    groups(&trace, of(&fusible), MAX_MEMBERS, |_| Some(())).into_iter().map(|(group, ())| group).collect()
}

fn members(buffers: usize, launches: &[Launch]) -> Vec<(Vec<OpId>, OpId, Vec<bool>)> {
    found(buffers, launches).into_iter().map(|group| (group.members, group.at, group.is_stored)).collect()
}

fn operand(buffer: BufferId, view: StridedView) -> Operand {
    Operand { buffer, view, first: Some(0) }
}

fn same(buffer: BufferId) -> Operand {
    operand(buffer, StridedView::default())
}

fn elsewhere(buffer: BufferId) -> Operand {
    Operand { first: None, ..same(buffer) }
}

fn of_row(buffer: BufferId) -> Operand {
    operand(buffer, view(&[ROWS as u64, COLUMNS as u64], &[1, 0]))
}

/// One scalar per column.
fn of_column(buffer: BufferId) -> Operand {
    operand(buffer, view(&[ROWS as u64, COLUMNS as u64], &[0, 1]))
}

/// A strided view that begins at element `first`.
fn slice(buffer: BufferId, first: u64, view: StridedView) -> Operand {
    Operand { buffer, view, first: Some(first) }
}

fn transposed(buffer: BufferId) -> Operand {
    operand(buffer, view(&[COLUMNS as u64, ROWS as u64], &[1, COLUMNS as u64]))
}

#[test]
fn a_result_that_is_read_outside_is_stored() {
    // A cast and its square, which another op reads; the cast divided by that op's result, and a cast of the quotient.
    let launches = [
        launch(Elements, [same(0)], 2),
        launch(Elements, [same(2)], 3),
        launch(Other, [elsewhere(3)], 4),
        launch(Elements, [same(2), elsewhere(4)], 5),
        launch(Elements, [same(5), elsewhere(1)], 6),
    ];
    assert_eq!(members(7, &launches), [(vec![0, 1], 0, vec![true, true]), (vec![3, 4], 3, vec![false, true])]);
}

#[test]
fn a_norm_of_several_ops_is_one_group() {
    // The sum of squares, its root, and the quotient.
    let launches = [
        launch(Elements, [same(0)], 2),
        launch(Reduction, [same(2)], 3),
        launch(RowScalars, [same(3)], 4),
        launch(Elements, [same(0), of_row(4)], 5),
    ];
    let expected = FusionGroup {
        members: vec![0, 1, 2, 3],
        at: 0,
        is_stored: vec![false, false, false, true],
        is_row_scalar: vec![false, false, true, false],
        elements: 6,
        columns: Some(3),
        permutation: None,
    };
    assert_eq!(found(6, &launches), [expected]);
}

#[test]
fn a_contiguous_copy_of_a_transposed_result_permutes_the_group() {
    // The bias of a matmul, its transpose, and a norm of that.
    let sum = || launch(Elements, [same(0), of_column(1)], 2);
    let launches = [sum(), launch(Elements, [transposed(2)], 3), launch(Norm, [same(3)], 4)];
    let expected = FusionGroup {
        members: vec![0, 1, 2],
        at: 0,
        is_stored: vec![false, false, true],
        is_row_scalar: vec![false; 3],
        elements: 6,
        columns: Some(3),
        permutation: Some(Permutation { before: 1, order: transposed(2).view, first: 0 }),
    };
    assert_eq!(found(5, &launches), [expected]);
    // Another op reads the sum as it was, or it is an output.
    let read = launch(Other, [elsewhere(2)], 4);
    assert_eq!(members(5, &[sum(), read, launch(Elements, [transposed(2)], 3)]), []);
    let launches = [launch(Elements, [same(0), of_column(1)], 3), launch(Elements, [transposed(3)], 2)];
    assert_eq!(members(4, &launches), []);
    // A group is transposed at most once, and never if it has rows.
    let launches = [sum(), launch(Elements, [transposed(2)], 3), launch(Elements, [transposed(3)], 4)];
    assert_eq!(members(5, &launches), [(vec![0, 1], 0, vec![false, true])]);
    let launches = [launch(Norm, [same(0)], 2), launch(Elements, [transposed(2)], 3)];
    assert_eq!(members(4, &launches), [(vec![0], 0, vec![true])]);
}

#[test]
fn slices_of_a_result_are_recomputed_by_their_readers() {
    // The bias of a matmul; each of three copies reads one column.
    let sum = || launch(Elements, [same(0), of_column(1)], 2);
    let column = |column| slice(2, column, view(&[ROWS as u64], &[COLUMNS as u64]));
    let copy = |at: u64| launch(RowScalars, [column(at)], 3 + at as usize);
    let expected = |at: usize| FusionGroup {
        members: vec![0, 1 + at],
        at: 1 + at,
        is_stored: vec![false, true],
        is_row_scalar: vec![false; 2],
        elements: 2,
        columns: None,
        permutation: Some(Permutation { before: 1, order: column(0).view, first: at as u64 }),
    };
    let copies = [0, 1, 2].map(copy);
    let reader = launch(Other, [elsewhere(3), elsewhere(4), elsewhere(5)], 6);
    let all = |more: &[Launch]| [&[sum()], &copies[..], more, std::slice::from_ref(&reader)].concat();
    assert_eq!(found(8, &all(&[])), [0, 1, 2].map(expected));
    // Ops before the bias are recomputed, too; ops on a slice follow it in its group.
    let squared = [launch(Elements, [same(0)], 3), launch(Elements, [same(3), of_column(1)], 2), copy(2), copy(1)];
    let goes_on = [launch(RowScalars, [same(5)], 6), launch(Other, [elsewhere(6), elsewhere(4)], 7)];
    let two = [(vec![0, 1, 2, 4], 2, vec![false, false, false, true]), (vec![0, 1, 3], 3, vec![false, false, true])];
    assert_eq!(members(9, &[&squared[..], &goes_on].concat()), two);
    // The full sum is needed: another op reads it, or it is an output.
    assert_eq!(members(9, &all(&[launch(Other, [elsewhere(2)], 7)])), []);
    assert_eq!(members(3, &[sum(), launch(RowScalars, [column(0)], 1)]), []);
    let whole =
        [launch(Other, [elsewhere(2)], 3), launch(Elements, [of_column(2)], 4), launch(Elements, [transposed(4)], 5)];
    let permuted = [(vec![2, 3], 2, vec![false, true])];
    assert_eq!(members(7, &[&[sum()], &whole[..], &[launch(Other, [elsewhere(5)], 6)]].concat()), permuted);
    // The slices together are larger than the sum, one op reads two slices, or its slice of the bias is no strided view.
    assert_eq!(members(9, &all(&[launch(RowScalars, [column(0)], 7)])), []);
    assert_eq!(members(5, &[sum(), launch(RowScalars, [column(0), column(1)], 3)]), []);
    assert_eq!(members(5, &[sum(), launch(RowScalars, [slice(2, 2, view(&[2], &[1]))], 3)]), []);
}

#[test]
fn rows_of_another_length_do_not_join() {
    let of_three = operand(2, view(&[3, 2], &[1, 0]));
    let launches = [launch(Reduction, [same(0)], 2), launch(Elements, [same(0), of_three], 3)];
    assert_eq!(members(4, &launches), []);
    let launches = [launch(Reduction, [same(0)], 2), launch(RowScalars, [elsewhere(2)], 3)];
    assert_eq!(members(4, &launches), []);
}

#[test]
fn an_op_that_gains_alone_is_a_group() {
    assert_eq!(members(3, &[launch(Norm, [same(0), elsewhere(1)], 2)]), [(vec![0], 0, vec![true])]);
    assert_eq!(members(3, &[launch(Reduction, [same(0)], 2)]), []);
}

#[test]
fn a_group_waits_for_an_operand_unless_it_has_been_read() {
    // The sum of a square and of something made after it.
    let sum = |between| {
        let square = launch(Elements, [same(0)], 2);
        let other = launch(Other, [elsewhere(0)], 3);
        [square, between, other, launch(Elements, [same(2), same(3)], 5)]
    };
    let unread = launch(Other, [elsewhere(0)], 4);
    assert_eq!(members(6, &sum(unread)), [(vec![0, 3], 3, vec![false, true])]);
    let read = launch(Other, [elsewhere(2)], 4);
    assert_eq!(members(6, &sum(read)), []);
}

#[test]
fn an_operand_that_is_not_read_element_by_element_must_be_complete() {
    let first = || launch(Elements, [same(0)], 2);
    assert_eq!(members(4, &[first(), launch(Elements, [elsewhere(2)], 3)]), []);
    assert_eq!(members(4, &[first(), launch(Elements, [same(2), elsewhere(2)], 3)]), []);
}

#[test]
fn ops_that_run_once_are_not_fused_with_ops_that_run_at_every_call() {
    let launches = [launch(Elements, [same(1)], 2), launch(Elements, [same(2), same(0)], 3)];
    assert_eq!(members(4, &launches), []);
}

#[test]
fn a_buffer_that_is_written_twice_is_not_fused() {
    // The square is added to in place.
    let launches = [
        launch(Elements, [same(0)], 2),
        launch(Other, [elsewhere(2)], 2),
        launch(Elements, [same(2)], 3),
        launch(Elements, [same(3)], 4),
    ];
    assert_eq!(members(5, &launches), [(vec![2, 3], 2, vec![false, true])]);
}

#[test]
fn a_kernel_runs_before_what_it_reads_is_overwritten() {
    // The weight is changed after it was read. The kernel takes the place of the first member.
    let launches =
        [launch(Elements, [same(1), same(0)], 2), launch(Other, [elsewhere(0)], 1), launch(Elements, [same(2)], 3)];
    assert_eq!(members(4, &launches), [(vec![0, 2], 0, vec![false, true])]);
    // It cannot, if the last member reads a result of an op behind that.
    let launches = [
        launch(Elements, [same(1), same(0)], 2),
        launch(Other, [elsewhere(0)], 1),
        launch(Other, [elsewhere(0)], 4),
        launch(Elements, [same(2), same(4)], 3),
    ];
    assert_eq!(members(5, &launches), []);
}
