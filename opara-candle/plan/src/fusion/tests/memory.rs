//! Tests that a fusion group leaves the same memory as its ops one by one.

use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;

use super::*;

type Memory = Vec<Vec<u64>>;

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Result `i` of an op: a hash of the elements that it reads. `get` gives one element of an operand, `all` a hash of
/// the whole operand.
fn result_of(
    op: OpId,
    launch: &Launch,
    i: usize,
    get: impl Fn(&Operand, usize) -> u64,
    all: impl Fn(BufferId) -> u64,
) -> u64 {
    let row = |row: usize| row * COLUMNS..(row + 1) * COLUMNS;
    let value = |read: &Operand| match launch.kind {
        _ if read.first.is_none() => all(read.buffer),
        Reduction => hash(row(i).map(|i| get(read, i)).collect::<Vec<_>>()),
        Norm => hash((i, row(i / COLUMNS).map(|i| get(read, i)).collect::<Vec<_>>())),
        _ => get(read, i),
    };
    hash((op, launch.reads.iter().map(value).collect::<Vec<_>>()))
}

fn run_alone(op: OpId, launch: &Launch, memory: &mut Memory) {
    let get = |read: &Operand, i| memory[read.buffer][(read.first.unwrap() + read.view.at(i as u64)) as usize];
    let result = |i| result_of(op, launch, i, get, |buffer| hash(&memory[buffer]));
    memory[launch.result] = (0..launch.kind.results()).map(result).collect();
}

/// Runs a group row by row, or element by element without rows. Each row sees only its own results of the members
/// before.
fn run_group(group: &FusionGroup, launches: &[Launch], memory: &mut Memory) {
    let before = memory.clone();
    let rows = if group.columns.is_some() { ROWS } else { group.elements as usize };
    let of_row = group.elements as usize / rows;
    let is_member_result = |buffer| group.members.iter().any(|&member| launches[member].result == buffer);
    for row in 0..rows {
        let mut own: Vec<(BufferId, usize, u64)> = Vec::new();
        for (at, &op) in group.members.iter().enumerate() {
            let launch = &launches[op];
            let (order, first) = group.order(at);
            let permuted = group.permutation.is_some_and(|permutation| at == permutation.before);
            let get = |read: &Operand, i: usize| {
                if is_member_result(read.buffer) {
                    let i = if permuted { i } else { read.view.at(i as u64) as usize };
                    let own = own.iter().find(|own| (own.0, own.1) == (read.buffer, i));
                    own.expect("computed before, in this row").2
                } else {
                    let (view, distance) = read.view.compose(&order, first).unwrap();
                    before[read.buffer][(read.first.unwrap() + distance + view.at(i as u64)) as usize]
                }
            };
            let all = |buffer| {
                assert!(!is_member_result(buffer), "a row sees only its own results");
                hash(&before[buffer])
            };
            let is_one = group.is_row_scalar[at] || launch.kind == Reduction;
            let results = if is_one { row..row + 1 } else { row * of_row..(row + 1) * of_row };
            let results: Vec<(usize, u64)> = results.map(|i| (i, result_of(op, launch, i, get, all))).collect();
            for (i, result) in results {
                own.push((launch.result, i, result));
                if group.is_stored[at] {
                    memory[launch.result].resize(launch.kind.results(), 0);
                    memory[launch.result][i] = result;
                }
            }
        }
    }
}

/// Random ops. Each writes a buffer of its own; a few write an earlier op's buffer.
fn launches() -> impl Strategy<Value = Vec<Launch>> {
    let kind = prop_oneof![1 => Just(Other), 4 => Just(Elements), 1 => Just(Norm), 2 => Just(Reduction), 2 => Just(RowScalars)];
    let read = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u64..20);
    let again = prop::option::weighted(0.1, any::<prop::sample::Index>());
    let launch = (kind, prop::collection::vec(read, 1..3), again);
    prop::collection::vec(launch, 1..24).prop_map(|launches| {
        let mut results = vec![ROWS * COLUMNS; 2];
        let launches = launches.into_iter().enumerate().map(|(at, (kind, reads, again))| {
            // Recent buffers are more likely.
            let reads = reads.into_iter().map(|(any, near, way)| {
                let buffer = at + 1 - any.index(at + 2).min(near.index(6));
                match (kind, results[buffer] == ROWS, way) {
                    (Other, ..) | (_, _, 0) => elsewhere(buffer),
                    (RowScalars, true, _) => same(buffer),
                    (RowScalars, false, ..10) => slice(buffer, (way / 2).min(3), view(&[2], &[1 + way % 2])),
                    (RowScalars, false, _) => elsewhere(buffer),
                    (_, true, _) => of_row(buffer),
                    (_, false, 1) => of_column(buffer),
                    (_, false, 6..8) => slice(buffer, 3 * (way - 6), of_column(buffer).view),
                    (_, false, 2..6) => transposed(buffer),
                    (_, false, _) => same(buffer),
                }
            });
            let reads = reads.collect();
            let own = at + 2;
            results.push(kind.results());
            let before = again.filter(|_| at > 0).map(|again| 1 + again.index(at));
            let result = before.filter(|&before| results[before] == kind.results()).unwrap_or(own);
            Launch { kind, reads, result }
        });
        launches.collect()
    })
}

proptest! {
    #[test]
    fn fused_ops_leave_the_same_memory(launches in launches(), refused in 2..2 * MAX_MEMBERS) {
        let (trace, fusible) = trace(launches.len() + 2, &launches);
        // Generation may fail for groups of some length.
        let write = |group: &FusionGroup| (group.members.len() != refused).then_some(());
        let fused: Vec<FusionGroup> = groups(&trace, of(&fusible), MAX_MEMBERS, write).into_iter().map(|(group, ())| group).collect();
        let mut members = vec![false; launches.len()];
        for group in &fused {
            prop_assert!((1..=MAX_MEMBERS).contains(&group.members.len()) && group.members.len() != refused);
            prop_assert!(group.members.contains(&group.at));
            let copied = group.permutation.map_or(0, |permutation| permutation.before);
            for (at, &op) in group.members.iter().enumerate() {
                let before = std::mem::replace(&mut members[op], true);
                assert!(!before || at < copied, "an op runs twice");
            }
        }
        let start: Memory = (0..launches.len() + 2).map(|id| (0..6).map(|i| hash((id, i))).collect()).collect();
        let (mut apart, mut memory) = (start.clone(), start);
        for (op, launch) in launches.iter().enumerate() {
            run_alone(op, launch, &mut apart);
            if let Some(group) = fused.iter().find(|group| group.at == op) {
                run_group(group, &launches, &mut memory);
            } else if !members[op] {
                run_alone(op, launch, &mut memory);
            }
        }
        let is_stored = |buffer| fused.iter().all(|group| {
            let by = group.members.iter().position(|&op| launches[op].result == buffer);
            by.is_none_or(|member| group.is_stored[member])
        });
        for buffer in (0..apart.len()).filter(|&buffer| is_stored(buffer)) {
            prop_assert_eq!(&memory[buffer], &apart[buffer], "buffer {}", buffer);
        }
    }
}
