//! The innermost loop of products: some rows times a panel, which is a few columns packed side by side.

use pulp::Simd;

use super::element::{Sum, WIDEST};

/// SIMD vectors per panel row.
pub(crate) const VECTORS: usize = 2;

/// Elements of the widest panel row on any machine.
pub(crate) const PANEL: usize = VECTORS * WIDEST;

/// SIMD vectors per panel row of a weight that is packed once, where there are 32 registers: six rows at once read less for each
/// product than eight rows of [`VECTORS`], and all of the registers are used.
pub(crate) const WIDE_VECTORS: usize = 4;

/// Elements of the widest panel row of a weight on any machine.
pub(crate) const WIDE_PANEL: usize = WIDE_VECTORS * WIDEST;

/// SIMD vectors per panel row of a weight.
pub(crate) const fn weight_vectors<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 {
        WIDE_VECTORS
    } else {
        VECTORS
    }
}

/// Elements of a cache line, of four bytes each.
const LINE: usize = 16;

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

/// Multiplies `R` rows, each of as many elements as the panel has rows, with the first `V` of the `P` vectors of each panel row. Each
/// result is one chain of fused operations, in the order of the panel's rows. Elements of `next`, which is read later, come into the
/// cache meanwhile.
#[inline(always)]
pub(crate) fn multiply<A: Sum, S: Simd, const R: usize, const V: usize, const P: usize, const W: usize>(
    simd: S,
    rows: [&[A]; R],
    panel: &[A],
    to: &mut [[A; W]; R],
    next: &[A],
) {
    let mut sums = [[A::splat(simd, A::default()); V]; R];
    let (panel, _) = A::vectors::<S>(panel).as_chunks::<P>();
    let k = panel.len();
    let rows: [&[A]; R] = std::array::from_fn(|r| &rows[r][..k]);
    // Several steps at a time, so that bounds are checked once for all of them.
    let (steps, rest) = panel.as_chunks::<STEPS>();
    let chunks = rows.map(|row| row.as_chunks::<STEPS>().0);
    let mut next = next.chunks(next.len().div_ceil(steps.len().max(1)).next_multiple_of(LINE).max(LINE));
    for (i, step) in steps.iter().enumerate() {
        for element in next.next().unwrap_or_default().iter().step_by(LINE) {
            std::hint::black_box(*element);
        }
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
fn add<A: Sum, S: Simd, const R: usize, const V: usize, const P: usize>(
    simd: S,
    column: [A; R],
    vectors: &[A::Vector<S>; P],
    sums: &mut [[A::Vector<S>; V]; R],
) {
    for (x, sums) in column.into_iter().zip(sums) {
        let x = A::splat(simd, x);
        for (vector, sum) in vectors.iter().zip(sums) {
            *sum = A::mul_add(simd, x, *vector, *sum);
        }
    }
}
