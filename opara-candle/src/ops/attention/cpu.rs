//! Attention on the CPU: the scores of a few queries at a time, which never leave the cache.

use candle::{bail, DType, Layout, Result, Shape, Storage, Tensor, WithDType};
use pulp::{Arch, Simd, WithSimd};

use super::sharing::shared_by;
use crate::cpu::kernels::{
    each, lanes, multiply, rows_at_once, softmax_in_place, Element, Sum, PANEL, VECTORS, WORTH_A_THREAD,
};
use crate::gradient::made_on_cpu;
use crate::ops::softmax::{bias_of_rows, RowStarts};

/// The cost of one score beside its products, in operations: mostly that of its power.
const SCORE: usize = 50;

/// Queries at a time at most.
const QUERIES: usize = 8;

/// Attention as a view of `(batch, queries, heads, dim)`. `None` if the kernel does not support the operands: the caller then runs
/// operators that also report errors.
pub(super) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: Option<&Tensor>,
    scale: f64,
) -> Result<Option<Tensor>> {
    let (Ok((batch, heads, queries, dim)), Ok((_, of_keys, keys, _))) = (q.dims4(), k.dims4()) else { return Ok(None) };
    let Some(sharing) = shared_by(heads, of_keys) else { return Ok(None) };
    let of_keys = [batch, of_keys, keys, dim];
    let of_one_type = [Some(k), Some(v), bias].into_iter().flatten().all(|t| t.dtype() == q.dtype());
    let agree = of_one_type && k.dims() == of_keys && v.dims() == of_keys && q.elem_count() * keys > 0;
    if !agree {
        return Ok(None);
    }
    let bias = bias.map(|bias| bias_of_rows(bias, &Shape::from((batch, heads, queries, keys)))).transpose()?;
    if matches!(bias, Some(None)) {
        return Ok(None);
    }
    let (bias, shape) = (bias.flatten(), Sizes { heads, sharing, queries, keys, dim });
    // Each row lies where it is; its elements must be side by side.
    let rows = |x: &Tensor| if dim == 1 || x.stride()[3] == 1 { Ok(x.clone()) } else { x.contiguous() };
    let (q, k, v) = (rows(q)?, rows(k)?, rows(v)?);
    let run = match q.dtype() {
        DType::F32 => run::<f32>,
        DType::F64 => run::<f64>,
        _ => return Ok(None),
    };
    run(shape, batch, [&q, &k, &v], bias.as_ref(), scale)?.transpose(1, 2).map(Some)
}

/// Sizes of one batch item.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    /// How many heads of queries share one of keys and values.
    sharing: usize,
    queries: usize,
    keys: usize,
    dim: usize,
}

/// The rows of all heads in a tensor.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    elements: &'a [T],
    /// Strides of batch items, heads and rows.
    strides: [usize; 3],
}

impl<'a, T: WithDType> Rows<'a, T> {
    fn of(storage: &'a Storage, layout: &Layout) -> Result<Self> {
        let stride = layout.stride();
        Ok(Self { elements: elements(storage, layout)?, strides: [stride[0], stride[1], stride[2]] })
    }
}

/// The elements from a tensor's first one on.
fn elements<'a, T: WithDType>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    let Storage::Cpu(storage) = storage else { bail!("attention on the CPU needs tensors of the CPU") };
    Ok(&T::cpu_storage_as_slice(storage)?[layout.start_offset()..])
}

impl<'a, T> Rows<'a, T> {
    /// The rows of one head from its first row on, and the stride between them.
    fn head(&self, batch: usize, head: usize) -> (&'a [T], usize) {
        (&self.elements[batch * self.strides[0] + head * self.strides[1]..], self.strides[2])
    }
}

fn run<T: Element<Sum = T> + Sum>(
    sizes: Sizes,
    batch: usize,
    [q, k, v]: [&Tensor; 3],
    bias: Option<&(Tensor, RowStarts)>,
    scale: f64,
) -> Result<Tensor> {
    let Sizes { heads, sharing, queries, keys, dim } = sizes;
    let (q, k, v) = (q.storage_and_layout(), k.storage_and_layout(), v.storage_and_layout());
    let (q, k, v) = (Rows::of(&q.0, q.1)?, Rows::of(&k.0, k.1)?, Rows::of(&v.0, v.1)?);
    let bias = bias.map(|(bias, starts)| (bias.storage_and_layout(), *starts));
    let bias: Option<(&[T], RowStarts)> = match &bias {
        Some(((storage, layout), starts)) => Some((elements(storage, layout)?, *starts)),
        None => None,
    };
    let mut y = vec![T::zero(); batch * queries * heads * dim];
    let mut tasks: Vec<(usize, Vec<&mut [T]>)> =
        (0..batch * heads).map(|head| (head, Vec::with_capacity(queries))).collect();
    for (at, y) in y.chunks_exact_mut(dim).enumerate() {
        tasks[at / (queries * heads) * heads + at % heads].1.push(y);
    }
    // Panels of keys and of values, and the queries and scores of some rows.
    let width = VECTORS * lanes::<T>();
    let (key_panels, value_panels) = (keys.next_multiple_of(width) * dim, dim.next_multiple_of(width) * keys);
    let scores = QUERIES * keys.next_multiple_of(width);
    let scale = T::from_f64(scale);
    let worth = batch * heads * queries * keys * (4 * dim + SCORE) > WORTH_A_THREAD;
    each(worth, tasks, |(at, y)| {
        T::scratch(key_panels + value_panels + scores + QUERIES * dim, |scratch| {
            let (key_panels, scratch) = scratch.split_at_mut(key_panels);
            let (value_panels, scratch) = scratch.split_at_mut(value_panels);
            let (scores, queries) = scratch.split_at_mut(scores);
            let head = Head {
                sizes,
                at,
                q: q.head(at / heads, at % heads),
                k: k.head(at / heads, at % heads / sharing),
                v: v.head(at / heads, at % heads / sharing),
                bias,
                scale,
                y,
                key_panels,
                value_panels,
                scores,
                scaled: queries,
            };
            Arch::new().dispatch(head);
        });
    });
    made_on_cpu(y, (batch, queries, heads, dim))
}

/// One head of one batch item.
struct Head<'a, 'y, T> {
    sizes: Sizes,
    /// Its number among all heads.
    at: usize,
    q: (&'a [T], usize),
    k: (&'a [T], usize),
    v: (&'a [T], usize),
    bias: Option<(&'a [T], RowStarts)>,
    scale: T,
    y: Vec<&'y mut [T]>,
    key_panels: &'a mut [T],
    value_panels: &'a mut [T],
    scores: &'a mut [T],
    scaled: &'a mut [T],
}

impl<T: Element<Sum = T> + Sum> WithSimd for Head<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Sizes { queries, keys, dim, .. } = self.sizes;
        let width = VECTORS * T::lanes::<S>();
        // Columns of the keys' panels are keys, those of the values' panels elements of a value.
        for (panel, to) in self.key_panels.chunks_exact_mut(dim * width).enumerate() {
            for column in 0..width {
                let key = panel * width + column;
                let from = if key < keys { &self.k.0[key * self.k.1..][..dim] } else { &[] };
                for (i, to) in to.chunks_exact_mut(width).enumerate() {
                    to[column] = from.get(i).copied().unwrap_or_default();
                }
            }
        }
        for key in 0..keys {
            for (panel, from) in self.v.0[key * self.v.1..][..dim].chunks(width).enumerate() {
                let to = &mut self.value_panels[(panel * keys + key) * width..][..width];
                to[..from.len()].copy_from_slice(from);
                to[from.len()..].fill(T::default());
            }
        }
        let mut row = 0;
        while row < queries {
            row += match rows_at_once::<S>(queries - row) {
                8 => self.rows::<S, 8>(simd, row),
                4 => self.rows::<S, 4>(simd, row),
                2 => self.rows::<S, 2>(simd, row),
                _ => self.rows::<S, 1>(simd, row),
            };
        }
    }
}

impl<T: Element<Sum = T> + Sum> Head<'_, '_, T> {
    /// Attention of `R` queries from `row` on.
    #[inline(always)]
    fn rows<S: Simd, const R: usize>(&mut self, simd: S, row: usize) -> usize {
        let Sizes { queries, keys, dim, .. } = self.sizes;
        let width = VECTORS * T::lanes::<S>();
        let pitch = keys.next_multiple_of(width);
        for (r, to) in self.scaled.chunks_exact_mut(dim).take(R).enumerate() {
            let from = &self.q.0[(row + r) * self.q.1..][..dim];
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = from * self.scale);
        }
        let scaled: [&[T]; R] = std::array::from_fn(|r| &self.scaled[r * dim..][..dim]);
        for (panel, keys) in self.key_panels.chunks_exact(dim * width).enumerate() {
            let mut sums = [[T::default(); PANEL]; R];
            multiply::<T, S, R, VECTORS, VECTORS, _>(simd, scaled, keys, &mut sums, &[]);
            for (r, sums) in sums.iter().enumerate() {
                self.scores[r * pitch + panel * width..][..width].copy_from_slice(&sums[..width]);
            }
        }
        for (r, scores) in self.scores.chunks_exact_mut(pitch).take(R).enumerate() {
            let scores = &mut scores[..keys];
            if let Some((bias, starts)) = &self.bias {
                let bias = &bias[starts.of_row(self.at * queries + row + r)..][..keys];
                scores.iter_mut().zip(bias).for_each(|(score, &bias)| *score += bias);
            }
            softmax_in_place(scores);
        }
        let scores: [&[T]; R] = std::array::from_fn(|r| &self.scores[r * pitch..][..keys]);
        for (panel, values) in self.value_panels.chunks_exact(keys * width).enumerate() {
            let mut sums = [[T::default(); PANEL]; R];
            multiply::<T, S, R, VECTORS, VECTORS, _>(simd, scores, values, &mut sums, &[]);
            for (y, sums) in self.y[row..].iter_mut().zip(&sums) {
                let y = &mut y[panel * width..];
                let columns = y.len().min(width);
                y[..columns].copy_from_slice(&sums[..columns]);
            }
        }
        R
    }
}
