//! Attention as one launch computes it, by elementary operators.

use candle::{bail, DType, Device, Result, Tensor, D};
use opara_plan::rewrite::Node;
use opara_plan::trace::{Attending, Pages};

use super::evaluation::{Arithmetic, Evaluation};

/// The result, `(texts, queries, heads, size)`.
pub(super) fn attention(of: &mut Evaluation, node: &Node, shape: &Attending, pages: Option<&Pages>) -> Result<Tensor> {
    let [q, k, v, others @ ..] = &node.operands[..] else { bail!("attention has queries, keys and values") };
    let dtype = of.arithmetic.dtype(node.element);
    let wide = if of.arithmetic == Arithmetic::Typed { DType::F32 } else { dtype };
    let by_heads = |t: Tensor| t.to_dtype(wide)?.transpose(1, 2)?.contiguous();
    let (table, others) = match (pages, others) {
        (Some(pages), [others @ .., table]) => (Some((of.own(table)?, pages)), others),
        (_, others) => (None, others),
    };
    let kept = |t: Tensor| table.as_ref().map_or(Ok(t.clone()), |(table, pages)| in_order(&t, table, pages));
    let (q, k, v) = (of.own(q)?, kept(of.own(k)?)?, kept(of.own(v)?)?);
    let (q, k, v) = (by_heads(q)?, by_heads(k)?, by_heads(v)?);
    let (heads, each) = (shape.heads as usize, (shape.heads / shape.kv_heads.max(1)) as usize);
    let (queries, keys) = (q.dim(2)?, k.dim(2)?);
    let repeated = |t: Tensor| -> Result<Tensor> {
        let (texts, kv_heads, rows, size) = t.dims4()?;
        t.unsqueeze(2)?.repeat((1, 1, each, 1, 1))?.reshape((texts, kv_heads * each, rows, size))
    };
    let (k, v) = (repeated(k)?, repeated(v)?);
    let mut scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * f64::from(shape.scale))?;
    if shape.cap > 0. {
        scores = ((scores / f64::from(shape.cap))?.tanh()? * f64::from(shape.cap))?;
    }
    let (slopes, starts) = match (shape.has_slopes, others) {
        (true, [slopes, starts @ ..]) => (Some(slopes), starts),
        (_, starts) => (None, starts),
    };
    // How far each key is behind a query's own place, and whether both are of one text.
    let (distance, is_same) = match starts {
        [of_queries, of_keys] => {
            let [of_queries, of_keys] = [of_queries, of_keys].map(|of_texts| of.own(of_texts)?.to_dtype(wide));
            let (of_queries, of_keys) = (Starts::new(of_queries?, queries)?, of_keys?);
            let of_keys = match pages {
                Some(pages) => Starts::in_pages(of_keys, (pages.keys * pages.of_text) as usize)?,
                None => Starts::new(of_keys, keys)?,
            };
            // Where a text has more keys than queries, its queries are beside the last ones.
            let more = (&of_keys.lens - &of_queries.lens)?.index_select(&of_queries.known, 0)?;
            let own = (&of_queries.places + more)?;
            let is_same = of_queries.texts.unsqueeze(1)?.broadcast_eq(&of_keys.texts.unsqueeze(0)?)?;
            (of_keys.places.unsqueeze(0)?.broadcast_sub(&own.unsqueeze(1)?)?, Some(is_same))
        }
        _ => {
            let own = (places(queries, wide, q.device())? + (keys as f64 - queries as f64))?;
            (places(keys, wide, q.device())?.unsqueeze(0)?.broadcast_sub(&own.unsqueeze(1)?)?, None)
        }
    };
    if let Some(slopes) = slopes {
        let slopes = of.own(slopes)?.to_dtype(wide)?.reshape((1, heads, 1, 1))?;
        scores = scores.broadcast_sub(&slopes.broadcast_mul(&distance.abs()?.unsqueeze(0)?.unsqueeze(0)?)?)?;
    }
    let mut is_seen = is_same.map_or_else(|| distance.ones_like(), |is_same| is_same.to_dtype(wide))?;
    if let Some(behind) = shape.behind {
        is_seen = (is_seen * distance.le(behind as f64)?.to_dtype(wide)?)?;
    }
    if let Some(before) = shape.before {
        is_seen = (is_seen * distance.ge(-(before as f64))?.to_dtype(wide)?)?;
    }
    // A query that sees nothing gives zeros.
    let hidden = is_seen.affine(1e30, -1e30)?;
    let scores = scores.broadcast_add(&hidden.unsqueeze(0)?.unsqueeze(0)?)?;
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let weights = weights.broadcast_mul(&is_seen.unsqueeze(0)?.unsqueeze(0)?)?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?.maximum(1e-30)?)?;
    weights.matmul(&v)?.transpose(1, 2)?.contiguous()?.to_dtype(dtype)
}

/// The keys of all texts, as many of each as its pages have: `(1, keys, heads, size)`.
fn in_order(t: &Tensor, table: &Tensor, pages: &Pages) -> Result<Tensor> {
    let (count, keys, heads, size) = t.dims4()?;
    // Behind its last page the pages of a text are any numbers.
    let table = table.to_dtype(DType::U32)?.flatten_all()?.minimum(count as u32 - 1)?;
    let of_page = Tensor::arange(0, pages.keys as u32, t.device())?.unsqueeze(0)?;
    let rows = (table * keys as f64)?.unsqueeze(1)?.broadcast_add(&of_page)?.flatten_all()?;
    t.reshape((count * keys, heads, size))?.index_select(&rows, 0)?.unsqueeze(0)
}

fn places(count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::arange(0, count as u32, device)?.to_dtype(dtype)
}

/// Texts that lie one behind another.
struct Starts {
    /// Of each row, its text; the same, or the last one for a row behind it; and the row's place there.
    texts: Tensor,
    known: Tensor,
    places: Tensor,
    /// Of each text.
    lens: Tensor,
}

impl Starts {
    /// Where the text of each row begins and the last one ends.
    fn new(starts: Tensor, rows: usize) -> Result<Self> {
        let texts = starts.elem_count() - 1;
        let (firsts, ends) = (starts.narrow(0, 0, texts)?, starts.narrow(0, 1, texts)?);
        let at = places(rows, starts.dtype(), starts.device())?;
        let are_behind = at.unsqueeze(1)?.broadcast_ge(&ends.unsqueeze(0)?)?;
        // Rows behind the last text are of none.
        let of_rows = are_behind.to_dtype(DType::U32)?.sum(1)?;
        let known = of_rows.minimum(texts as u32 - 1)?;
        let places = (at - firsts.contiguous()?.index_select(&known, 0)?)?;
        Ok(Self { texts: of_rows, known, places, lens: (ends - firsts)? })
    }

    /// The same where each text has room for so many rows, from its first one on.
    fn in_pages(starts: Tensor, room: usize) -> Result<Self> {
        let texts = starts.elem_count() - 1;
        let lens = (starts.narrow(0, 1, texts)? - starts.narrow(0, 0, texts)?)?;
        let shape = (texts, room);
        let places = places(room, starts.dtype(), starts.device())?.broadcast_as(shape)?;
        let known =
            Tensor::arange(0, texts as u32, starts.device())?.unsqueeze(1)?.broadcast_as(shape)?.contiguous()?;
        let is_row = places.lt(&lens.unsqueeze(1)?.broadcast_as(shape)?)?;
        let of_rows = is_row.where_cond(&known, &Tensor::full(texts as u32, shape, starts.device())?)?;
        let flat = |t: &Tensor| t.contiguous()?.flatten_all();
        Ok(Self { texts: flat(&of_rows)?, known: flat(&known)?, places: flat(&places)?, lens })
    }
}
