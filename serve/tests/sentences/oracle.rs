//! What sentence-transformers computes, in double precision and for one text at a time.

use super::folder::{Weights, HEADS, LAYERS, WIDTH, WORDS};

type Matrix = Vec<Vec<f64>>;

/// The ids of a text whose words are white space apart.
pub fn ids(text: &str) -> Vec<u32> {
    let id = |word: &str| WORDS.iter().position(|known| *known == word).unwrap_or(1) as u32;
    std::iter::once(2).chain(text.split_whitespace().map(id)).chain([3]).collect()
}

fn tensor<'a>(weights: &'a Weights, name: &str) -> &'a [f32] {
    &weights.get(name).unwrap_or_else(|| panic!("{name} is there")).1
}

fn table_row(weights: &Weights, name: &str, row: usize) -> Vec<f64> {
    tensor(weights, name)[row * WIDTH..][..WIDTH].iter().map(|&x| x.into()).collect()
}

/// `weight · x + bias`; no bias where there is none.
pub fn linear(weights: &Weights, name: &str, x: &[f64]) -> Vec<f64> {
    let (weight, bias) = (tensor(weights, &format!("{name}.weight")), weights.get(&format!("{name}.bias")));
    let row = |(index, row): (usize, &[f32])| {
        let sum: f64 = row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        sum + bias.map_or(0., |(_, bias)| bias[index].into())
    };
    weight.chunks(x.len()).enumerate().map(row).collect()
}

pub fn layer_norm(weights: &Weights, name: &str, x: &[f64], epsilon: f64) -> Vec<f64> {
    let (scale, shift) = (tensor(weights, &format!("{name}.weight")), tensor(weights, &format!("{name}.bias")));
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let value = |(index, x): (usize, &f64)| {
        (x - mean) / (variance + epsilon).sqrt() * f64::from(scale[index]) + f64::from(shift[index])
    };
    x.iter().enumerate().map(value).collect()
}

fn erf(x: f64) -> f64 {
    if x.abs() > 5. {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1. + erf(x / std::f64::consts::SQRT_2))
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The last hidden state of a text.
pub fn hidden(weights: &Weights, ids: &[u32], types: &[u32]) -> Matrix {
    let embed = |(place, &id): (usize, &u32)| {
        let kind = types.get(place).copied().unwrap_or(0);
        let word = table_row(weights, "embeddings.word_embeddings.weight", id as usize);
        let place = table_row(weights, "embeddings.position_embeddings.weight", place);
        let kind = table_row(weights, "embeddings.token_type_embeddings.weight", kind as usize);
        layer_norm(weights, "embeddings.LayerNorm", &add(&add(&word, &place), &kind), 1e-12)
    };
    let mut x: Matrix = ids.iter().enumerate().map(embed).collect();
    for layer in 0..LAYERS {
        let at = format!("encoder.layer.{layer}");
        let project = |name: &str| -> Matrix {
            x.iter().map(|x| linear(weights, &format!("{at}.attention.self.{name}"), x)).collect()
        };
        let context = attention(&project("query"), &project("key"), &project("value"));
        let end = |part: &str, x: &[f64], residual: &[f64]| {
            let x = linear(weights, &format!("{at}.{part}.dense"), x);
            layer_norm(weights, &format!("{at}.{part}.LayerNorm"), &add(&x, residual), 1e-12)
        };
        for (x, context) in x.iter_mut().zip(context) {
            let y = end("attention.output", &context, x);
            let inner = linear(weights, &format!("{at}.intermediate.dense"), &y);
            *x = end("output", &inner.into_iter().map(gelu).collect::<Vec<_>>(), &y);
        }
    }
    x
}

fn attention(query: &Matrix, key: &Matrix, value: &Matrix) -> Matrix {
    let size = WIDTH / HEADS;
    let mut context = vec![vec![0.; WIDTH]; query.len()];
    for (at, query) in context.iter_mut().zip(query) {
        for head in (0..WIDTH).step_by(size) {
            let part = head..head + size;
            let dot =
                |key: &Vec<f64>| query[part.clone()].iter().zip(&key[part.clone()]).map(|(a, b)| a * b).sum::<f64>();
            let weights: Vec<f64> = key.iter().map(|key| (dot(key) / (size as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (weight, value) in weights.iter().zip(value) {
                part.clone().for_each(|index| at[index] += weight / total * value[index]);
            }
        }
    }
    context
}

/// The vector of a pooling's mode over the tokens from `start` on.
pub fn pool(mode: &str, hidden: &Matrix, start: usize) -> Vec<f64> {
    let (tokens, count) = (&hidden[start..], (hidden.len() - start) as f64);
    let weighted = |weight: &dyn Fn(usize) -> f64| -> Vec<f64> {
        (0..WIDTH).map(|at| tokens.iter().enumerate().map(|(place, x)| weight(place) * x[at]).sum()).collect()
    };
    match mode {
        "cls" => tokens[0].clone(),
        "lasttoken" => tokens[tokens.len() - 1].clone(),
        "max" => (0..WIDTH).map(|at| tokens.iter().map(|x| x[at]).fold(f64::MIN, f64::max)).collect(),
        "mean" => weighted(&|_| 1. / count),
        "mean_sqrt_len_tokens" => weighted(&|_| 1. / count.sqrt()),
        "weightedmean" => {
            let total: f64 = (start + 1..=hidden.len()).map(|place| place as f64).sum();
            weighted(&|place| (start + place + 1) as f64 / total)
        }
        other => panic!("{other} is no mode"),
    }
}

pub fn unit(x: &[f64]) -> Vec<f64> {
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    x.iter().map(|x| x / norm).collect()
}

/// The same vectors within the error of f32?
pub fn assert_close(got: &[f32], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    let scale = expected.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*got) - expected).abs() <= 2e-5 * scale, "{what}: element {index} is {got}, not {expected}");
    }
}
