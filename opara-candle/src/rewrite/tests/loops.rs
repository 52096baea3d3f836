//! Recorded functions of rows, images and places beside loops in double precision.

use candle::{Device, Result, Tensor};
use opara_plan::trace::{Function, Rotary, Window};

use super::numbers;
use super::oracles::{check, values};

#[test]
fn rows_are_reduced_and_normalised() -> Result<()> {
    let (rows, columns, epsilon) = (6usize, 7usize, 1e-3f32);
    let (x, weight, bias) = (numbers(42, 0.7)?, numbers(7, 0.4)?, numbers(7, 1.9)?);
    let (all, of_weight, of_bias) = (values(&x)?, values(&weight)?, values(&bias)?);
    let of_rows = |f: &dyn Fn(&[f64]) -> Vec<f64>| all.chunks(columns).flat_map(f).collect::<Vec<_>>();
    let dims = [rows as u64, columns as u64];
    let one = |function, expected: Vec<f64>| check(function, &[(&x, &dims)], &expected, 1e-6);
    one(Function::Copy, all.clone())?;
    one(Function::Affine(1.5, -0.25), all.iter().map(|x| x * 1.5 - 0.25).collect())?;
    one(Function::RowSum(7), of_rows(&|row| vec![row.iter().sum()]))?;
    one(Function::RowMax(7), of_rows(&|row| vec![row.iter().copied().fold(f64::MIN, f64::max)]))?;
    one(Function::RowMin(7), of_rows(&|row| vec![row.iter().copied().fold(f64::MAX, f64::min)]))?;
    let softmax = |row: &[f64]| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum).collect()
    };
    one(Function::Softmax(7), of_rows(&softmax))?;
    let norm = |row: &[f64], mean: f64| {
        let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64;
        let scale = (square + f64::from(epsilon)).sqrt().recip();
        row.iter().zip(&of_weight).map(|(x, weight)| (x - mean) * scale * weight).collect::<Vec<_>>()
    };
    let rms = of_rows(&|row| norm(row, 0.));
    check(Function::RmsNorm(7, epsilon), &[(&x, &dims), (&weight, &[7])], &rms, 1e-6)?;
    let layer = of_rows(&|row| {
        let mean = row.iter().sum::<f64>() / columns as f64;
        norm(row, mean).iter().zip(&of_bias).map(|(x, bias)| x + bias).collect()
    });
    check(Function::LayerNorm(7, epsilon), &[(&x, &dims), (&weight, &[7]), (&bias, &[7])], &layer, 1e-6)?;
    let pairs = numbers(42, 1.1)?;
    let of_pairs = values(&pairs)?;
    for (name, f) in [
        ("add", (|a, b| a + b) as fn(f64, f64) -> f64),
        ("sub", |a, b| a - b),
        ("mul", |a, b| a * b),
        ("div", |a, b| a / b),
        ("min", f64::min),
        ("max", f64::max),
    ] {
        let expected: Vec<f64> = all.iter().zip(&of_pairs).map(|(a, b)| f(*a, *b)).collect();
        check(Function::Binary(name.into()), &[(&x, &[42]), (&pairs, &[42])], &expected, 1e-6)?;
    }
    for (name, f) in [
        ("sqr", (|x: f64| x * x) as fn(f64) -> f64),
        ("neg", |x| -x),
        ("abs", f64::abs),
        ("relu", |x| x.max(0.)),
        ("exp", f64::exp),
        ("sin", f64::sin),
        ("cos", f64::cos),
        ("tanh", f64::tanh),
        ("silu", |x| x / (1. + (-x).exp())),
        ("sigmoid", |x| 1. / (1. + (-x).exp())),
        ("gelu", |x| 0.5 * x * (1. + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh())),
    ] {
        one(Function::Unary(name.into()), all.iter().map(|x| f(*x)).collect())?;
    }
    let above = (x.abs()? + 0.5)?;
    let of_above = values(&above)?;
    for (name, f) in [("sqrt", f64::sqrt as fn(f64) -> f64), ("recip", f64::recip), ("log", f64::ln)] {
        let expected: Vec<f64> = of_above.iter().map(|x| f(*x)).collect();
        check(Function::Unary(name.into()), &[(&above, &[42])], &expected, 1e-6)?;
    }
    Ok(())
}

/// The elements of a convolution or a pool that a window begins at, by its place: `None` in the padding.
struct Places {
    window: Window,
    size: [usize; 2],
}

impl Places {
    fn at(&self, window: [usize; 2], inside: [usize; 2]) -> Option<usize> {
        let Window { padding, stride, dilation, .. } = self.window;
        let along = |axis: usize| {
            let at = window[axis] * stride[axis] as usize + inside[axis] * dilation[axis] as usize;
            at.checked_sub(padding[axis] as usize).filter(|&at| at < self.size[axis])
        };
        Some(along(0)? * self.size[1] + along(1)?)
    }
}

fn pairs([a, b]: [usize; 2]) -> impl Iterator<Item = [usize; 2]> {
    (0..a).flat_map(move |x| (0..b).map(move |y| [x, y]))
}

#[test]
fn windows_are_multiplied_and_pooled() -> Result<()> {
    let (batch, channels, size) = (2usize, 4usize, [7usize, 6usize]);
    let x = numbers(2 * 4 * 42, 0.7)?;
    let (all, pixels, dims) = (values(&x)?, 42usize, [2u64, 4, 7, 6]);
    for (padding, stride, dilation, groups) in [(1, 1, 1, 1), (0, 2, 1, 2), (2, 1, 2, 4)] {
        let window =
            Window { kernel: [3; 2], padding: [padding; 2], stride: [stride; 2], dilation: [dilation; 2], groups };
        let [rows, columns] = window.windows(size.map(|n| n as u64)).unwrap().map(|n| n as usize);
        let (places, inner, out) = (Places { window, size }, channels / groups as usize, 8usize);
        let weight = numbers((out * inner * 9) as u64, 0.3)?;
        let of_weight = values(&weight)?;
        let mut expected = Vec::new();
        for [item, to] in pairs([batch, out]) {
            let first = to / (out / groups as usize) * inner;
            for at in pairs([rows, columns]) {
                let mut sum = 0.;
                for ([i, j], channel) in pairs([3, 3]).flat_map(|of| (0..inner).map(move |channel| (of, channel))) {
                    let Some(place) = places.at(at, [i, j]) else { continue };
                    let pixel = all[(item * channels + first + channel) * pixels + place];
                    sum += pixel * of_weight[((to * inner + channel) * 3 + i) * 3 + j];
                }
                expected.push(sum);
            }
        }
        let of_weight = [out as u64, inner as u64, 3, 3];
        check(Function::Convolution(window), &[(&x, &dims), (&weight, &of_weight)], &expected, 1e-6)?;
    }
    for (kernel, stride) in [([2, 2], [2, 2]), ([2, 3], [1, 2])] {
        let window = Window { kernel, padding: [0; 2], stride, dilation: [1; 2], groups: 1 };
        let [rows, columns] = window.windows(size.map(|n| n as u64)).unwrap().map(|n| n as usize);
        let places = Places { window, size };
        let (mut largest, mut means) = (Vec::new(), Vec::new());
        for (plane, at) in (0..batch * channels).flat_map(|plane| pairs([rows, columns]).map(move |at| (plane, at))) {
            let inside = pairs(kernel.map(|n| n as usize)).filter_map(|inside| places.at(at, inside));
            let of: Vec<f64> = inside.map(|place| all[plane * pixels + place]).collect();
            largest.push(of.iter().copied().fold(f64::MIN, f64::max));
            means.push(of.iter().sum::<f64>() / of.len() as f64);
        }
        check(Function::MaxPool(window), &[(&x, &dims)], &largest, 0.)?;
        check(Function::MeanPool(window), &[(&x, &dims)], &means, 1e-6)?;
    }
    let by_two = pairs([batch * channels, 14]).flat_map(|[plane, row]| (0..12).map(move |column| (plane, row, column)));
    let expected: Vec<f64> =
        by_two.map(|(plane, row, column)| all[plane * pixels + row / 2 * 6 + column / 2]).collect();
    check(Function::UpsampleNearest([14, 12]), &[(&x, &dims)], &expected, 0.)
}

#[test]
fn windows_are_spread() -> Result<()> {
    let (channels, out, size) = (3usize, 2usize, [4usize, 5usize]);
    let (x, weight) = (numbers(60, 0.7)?, numbers(3 * 2 * 9, 0.3)?);
    let (all, of_weight) = (values(&x)?, values(&weight)?);
    for (padding, stride, dilation, more) in [(0, 1, 1, 0), (1, 2, 1, 1), (1, 2, 2, 0)] {
        let window =
            Window { kernel: [3; 2], padding: [padding; 2], stride: [stride; 2], dilation: [dilation; 2], groups: 1 };
        let result = window.transposed(size.map(|n| n as u64), [more; 2]).unwrap();
        let places = Places { window, size: result.map(|n| n as usize) };
        let plane = places.size[0] * places.size[1];
        let mut expected = vec![0.; out * plane];
        for (channel, [row, column]) in (0..channels).flat_map(|channel| pairs(size).map(move |at| (channel, at))) {
            let pixel = all[(channel * size[0] + row) * size[1] + column];
            for (to, [i, j]) in (0..out).flat_map(|to| pairs([3, 3]).map(move |of| (to, of))) {
                let Some(place) = places.at([row, column], [i, j]) else { continue };
                expected[to * plane + place] += pixel * of_weight[((channel * out + to) * 3 + i) * 3 + j];
            }
        }
        let function = Function::TransposedConvolution { window, output_padding: [more; 2] };
        check(function, &[(&x, &[1, 3, 4, 5]), (&weight, &[3, 2, 3, 3])], &expected, 1e-6)?;
    }
    Ok(())
}

#[test]
fn elements_are_multiplied_chosen_and_rotated() -> Result<()> {
    let (a, b) = (numbers(2 * 3 * 4, 0.7)?, numbers(2 * 4 * 5, 0.3)?);
    let (of_a, of_b) = (values(&a)?, values(&b)?);
    let element = |item: usize, row: usize, column: usize| {
        (0..4).map(|at| of_a[(item * 3 + row) * 4 + at] * of_b[(item * 4 + at) * 5 + column]).sum::<f64>()
    };
    let product = pairs([2, 3]).flat_map(|[item, row]| (0..5).map(move |column| element(item, row, column)));
    check(Function::Matmul, &[(&a, &[2, 3, 4]), (&b, &[2, 4, 5])], &product.collect::<Vec<_>>(), 1e-6)?;
    let ids = Tensor::new(&[2u32, 0, 2], &Device::Cpu)?;
    let chosen: Vec<f64> =
        pairs([2, 3]).flat_map(|[left, at]| of_a[(left * 3 + [2, 0, 2][at]) * 4..][..4].to_vec()).collect();
    check(Function::IndexSelect { left: 2, from: 3, right: 4 }, &[(&a, &[24]), (&ids, &[3])], &chosen, 0.)?;
    let condition = Tensor::from_iter((0..24u32).map(|at| u8::from(at % 3 == 1)), &Device::Cpu)?;
    let other = numbers(24, 1.7)?;
    let of_other = values(&other)?;
    let is_set = |at: usize| at % 3 == 1;
    let one_or_other: Vec<f64> = (0..24).map(|at| if is_set(at) { of_a[at] } else { of_other[at] }).collect();
    check(Function::Where, &[(&condition, &[24]), (&a, &[24]), (&other, &[24])], &one_or_other, 0.)?;
    let filled: Vec<f64> = (0..24).map(|at| if is_set(at) { -2.5 } else { of_other[at] }).collect();
    let bits = u64::from((-2.5f32).to_bits());
    check(Function::MaskedFill(bits), &[(&condition, &[24]), (&other, &[24])], &filled, 0.)?;
    // Heads of two sequences, whose angles are their own or the same.
    for (is_of_neighbours, angles) in [(false, 0), (true, 0), (false, 2)] {
        let of = Rotary { outer: 2, tokens: 3, heads: 1, size: 4, is_of_neighbours, angles };
        let x = numbers(24, 0.9)?;
        let of_angles = angles.max(1) * 3 * 2;
        let (cos, sin) = (numbers(of_angles, 0.2)?.cos()?, numbers(of_angles, 0.2)?.sin()?);
        let (all, of_cos, of_sin) = (values(&x)?, values(&cos)?, values(&sin)?);
        let mut expected = vec![0.; 24];
        for ([outer, token], pair) in pairs([2, 3]).flat_map(|at| (0..2).map(move |pair| (at, pair))) {
            let head = (outer * 3 + token) * 4;
            let [one, two] = if is_of_neighbours { [2 * pair, 2 * pair + 1] } else { [pair, pair + 2] };
            let angle = (if angles > 0 { outer * 3 } else { 0 } + token) * 2 + pair;
            let (x, y) = (all[head + one], all[head + two]);
            expected[head + one] = x * of_cos[angle] - y * of_sin[angle];
            expected[head + two] = x * of_sin[angle] + y * of_cos[angle];
        }
        check(Function::Rotary(of), &[(&x, &[24]), (&cos, &[of_angles]), (&sin, &[of_angles])], &expected, 1e-6)?;
    }
    Ok(())
}
