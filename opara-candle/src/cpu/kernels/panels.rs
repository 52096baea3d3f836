//! The innermost loop of products: some rows times a panel, which is a few columns packed side by side.

use pulp::Simd;

use super::element::{Sum, WIDEST};

/// SIMD vectors per panel row.
pub(crate) const VECTORS: usize = 2;

/// Elements of the widest panel row on any machine.
pub(crate) const PANEL: usize = VECTORS * WIDEST;

/// Panel rows per bounds check.
const STEPS: usize = 4;

/// How many of so many rows to multiply at once: as many accumulators as the registers hold; 8, 4, 2 or 1.
#[inline(always)]
pub(crate) fn rows_at_once<S: Simd>(rows: usize) -> usize {
    match rows {
        8.. if S::REGISTER_COUNT >= 32 => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Multiplies `R` rows, each of as many elements as the panel has rows, with the first `V` vectors of each panel row. Each
/// result is one chain of fused operations, in the order of the panel's rows.
#[inline(always)]
pub(crate) fn multiply<A: Sum, S: Simd, const R: usize, const V: usize>(
    simd: S,
    rows: [&[A]; R],
    panel: &[A],
    to: &mut [[A; PANEL]; R],
) {
    let mut sums = [[A::splat(simd, A::default()); V]; R];
    let (panel, _) = A::vectors::<S>(panel).as_chunks::<VECTORS>();
    let k = panel.len();
    let rows: [&[A]; R] = std::array::from_fn(|r| &rows[r][..k]);
    // Several steps at a time, so that bounds are checked once for all of them.
    let (steps, rest) = panel.as_chunks::<STEPS>();
    let chunks = rows.map(|row| row.as_chunks::<STEPS>().0);
    for (i, step) in steps.iter().enumerate() {
        let chunks: [&[A; STEPS]; R] = std::array::from_fn(|r| &chunks[r][i]);
        for (i, vectors) in step.iter().enumerate() {
            add(simd, std::array::from_fn(|r| chunks[r][i]), vectors, &mut sums);
        }
    }
    for (i, vectors) in (k - rest.len()..k).zip(rest) {
        add(simd, std::array::from_fn(|r| rows[r][i]), vectors, &mut sums);
    }
    for (sums, to) in sums.iter().zip(to) {
        A::vectors_mut::<S>(to)[..V].copy_from_slice(sums);
    }
}

/// Adds the products of one column of the rows with one panel row. Always inlined: otherwise the sums would be in memory,
/// which costs a factor of 60.
#[inline(always)]
fn add<A: Sum, S: Simd, const R: usize, const V: usize>(
    simd: S,
    column: [A; R],
    vectors: &[A::Vector<S>; VECTORS],
    sums: &mut [[A::Vector<S>; V]; R],
) {
    for (x, sums) in column.into_iter().zip(sums) {
        let x = A::splat(simd, x);
        for (vector, sum) in vectors.iter().zip(sums) {
            *sum = A::mul_add(simd, x, *vector, *sum);
        }
    }
}
