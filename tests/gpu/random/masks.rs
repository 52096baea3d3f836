//! Masks and position biases of scores.

use candle::{DType, Device, Result, Tensor};

use super::pass::Pass;

/// Scores, `(batch, heads, queries, keys)`, with nothing, a mask, a bias, or both.
pub fn mask(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let scores = match pass.is_once_in(3) {
        true => biased(pass, scores)?,
        false => scores,
    };
    match pass.named(&[
        "no mask",
        "hidden by lengths",
        "hidden by lengths",
        "hidden later",
        "added",
        "added",
        "windows",
        "factors",
        "pairs that count",
        "near",
        "clamped",
        "scaled behind",
    ]) {
        "hidden by lengths" => hidden_by_lengths(pass, scores),
        "hidden later" => hidden_later(pass, scores),
        "pairs that count" => hidden_in_pairs(pass, scores),
        "near" => hidden_afar(pass, scores),
        "clamped" => hidden_later(pass, scores.clamp(-20., 20.)?),
        "scaled behind" => added(pass, scores)? * 0.5,
        "added" => added(pass, scores),
        "windows" => in_windows(pass, scores),
        "factors" => multiplied(pass, scores),
        _ => Ok(scores),
    }
}

/// A low number that the type of scores has.
fn low(pass: &mut Pass) -> Result<f64> {
    let least = match pass.scores_in {
        DType::F16 => -65504.,
        DType::BF16 => -3.389_531_4e38,
        _ => f32::MIN,
    };
    let low = pass.one_of(&[-1e4, -1e9, least, f32::NEG_INFINITY, f32::NEG_INFINITY, -30.]);
    pass.say(format!("{low:e}"));
    Tensor::new(low, &Device::Cpu)?.to_dtype(pass.scores_in)?.to_dtype(DType::F64)?.to_scalar()
}

/// The same, such that its product with zero is zero.
fn finite_low(pass: &mut Pass) -> Result<f64> {
    Ok(low(pass)?.max(if pass.scores_in == DType::F16 { -65504. } else { -1e9 }))
}

/// A low number as a tensor of these dimensions, which may be made in one of many ways.
fn low_tensor(pass: &mut Pass, scores: &Tensor) -> Result<Tensor> {
    let dtype = scores.dtype();
    let low = low(pass)?;
    let (device, shape) = (pass.device().clone(), scores.shape().clone());
    let scalar = || Tensor::new(low as f32, &device)?.to_dtype(dtype);
    match pass.named(&["new", "full", "held", "held whole", "affine"]) {
        "new" => scalar()?.broadcast_as(shape),
        "full" => Tensor::full(low as f32, (), &device)?.to_dtype(dtype)?.broadcast_as(shape),
        "held" => pass.constant(|| Tensor::new(low as f32, &Device::Cpu))?.to_dtype(dtype)?.broadcast_as(shape),
        "held whole" => pass.constant(|| Tensor::full(low as f32, &shape, &Device::Cpu))?.to_dtype(dtype),
        _ if low.is_finite() => scores.zeros_like()?.affine(0., low),
        _ => scalar()?.broadcast_as(shape),
    }
}

/// 1 where a key is beyond an item's length, `(batch, 1, 1, keys)`.
fn beyond_lengths(pass: &mut Pass, keys: usize) -> Result<Tensor> {
    let places = Tensor::arange(0u32, keys as u32, pass.device())?.reshape((1, keys))?;
    let lengths = pass.lengths.reshape(((), 1))?;
    let beyond = places.broadcast_ge(&lengths)?;
    beyond.reshape((lengths.dim(0)?, 1, 1, keys))
}

fn hidden_by_lengths(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let keys = scores.dim(3)?;
    let beyond = beyond_lengths(pass, keys)?;
    let dtype = scores.dtype();
    match pass.named(&["where", "where not", "of u32", "added", "turned round"]) {
        "where" => beyond.broadcast_as(scores.shape())?.where_cond(&low_tensor(pass, &scores)?, &scores),
        "where not" => {
            let within = beyond.eq(0u8)?;
            within.broadcast_as(scores.shape())?.where_cond(&scores, &low_tensor(pass, &scores)?)
        }
        "of u32" => {
            let beyond = beyond.to_dtype(DType::U32)?;
            beyond.broadcast_as(scores.shape())?.where_cond(&low_tensor(pass, &scores)?, &scores)
        }
        "added" => {
            let low = finite_low(pass)?;
            scores.broadcast_add(&(beyond.to_dtype(dtype)? * low)?)
        }
        _ => {
            // 1 where it counts, as models get it from tokenizers.
            let low = finite_low(pass)?;
            let counts = beyond.eq(0u8)?.to_dtype(dtype)?;
            scores.broadcast_add(&((1. - counts)? * low)?)
        }
    }
}

fn hidden_later(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let (_, _, queries, keys) = scores.dims4()?;
    let dtype = scores.dtype();
    let later = |query: usize, key: usize| key > query + keys.saturating_sub(queries);
    let all = || (0..queries * keys).map(move |at| later(at / keys, at % keys));
    match pass.named(&["uploaded u8", "held u8", "uploaded numbers", "held numbers", "compared", "compared numbers"]) {
        "compared" => {
            let later = later_places(pass, queries, keys)?;
            later.broadcast_as(scores.shape())?.where_cond(&low_tensor(pass, &scores)?, &scores)
        }
        "compared numbers" => {
            let low = finite_low(pass)?;
            let later = later_places(pass, queries, keys)?.to_dtype(DType::U32)?.to_dtype(dtype)?;
            scores.broadcast_add(&(later * low)?)
        }
        how @ ("uploaded u8" | "held u8") => {
            let numbers = || all().map(u8::from).collect::<Vec<_>>();
            let mask = match how {
                "held u8" => pass.constant(|| Tensor::from_vec(numbers(), (queries, keys), &Device::Cpu))?,
                _ => Tensor::from_vec(numbers(), (queries, keys), pass.device())?,
            };
            mask.broadcast_as(scores.shape())?.where_cond(&low_tensor(pass, &scores)?, &scores)
        }
        how => {
            let low = low(pass)? as f32;
            let numbers = || all().map(|hides| if hides { low } else { 0. }).collect::<Vec<_>>();
            let mask = match how {
                "held numbers" => pass.constant(|| Tensor::from_vec(numbers(), (queries, keys), &Device::Cpu))?,
                _ => Tensor::from_vec(numbers(), (queries, keys), pass.device())?,
            };
            scores.broadcast_add(&mask.to_dtype(dtype)?)
        }
    }
}

/// Numbers of places, of queries in a column and of keys in a row.
fn places(pass: &Pass, queries: usize, keys: usize) -> Result<[Tensor; 2]> {
    let from = keys.saturating_sub(queries) as u32;
    let queries = Tensor::arange(from, from + queries as u32, pass.device())?.reshape(((), 1))?;
    Ok([queries, Tensor::arange(0, keys as u32, pass.device())?.reshape((1, ()))?])
}

/// 1 where a key comes later than the query.
fn later_places(pass: &Pass, queries: usize, keys: usize) -> Result<Tensor> {
    let [queries, keys] = places(pass, queries, keys)?;
    queries.broadcast_lt(&keys)
}

/// Only queries that count see keys, and only those that count: others see none.
fn hidden_in_pairs(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let (batch, _, queries, keys) = scores.dims4()?;
    let dtype = scores.dtype();
    let of_keys = beyond_lengths(pass, keys)?.eq(0u8)?;
    let of_queries = beyond_lengths(pass, queries)?.eq(0u8)?.reshape((batch, 1, queries, 1))?;
    let of_type = |x: Tensor, dtype| x.to_dtype(dtype);
    match pass.named(&["product of u8", "product of numbers", "minimum"]) {
        "product of u8" => {
            let count = of_queries.broadcast_mul(&of_keys)?.broadcast_as(scores.shape())?;
            count.where_cond(&scores, &low_tensor(pass, &scores)?)
        }
        "product of numbers" => {
            // Beside a lower number, rows that are hidden as a whole lose their scores, but not in double precision.
            let count = of_type(of_queries, dtype)?.broadcast_mul(&of_type(of_keys, dtype)?)?;
            scores.broadcast_add(&((1. - count)? * -30.)?)
        }
        _ => {
            let count = of_type(of_queries, DType::U32)?.broadcast_minimum(&of_type(of_keys, DType::U32)?)?;
            count.broadcast_as(scores.shape())?.where_cond(&scores, &low_tensor(pass, &scores)?)
        }
    }
}

/// Only keys near a query count.
fn hidden_afar(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let (_, _, queries, keys) = scores.dims4()?;
    let reach = pass.one_of(&[0i64, 3, 20]);
    let [of_queries, of_keys] = places(pass, queries, keys)?.map(|places| places.to_dtype(DType::F32));
    let afar = of_queries?.broadcast_sub(&of_keys?)?.abs()?.gt(reach as f64)?;
    afar.broadcast_as(scores.shape())?.where_cond(&low_tensor(pass, &scores)?, &scores)
}

/// A mask of numbers that the module holds, in one of many shapes.
fn added(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let (batch, heads, queries, keys) = scores.dims4()?;
    let shape = pass.one_of(&[[1, 1, 1, keys], [1, 1, queries, keys], [1, heads, queries, keys], [batch, 1, 1, keys]]);
    let low = low(pass)? as f32;
    let numbers = |at: usize| if at % 5 == 2 { low } else { 0. };
    let mask = pass.constant(|| {
        let len = shape.iter().product();
        Tensor::from_vec((0..len).map(numbers).collect::<Vec<f32>>(), &shape[..], &Device::Cpu)
    })?;
    scores.broadcast_add(&mask.to_dtype(scores.dtype())?)
}

/// Items of a batch that are windows of images: a mask for each window.
fn in_windows(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let (batch, heads, queries, keys) = scores.dims4()?;
    let low = pass.one_of(&[-100f32, f32::NEG_INFINITY]);
    let mask = pass.constant(|| {
        let numbers = (0..batch * queries * keys).map(|at| if at % 7 == 3 { low } else { 0. });
        Tensor::from_vec(numbers.collect::<Vec<_>>(), (batch, queries, keys), &Device::Cpu)
    })?;
    let mask = mask.to_dtype(scores.dtype())?.unsqueeze(1)?.unsqueeze(0)?;
    let scores = scores.reshape((1, batch, heads, queries, keys))?;
    scores.broadcast_add(&mask)?.reshape((batch, heads, queries, keys))
}

/// Ones and zeros that scores are multiplied by.
fn multiplied(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let counts = counts(pass, &scores)?;
    let low = pass.one_of(&[1e4, 3e4]);
    match pass.named(&["alone", "less those that do not count", "and a low number"]) {
        "alone" => scores.broadcast_mul(&counts),
        "less those that do not count" => scores.broadcast_mul(&counts)?.broadcast_sub(&((1. - &counts)? * low)?),
        _ => scores.broadcast_mul(&counts)?.broadcast_add(&counts.affine(low, -low)?),
    }
}

/// 1 where a key is within an item's length, in the type of scores.
pub fn counts(pass: &mut Pass, scores: &Tensor) -> Result<Tensor> {
    let beyond = beyond_lengths(pass, scores.dim(3)?)?;
    match pass.named(&["not beyond", "less those beyond"]) {
        "not beyond" => beyond.eq(0u8)?.to_dtype(scores.dtype()),
        _ => 1. - beyond.to_dtype(scores.dtype())?,
    }
}

/// A bias for each head that depends on how far apart tokens are.
fn biased(pass: &mut Pass, scores: Tensor) -> Result<Tensor> {
    let (_, heads, queries, keys) = scores.dims4()?;
    let dtype = scores.dtype();
    let rows = queries + keys;
    let ids = move || (0..queries * keys).map(move |at| (at / keys + keys - at % keys - 1) as u32);
    match pass.named(&[
        "from a table",
        "from a table, uploaded",
        "slopes",
        "slopes, computed",
        "a tensor",
        "subtracted",
    ]) {
        "slopes, computed" => {
            let slopes = (Tensor::arange(1f32, heads as f32 + 1., pass.device())? * (-8. / heads as f64))?;
            let slopes = (slopes * std::f64::consts::LN_2)?.exp()?.reshape((1, heads, 1, 1))?;
            let [of_queries, of_keys] = places(pass, queries, keys)?.map(|places| places.to_dtype(DType::F32));
            let apart = of_keys?.broadcast_sub(&of_queries?)?.reshape((1, 1, queries, keys))?;
            scores.broadcast_add(&slopes.broadcast_mul(&apart)?.to_dtype(dtype)?)
        }
        how @ ("from a table" | "from a table, uploaded") => {
            let table = pass.weight((rows, heads), 1.)?;
            let ids = match how {
                "from a table" => pass.constant(|| Tensor::from_iter(ids(), &Device::Cpu))?,
                _ => Tensor::from_iter(ids(), pass.device())?,
            };
            let bias = table.index_select(&ids, 0)?.reshape((queries, keys, heads))?.permute((2, 0, 1))?;
            scores.broadcast_add(&bias.contiguous()?.unsqueeze(0)?.to_dtype(dtype)?)
        }
        "slopes" => {
            let slopes = Tensor::from_iter((1..=heads).map(|head| -0.5f32.powi(head as i32)), pass.device())?;
            let apart = Tensor::from_iter(ids().map(|id| (id as f32 - keys as f32 + 1.).abs()), pass.device())?;
            let bias = slopes.reshape((heads, 1, 1))?.broadcast_mul(&apart.reshape((1, queries, keys))?)?;
            scores.broadcast_add(&bias.to_dtype(dtype)?)
        }
        "a tensor" => {
            let bias = pass.weight((1, heads, queries, keys), 1.)?;
            scores.broadcast_add(&bias.to_dtype(dtype)?)
        }
        _ => {
            let bias = pass.weight((heads, 1, keys), 1.)?;
            scores.broadcast_sub(&bias.to_dtype(dtype)?)
        }
    }
}
