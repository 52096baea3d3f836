//! Attention as models write it.

use candle::{DType, Result, Tensor, D};

use super::masks::mask;
use super::pass::Pass;
use super::shares::shares;

/// Attention of tokens, `(batch, tokens, width)`, over themselves or over others.
pub fn attention(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let (batch, tokens, width) = x.dims3()?;
    let size = pass.one_of(&[16, 24, 32, 32, 40, 48, 64, 64, 64, 72, 80, 96, 112, 128]);
    let sharing = pass.one_of(&[1, 1, 1, 2, 3]);
    let of_keys = pass.one_of(&[1, 2, 3]);
    let heads = of_keys * sharing;
    pass.say(format!("attention of {heads} heads of {size}, {of_keys} of keys"));
    let has_bias = pass.rng.bool();
    let asks_last = pass.is_once_in(6);
    let asked = match asks_last {
        true if pass.rng.bool() => {
            pass.say("asked once");
            pass.weight((1, 1, width), 1.)?.repeat((batch, 1, 1))?
        }
        true => x.narrow(1, tokens - 1, 1)?,
        false => x.clone(),
    };
    let is_cross = !asks_last && pass.is_once_in(6);
    let seen = match is_cross {
        true => {
            let others = pass.one_of(&[7, 33]);
            pass.weight((batch, others, width), 1.)?
        }
        false => x.clone(),
    };
    let by = match asks_last || is_cross {
        true => "three products",
        false => pass.named(&["three products", "narrow", "chunk", "permute"]),
    };
    let [q, k, v] = match by {
        "narrow" => {
            let all = pass.linear(x, (heads + 2 * of_keys) * size, has_bias)?;
            let part = |first: usize, heads: usize| {
                all.narrow(2, first * size, heads * size)?.reshape((batch, tokens, heads, size))?.transpose(1, 2)
            };
            [part(0, heads)?, part(heads, of_keys)?, part(heads + of_keys, of_keys)?]
        }
        "chunk" if sharing == 1 => {
            let all = pass.linear(x, 3 * heads * size, has_bias)?.chunk(3, D::Minus1)?;
            let part = |at: usize| all[at].reshape((batch, tokens, heads, size))?.transpose(1, 2);
            [part(0)?, part(1)?, part(2)?]
        }
        "permute" if sharing == 1 => {
            let all = pass.linear(x, 3 * heads * size, has_bias)?.reshape((batch, tokens, 3, heads, size))?;
            let all = all.permute((2, 0, 3, 1, 4))?;
            let part = |at: usize| all.narrow(0, at, 1)?.squeeze(0);
            [part(0)?, part(1)?, part(2)?]
        }
        _ => {
            let is_once_in_5 = pass.is_once_in(5);
            let mut of = |from: &Tensor, heads: usize| -> Result<Tensor> {
                let rows = from.dim(1)?;
                pass.linear(from, heads * size, has_bias)?.reshape((batch, rows, heads, size))?.transpose(1, 2)
            };
            let [q, k] = [of(&asked, heads)?, of(&seen, of_keys)?];
            let of_value = if is_once_in_5 { size / 2 } else { size };
            let rows = seen.dim(1)?;
            let v = pass.linear(&seen, of_keys * of_value, has_bias)?;
            [q, k, v.reshape((batch, rows, of_keys, of_value))?.transpose(1, 2)?]
        }
    };
    let [q, k, v] = changed(pass, [q, k, v])?;
    let [q, k, v] = match pass.named(&["contiguous late", "contiguous", "contiguous"]) {
        "contiguous" => [q.contiguous()?, k.contiguous()?, v.contiguous()?],
        _ => [q, k, v],
    };
    let y = heads_attend(pass, [q, k, v], sharing)?;
    let (rows, size) = (y.dim(2)?, y.dim(3)?);
    let y = y.transpose(1, 2)?.reshape((batch, rows, heads * size))?;
    let y = pass.linear(&y, width, has_bias)?;
    y.broadcast_as(x.shape())?.contiguous()
}

/// Of `(batch, heads, tokens, size)`.
fn heads_attend(pass: &mut Pass, [q, k, v]: [Tensor; 3], sharing: usize) -> Result<Tensor> {
    let (batch, heads, queries, size) = q.dims4()?;
    let how = ["expand", "cat", "repeat", "selected", "queries together"];
    let repeats = if sharing > 1 { pass.named(&how) } else { "" };
    let (k, v) = match repeats {
        "expand" => (expanded(&k, sharing)?, expanded(&v, sharing)?),
        "cat" => (beside_each_other(&k, sharing)?, beside_each_other(&v, sharing)?),
        "repeat" => (repeated(&k, sharing)?, repeated(&v, sharing)?),
        "selected" => {
            let ids = Tensor::from_iter((0..heads).map(|head| (head / sharing) as u32), k.device())?;
            (k.contiguous()?.index_select(&ids, 1)?, v.contiguous()?.index_select(&ids, 1)?)
        }
        _ => (k, v),
    };
    // Heads of keys, and as many queries more.
    let of_keys = k.dim(1)?;
    let q = if of_keys < heads { q.contiguous()?.reshape((batch, of_keys, (), size))? } else { q };
    let is_flat = pass.is_once_in(4);
    let flat = |x: &Tensor| match is_flat {
        true => x.contiguous()?.flatten(0, 1),
        false => Ok(x.clone()),
    };
    let (q, k, v) = (flat(&q)?, flat(&k)?, flat(&v)?);
    let is_wide = pass.is_once_in(5);
    if is_wide {
        pass.say("all in f32");
    }
    let wide = |x: Tensor| if is_wide { x.to_dtype(pass.wide()) } else { Ok(x) };
    let [q, k, v] = [wide(q)?, wide(k)?, wide(v)?];
    let scores = scaled_scores(pass, &q, &k)?;
    let scores = if pass.is_once_in(5) { capped(pass, &scores)? } else { scores };
    let scores = scores.reshape((batch, heads, queries, ()))?;
    let in_f32 = !is_wide && pass.is_once_in(4);
    pass.scores_in = if is_wide || in_f32 { DType::F32 } else { pass.module_dtype() };
    let before = scores.dtype();
    let scores = if in_f32 {
        pass.say("softmax in f32");
        scores.to_dtype(pass.wide())?
    } else {
        scores
    };
    let scores = mask(pass, scores)?;
    let weights = shares(pass, &scores)?.to_dtype(before)?;
    let keys = weights.dim(3)?;
    let shape = [
        v.dims()[..v.rank() - 2].to_vec(),
        vec![heads * queries * batch / v.dims()[..v.rank() - 2].iter().product::<usize>(), keys],
    ];
    let y = weights.reshape(shape.concat())?.matmul(&v.contiguous()?)?;
    y.reshape((batch, heads, queries, ()))?.to_dtype(pass.own())
}

/// Heads of queries, keys and values, some of which models change before they attend.
fn changed(pass: &mut Pass, [q, k, v]: [Tensor; 3]) -> Result<[Tensor; 3]> {
    let size = q.dim(D::Minus1)?;
    match pass.named(&["as they are", "as they are", "as they are", "normed", "turned", "a key of zeros"]) {
        "normed" => {
            let weight = pass.weight(size, 1.)?;
            let normed = |x: &Tensor| {
                let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
                x.broadcast_div(&(mean + 1e-5)?.sqrt()?)?.broadcast_mul(&weight)
            };
            Ok([normed(&q)?, normed(&k)?, v])
        }
        "turned" => {
            let turned = |x: &Tensor| {
                let (tokens, half) = (x.dim(2)?, size / 2);
                let angles =
                    (0..tokens * half).map(|at| (at / half) as f32 / 100f32.powf((at % half) as f32 / half as f32));
                let angles = Tensor::from_iter(angles, x.device())?.reshape((tokens, half))?;
                let angles = Tensor::cat(&[&angles, &angles], 1)?;
                let (cos, sin) = (angles.cos()?.to_dtype(x.dtype())?, angles.sin()?.to_dtype(x.dtype())?);
                let [one, other] = [0, half].map(|first| x.narrow(D::Minus1, first, half));
                let across = Tensor::cat(&[other?.neg()?, one?], D::Minus1)?;
                x.broadcast_mul(&cos)? + across.broadcast_mul(&sin)?
            };
            Ok([turned(&q)?, turned(&k)?, v])
        }
        "a key of zeros" => {
            let more = |x: &Tensor| Tensor::cat(&[&x.narrow(2, 0, 1)?.zeros_like()?, x], 2);
            Ok([q, more(&k)?, more(&v)?])
        }
        _ => Ok([q, k, v]),
    }
}

fn expanded(x: &Tensor, sharing: usize) -> Result<Tensor> {
    let (batch, heads, tokens, size) = x.dims4()?;
    let x = x.unsqueeze(2)?.expand((batch, heads, sharing, tokens, size))?;
    x.reshape((batch, heads * sharing, tokens, size))
}

fn beside_each_other(x: &Tensor, sharing: usize) -> Result<Tensor> {
    let (batch, heads, tokens, size) = x.dims4()?;
    Tensor::cat(&vec![x; sharing], 2)?.reshape((batch, heads * sharing, tokens, size))
}

fn repeated(x: &Tensor, sharing: usize) -> Result<Tensor> {
    let (batch, heads, tokens, size) = x.dims4()?;
    x.unsqueeze(2)?.repeat((1, 1, sharing, 1, 1))?.reshape((batch, heads * sharing, tokens, size))
}

fn scaled_scores(pass: &mut Pass, q: &Tensor, k: &Tensor) -> Result<Tensor> {
    let scale = 1. / (q.dim(D::Minus1)? as f64).sqrt();
    let transposed = |k: &Tensor| {
        let columns = k.transpose(D::Minus2, D::Minus1)?;
        match k.is_contiguous() {
            true => Ok(columns),
            false => columns.contiguous(),
        }
    };
    let (q, own) = (&q.contiguous()?, q.dtype());
    let how = [
        "q",
        "k",
        "both",
        "product",
        "quotient",
        "affine",
        "tensor",
        "quotient by a tensor",
        "none",
        "keys by queries",
        "parts of heads",
    ];
    match pass.named(&how) {
        "keys by queries" => k
            .contiguous()?
            .matmul(&(q * scale)?.transpose(D::Minus2, D::Minus1)?)?
            .transpose(D::Minus2, D::Minus1)?
            .contiguous(),
        "parts of heads" => {
            let half = q.dim(D::Minus1)? / 2;
            let part = |x: &Tensor, first| x.narrow(D::Minus1, first, half)?.contiguous();
            let of = |first| part(q, first)?.matmul(&transposed(&part(k, first)?)?);
            (of(0)? + of(half)?)? * scale
        }
        "q" => (q * scale)?.matmul(&transposed(k)?),
        "k" => q.matmul(&transposed(&(k * scale)?)?),
        "both" => (q * scale.sqrt())?.matmul(&transposed(&(k * scale.sqrt())?)?),
        "product" => q.matmul(&transposed(k)?)? * scale,
        "quotient" => q.matmul(&transposed(k)?)? / (1. / scale),
        "affine" => q.matmul(&transposed(k)?)?.affine(scale, 0.),
        "tensor" => {
            let factor = Tensor::new(scale as f32, pass.device())?.to_dtype(own)?;
            q.matmul(&transposed(k)?)?.broadcast_mul(&factor)
        }
        "quotient by a tensor" => {
            let divisor = Tensor::new(&[(1. / scale) as f32], pass.device())?.to_dtype(own)?;
            q.matmul(&transposed(&k.broadcast_div(&divisor)?)?)
        }
        _ => q.matmul(&transposed(k)?),
    }
}

fn capped(pass: &mut Pass, scores: &Tensor) -> Result<Tensor> {
    let cap = pass.one_of(&[5., 30., 50.]);
    pass.say(format!("capped at {cap}"));
    (scores / cap)?.tanh()? * cap
}
