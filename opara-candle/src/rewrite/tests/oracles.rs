//! Recorded functions beside loops over their elements in double precision.

use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::{Compute, Graph, Input, Node, Output, Value};
use opara_plan::trace::{Attending, Bilinear, BlockType, Element, Experts, Function, Named, Pages, Window};

use super::{evaluate, input, numbers, operand};
use crate::rewrite::evaluate::Arithmetic;

/// A tensor, and its dimensions as a contiguous view.
type Viewed<'a> = (&'a Tensor, &'a [u64]);

/// The results of a function of these operands, in both arithmetics.
fn results(function: &Function, operands: &[Viewed], element: Element, len: u64) -> Result<Vec<Vec<f64>>> {
    let of = |dtype: DType| match dtype {
        DType::U8 => Element::U8,
        DType::U32 => Element::U32,
        DType::I64 => Element::I64,
        DType::F64 => Element::F64,
        _ => Element::F32,
    };
    let inputs = operands.iter().map(|(t, _)| Input { element: of(t.dtype()), ..input(t.elem_count() as u64, false) });
    let views = operands.iter().enumerate().map(|(at, (_, dims))| {
        let strides = (0..dims.len()).map(|dim| dims[dim + 1..].iter().product());
        operand(Value::Input(at), 0, &dims.iter().copied().zip(strides).collect::<Vec<(u64, u64)>>())
    });
    let nodes = vec![Node::new(Compute::Recorded(function.clone()), views.collect(), element, len)];
    let outputs = vec![Output { value: Value::Node(0), buffer: 9 }];
    let graph = Graph { inputs: inputs.collect(), nodes, outputs };
    let tensors: Vec<Tensor> = operands.iter().map(|(t, _)| (*t).clone()).collect();
    let all = [Arithmetic::Typed, Arithmetic::In(DType::F64)].into_iter();
    all.map(|arithmetic| evaluate(&graph, &tensors, arithmetic)?[0].flatten_all()?.to_dtype(DType::F64)?.to_vec1())
        .collect()
}

/// Both are what the loops give, up to a relative error.
pub(super) fn check(function: Function, operands: &[Viewed], expected: &[f64], tolerance: f64) -> Result<()> {
    check_of(function, operands, Element::F32, expected, tolerance)
}

fn check_of(function: Function, operands: &[Viewed], element: Element, expected: &[f64], tolerance: f64) -> Result<()> {
    let largest = expected.iter().copied().map(f64::abs).fold(1e-30, f64::max);
    for got in results(&function, operands, element, expected.len() as u64)? {
        assert_eq!(got.len(), expected.len(), "{function:?}");
        let apart = got.iter().zip(expected).map(|(a, b)| (a - b).abs() / largest).fold(0., f64::max);
        assert!(apart <= tolerance, "{function:?}: {apart:e}");
    }
    Ok(())
}

pub(super) fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

#[test]
fn windows_are_unfolded_and_folded() -> Result<()> {
    let (batch, channels, h, w) = (2usize, 3usize, 7usize, 6usize);
    let x = numbers(252, 0.7)?;
    let all = values(&x)?;
    for (kernel, padding, stride, dilation) in [([3, 2], [1, 0], [2, 1], [1, 2]), ([1, 4], [0, 2], [1, 3], [1, 1])] {
        let window = Window { kernel, padding, stride, dilation, groups: 1 };
        let [rows, columns] = window.windows([h as u64, w as u64]).unwrap().map(|n| n as usize);
        let [kh, kw] = kernel.map(|n| n as usize);
        let mut expected = Vec::new();
        // The same windows, added up where they lie.
        let mut sums = vec![0.; all.len()];
        for at in 0..batch * rows * columns * channels * kh * kw {
            let (j, rest) = (at % kw, at / kw);
            let (i, rest) = (rest % kh, rest / kh);
            let (channel, rest) = (rest % channels, rest / channels);
            let (column, rest) = (rest % columns, rest / columns);
            let (row, item) = (rest % rows, rest / rows);
            let along = |axis: usize, window_at: usize, of: usize, len: usize| {
                let at = window_at * stride[axis] as usize + of * dilation[axis] as usize;
                at.checked_sub(padding[axis] as usize).filter(|&at| at < len)
            };
            let place = along(0, row, i, h).zip(along(1, column, j, w));
            let place = place.map(|(r, c)| ((item * channels + channel) * h + r) * w + c);
            expected.push(place.map_or(0., |place| all[place]));
            if let Some(place) = place {
                sums[place] += all[place];
            }
        }
        check(Function::Unfold(window), &[(&x, &[2, 3, 7, 6])], &expected, 0.)?;
        let (rows, columns) = (rows as u64, columns as u64);
        // A plane that the windows cover.
        if window.transposed([rows, columns], [0; 2]) == Some([h as u64, w as u64]) {
            let unfolded = Tensor::from_iter(expected.iter().map(|&x| x as f32), &Device::Cpu)?;
            let dims = [2, rows, columns, 3, kernel[0], kernel[1]];
            check(Function::Fold(window), &[(&unfolded, &dims)], &sums, 1e-6)?;
        }
    }
    // Over one dimension, as candle folds the columns of a transposed convolution.
    let window = Window { kernel: [3, 1], padding: [0; 2], stride: [2, 1], dilation: [1; 2], groups: 1 };
    let (windows, x) = (4, numbers(2 * 4 * 5 * 3, 0.3)?);
    let (all, len) = (values(&x)?, (windows - 1) * 2 + 3);
    let mut expected = vec![0.; 2 * 5 * len];
    for (at, number) in all.iter().enumerate() {
        let (i, channel, window_at, item) = (at % 3, at / 3 % 5, at / 15 % windows, at / 60);
        expected[(item * 5 + channel) * len + window_at * 2 + i] += number;
    }
    check(Function::Fold(window), &[(&x, &[2, 4, 1, 5, 3, 1])], &expected, 1e-6)
}

#[test]
fn rows_and_columns_between_others_are_interpolated() -> Result<()> {
    let (h, w) = (5usize, 4usize);
    let x = numbers(2 * 3 * 20, 0.9)?;
    let all = values(&x)?;
    let by_size = |rows: u64, columns: u64| [h as f64 / rows as f64, w as f64 / columns as f64];
    let cases = [
        Bilinear { size: [10, 7], step: by_size(10, 7), is_aligned: false },
        Bilinear { size: [3, 2], step: by_size(3, 2), is_aligned: false },
        Bilinear { size: [9, 7], step: [0.5, 0.5], is_aligned: true },
        Bilinear { size: [1, 8], step: [0., 3. / 7.], is_aligned: true },
        Bilinear { size: [11, 9], step: [1. / 2.25, 1. / 2.25], is_aligned: false },
    ];
    for of in cases {
        let [rows, columns] = of.size.map(|n| n as usize);
        // The two nearest, and how near the second one is.
        let along = |axis: usize, at: usize, len: usize| {
            let place = match of.is_aligned {
                true => at as f64 * of.step[axis],
                false => ((at as f64 + 0.5) * of.step[axis] - 0.5).max(0.),
            };
            let first = place.floor() as usize;
            (first, (first + 1).min(len - 1), (place - place.floor()).clamp(0., 1.))
        };
        let mut expected = Vec::new();
        for plane in 0..6 {
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let ((top, bottom, down), (left, right, aside)) = (along(0, row, h), along(1, column, w));
                let pixel = |row: usize, column: usize| all[(plane * h + row) * w + column];
                let between = |row| pixel(row, left) * (1. - aside) + pixel(row, right) * aside;
                expected.push(between(top) * (1. - down) + between(bottom) * down);
            }
        }
        check(Function::UpsampleBilinear(of), &[(&x, &[2, 3, 5, 4])], &expected, 1e-6)?;
    }
    Ok(())
}

#[test]
fn functions_with_numbers_are_computed_element_by_element() -> Result<()> {
    let x = numbers(24, 1.3)?;
    let all = values(&x)?;
    let of = |f: &dyn Fn(f64) -> f64| all.iter().map(|&x| f(x)).collect::<Vec<_>>();
    let elu = of(&|x| if x > 0. { x } else { 0.3 * (x.exp() - 1.) });
    check(Function::Elu(0.3), &[(&x, &[24])], &elu, 1e-6)?;
    check(Function::Power(3.), &[(&x, &[24])], &of(&|x| x * x * x), 1e-6)?;
    for (name, f) in [
        ("ceil", f64::ceil as fn(f64) -> f64),
        ("floor", f64::floor),
        ("round", f64::round),
        ("sign", |x| if x > 0. { 1. } else { -1. }),
    ] {
        check(Function::Unary(name.into()), &[(&x, &[24])], &of(&f), 0.)?;
    }
    // By its power series.
    let erf = |x: f64| {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    };
    check(Function::Unary("erf".into()), &[(&x, &[24])], &of(&erf), 1e-6)?;
    let normcdf = of(&|x| 0.5 + 0.5 * erf(x / 2f64.sqrt()));
    check(Function::Unary("normcdf".into()), &[(&x, &[24])], &normcdf, 1e-6)?;
    // More digits than f32 has, and integers.
    let wide = x.to_dtype(DType::F64)?;
    let affine = of(&|x| x * 0.1 + 1e-9);
    check_of(Function::AffineWide(0.1, 1e-9), &[(&wide, &[24])], Element::F64, &affine, 1e-15)?;
    let integers = Tensor::arange(0i64, 24, &Device::Cpu)?;
    let expected: Vec<f64> = (0..24).map(|n| f64::from(n * 3 - 7)).collect();
    check_of(Function::AffineWide(3., -7.), &[(&integers, &[24])], Element::I64, &expected, 0.)
}

/// Rows of weights in blocks, as bytes, and their elements.
fn in_blocks(rows: u64, columns: u64, of: GgmlDType) -> Result<(Tensor, Vec<f64>)> {
    let weight = QTensor::quantize(&numbers(rows * columns, 0.11)?.reshape((rows as usize, columns as usize))?, of)?;
    let bytes = Tensor::new(&weight.data()?[..], &Device::Cpu)?;
    Ok((bytes, values(&weight.dequantize(&Device::Cpu)?)?))
}

#[test]
fn blocks_are_dequantized_and_looked_up() -> Result<()> {
    for blocks in BlockType::ALL {
        let dtype = crate::rewrite::quantized::dtype(blocks);
        let (bytes, elements) = in_blocks(6, 256, dtype)?;
        let of_row = blocks.bytes_of_row(256).unwrap();
        check(Function::Dequantized(blocks), &[(&bytes, &[6 * of_row])], &elements, 0.)?;
        let ids = Tensor::new(&[4u32, 0, 4], &Device::Cpu)?;
        let expected: Vec<f64> = [4, 0, 4].iter().flat_map(|row| elements[row * 256..][..256].to_vec()).collect();
        check(Function::QuantizedRows(blocks), &[(&bytes, &[6, of_row]), (&ids, &[3])], &expected, 0.)?;
    }
    Ok(())
}

#[test]
fn rows_are_multiplied_with_the_weights_of_their_experts() -> Result<()> {
    let (experts, inner, columns) = (4usize, 256usize, 5usize);
    let (bytes, elements) = in_blocks((experts * columns) as u64, inner as u64, GgmlDType::Q4K)?;
    let dense = Tensor::from_iter(elements.iter().map(|&x| x as f32), &Device::Cpu)?;
    let of_row = BlockType::Q4K.bytes_of_row(inner as u64).unwrap();
    // More rows than weights are gathered for, too.
    for (items, shared, has_factors) in [(3usize, 2usize, false), (6, 1, true), (70, 1, false)] {
        let rows = items * shared;
        let x = numbers((items * inner) as u64, 0.37)?;
        let of_rows: Vec<usize> = (0..rows).map(|row| (row * 7 + row / 3) % experts).collect();
        let factors = numbers(rows as u64, 0.53)?;
        let (all, scale) = (values(&x)?, values(&factors)?);
        let mut expected = Vec::new();
        for (row, expert) in of_rows.iter().enumerate() {
            let x = &all[row / shared * inner..][..inner];
            let factor = if has_factors { scale[row] } else { 1. };
            for column in 0..columns {
                let weight = &elements[(expert * columns + column) * inner..][..inner];
                expected.push(factor * x.iter().zip(weight).map(|(a, b)| a * b).sum::<f64>());
            }
        }
        // Rows in the order of their experts.
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&row| of_rows[row]);
        let counts: Vec<usize> =
            (0..experts).map(|of| of_rows.iter().filter(|expert| **expert == of).count()).collect();
        let bounds: Vec<usize> = (0..=experts).map(|of| counts[..of].iter().sum()).collect();
        let integers = |all: &[usize]| Tensor::from_iter(all.iter().map(|&n| n as u32), &Device::Cpu);
        let sorted: Vec<usize> = order.iter().map(|&row| of_rows[row]).collect();
        let [by_row, order, sorted] = [&of_rows, &order, &sorted].map(|all| integers(all));
        let (by_row, order, sorted, of_bounds) = (by_row?, order?, sorted?, integers(&bounds)?);
        let n = [rows as u64];
        let of_experts = [experts as u64 + 1];
        let named: [(Named, Vec<Viewed>); 3] = [
            (Named::ByRow, vec![(&by_row, &n)]),
            (Named::InOrder, vec![(&order, &n), (&sorted, &n)]),
            (Named::ByBounds, vec![(&order, &n), (&of_bounds, &of_experts)]),
        ];
        for (named, names) in named {
            for blocks in [Some(BlockType::Q4K), None] {
                let [experts, inner, columns] = [experts, inner, columns].map(|n| n as u64);
                let (rows, shared) = (rows as u64, shared as u64);
                let of = Experts { experts, rows, shared, inner, columns, blocks, named, has_factors };
                let of_x = [items as u64, inner];
                let of_weights = [experts * columns, if blocks.is_some() { of_row } else { inner }];
                let weights = if blocks.is_some() { &bytes } else { &dense };
                let mut operands: Vec<Viewed> = vec![(&x, &of_x), (weights, &of_weights)];
                operands.extend(names.iter().copied());
                operands.extend(has_factors.then_some((&factors, &n[..])));
                check(Function::ExpertProduct(of), &operands, &expected, 1e-5)?;
            }
        }
        let (zeros, ones) = (Tensor::zeros(experts, DType::U32, &Device::Cpu)?, [experts as u64]);
        let as_numbers = |all: &[usize]| all.iter().map(|&n| n as f64).collect::<Vec<_>>();
        check_of(Function::Count, &[(&zeros, &ones), (&sorted, &n)], Element::U32, &as_numbers(&counts), 0.)?;
        let counted = integers(&counts)?;
        check_of(Function::Bounds, &[(&counted, &ones)], Element::U32, &as_numbers(&bounds), 0.)?;
    }
    Ok(())
}

/// A query of a head over the keys of its text.
struct Query<'a> {
    of: &'a Attending,
    q: &'a [f64],
    /// Its own place among the keys.
    own: f64,
    slope: f64,
}

impl Query<'_> {
    /// The mean of values, by keys.
    fn attend(&self, keys: &[&[f64]], values: &[&[f64]]) -> Vec<f64> {
        let Attending { scale, cap, before, behind, .. } = *self.of;
        let mut sums = vec![0.; self.q.len()];
        let mut all = 0.;
        for (at, (key, value)) in keys.iter().zip(values).enumerate() {
            let distance = at as f64 - self.own;
            let is_seen = behind.is_none_or(|most| distance <= most as f64)
                && before.is_none_or(|most| distance >= -(most as f64));
            let mut score = f64::from(scale) * self.q.iter().zip(*key).map(|(a, b)| a * b).sum::<f64>();
            if cap > 0. {
                score = f64::from(cap) * (score / f64::from(cap)).tanh();
            }
            let weight = if is_seen { (score - self.slope * distance.abs()).exp() } else { 0. };
            all += weight;
            sums.iter_mut().zip(*value).for_each(|(sum, x)| *sum += weight * x);
        }
        sums.iter().map(|sum| if all > 0. { sum / all } else { 0. }).collect()
    }
}

#[test]
fn attention_of_one_launch_is_that_of_loops() -> Result<()> {
    let (heads, kv_heads, size) = (4usize, 2usize, 8usize);
    // Texts of five queries and seven keys each, or of several lengths, with a row of keys behind the last one.
    for (is_packed, lens) in [(false, vec![(5usize, 7usize), (5, 7)]), (true, vec![(3, 3), (5, 7), (1, 4), (4, 2)])] {
        for (before, behind, cap, has_slopes) in
            [(None, None, 0., false), (None, Some(0), 0., true), (Some(2), Some(1), 3., false), (None, None, 0., true)]
        {
            let of = Attending {
                texts: lens.len() as u64,
                heads: heads as u64,
                kv_heads: kv_heads as u64,
                size: size as u64,
                scale: 0.35,
                cap,
                before,
                behind,
                has_slopes,
                is_packed,
            };
            let (queries, keys) =
                (lens.iter().map(|len| len.0).sum::<usize>(), lens.iter().map(|len| len.1).sum::<usize>());
            let all_keys = keys + usize::from(is_packed);
            let q = (numbers((queries * heads * size) as u64, 0.7)? * 2.)?;
            let k = (numbers((all_keys * kv_heads * size) as u64, 0.9)? * 2.)?;
            let v = numbers((all_keys * kv_heads * size) as u64, 1.1)?;
            let slopes = numbers(heads as u64, 0.3)?.abs()?;
            let (of_q, of_k, of_v, of_slopes) = (values(&q)?, values(&k)?, values(&v)?, values(&slopes)?);
            let mut expected = vec![0.; queries * heads * size];
            let (mut first, mut first_key) = (0, 0);
            for &(rows, keys) in &lens {
                for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    let at = ((first + row) * heads + head) * size;
                    let place = |key: usize| ((first_key + key) * kv_heads + head / (heads / kv_heads)) * size;
                    let keys_of: Vec<&[f64]> = (0..keys).map(|key| &of_k[place(key)..][..size]).collect();
                    let values_of: Vec<&[f64]> = (0..keys).map(|key| &of_v[place(key)..][..size]).collect();
                    let query = Query {
                        of: &of,
                        q: &of_q[at..at + size],
                        own: row as f64 + keys as f64 - rows as f64,
                        slope: if has_slopes { of_slopes[head] } else { 0. },
                    };
                    expected[at..at + size].copy_from_slice(&query.attend(&keys_of, &values_of));
                }
                (first, first_key) = (first + rows, first_key + keys);
            }
            let starts = |len: fn(&(usize, usize)) -> usize| {
                let ends = lens.iter().scan(0, |sum, of| {
                    *sum += len(of) as u32;
                    Some(*sum)
                });
                Tensor::from_iter(std::iter::once(0).chain(ends), &Device::Cpu)
            };
            let (of_queries, of_keys) = (starts(|len| len.0)?, starts(|len| len.1)?);
            let outer = if is_packed { 1 } else { lens.len() };
            let dims = |rows: usize, heads: usize| [outer, rows / outer, heads, size].map(|len| len as u64);
            let (dims_q, dims_k) = (dims(queries, heads), dims(all_keys, kv_heads));
            let (of_heads, of_texts) = ([heads as u64], [lens.len() as u64 + 1]);
            let mut operands: Vec<Viewed> = vec![(&q, &dims_q), (&k, &dims_k), (&v, &dims_k)];
            operands.extend(has_slopes.then_some((&slopes, &of_heads[..])));
            if is_packed {
                operands.extend([(&of_queries, &of_texts[..]), (&of_keys, &of_texts)]);
            }
            check(Function::Attention(of), &operands, &expected, 1e-5)?;
            if !is_packed {
                continue;
            }
            // The same keys in pages of three, which lie in another order; some are of no text.
            let pages = Pages { keys: 3, of_text: 4 };
            let (all, of_text) = (30usize, pages.of_text as usize);
            let page = |text: usize, at: usize| (text * of_text + at) * 7 % all;
            let table: Vec<u32> = (0..lens.len() * of_text)
                .map(|at| match (at / of_text, at % of_text) {
                    (text, at) if at * 3 < lens[text].1 => page(text, at) as u32,
                    _ => u32::MAX,
                })
                .collect();
            let of_row = kv_heads * size;
            let in_pages = |of: &[f64]| -> Result<Tensor> {
                let (mut rows, mut first) = (vec![f64::NAN; all * 3 * of_row], 0);
                for (text, &(_, keys)) in lens.iter().enumerate() {
                    for key in 0..keys {
                        let to = (page(text, key / 3) * 3 + key % 3) * of_row;
                        rows[to..][..of_row].copy_from_slice(&of[(first + key) * of_row..][..of_row]);
                    }
                    first += keys;
                }
                // What no text has is a finite number, as it is in a cache that was used before.
                let numbers = rows.iter().map(|&x| if x.is_nan() { 1e4 } else { x as f32 });
                Tensor::from_iter(numbers, &Device::Cpu)
            };
            let (k, v) = (in_pages(&of_k)?, in_pages(&of_v)?);
            let table = Tensor::from_iter(table, &Device::Cpu)?;
            let of_pages = [all as u64, 3, kv_heads as u64, size as u64];
            let of_table = [lens.len() as u64, pages.of_text];
            operands[1..3].copy_from_slice(&[(&k, &of_pages[..]), (&v, &of_pages)]);
            operands.push((&table, &of_table));
            check(Function::PagedAttention(of, pages), &operands, &expected, 1e-5)?;
        }
    }
    Ok(())
}
