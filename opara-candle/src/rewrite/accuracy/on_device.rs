//! Where the tensors are, by candle's operators in f64, or by a kernel where it is most of the work: only totals are read back. What they
//! cannot tell is left to the host: which element is wrong, and numbers that are too large to be squared.

use candle::{bail, DType, Result, Tensor};
use opara_plan::rewrite::Errors;

use super::on_host::relative;
#[cfg(feature = "cuda")]
use crate::ops::{error_totals, ErrorTotals};

/// Elements that are worked on at a time: what is computed on the way takes no more memory than a few times these.
pub(super) const PIECE: usize = 1 << 24;

/// The elements of tensors of one length in f64, some at a time.
fn pieces<const N: usize>(tensors: [&Tensor; N]) -> Result<impl Iterator<Item = Result<[Tensor; N]>>> {
    let len = tensors.iter().map(|t| t.elem_count()).min().unwrap_or(0);
    let mut flat = Vec::with_capacity(N);
    for tensor in tensors {
        flat.push(tensor.flatten_all()?);
    }
    Ok((0..len).step_by(PIECE).map(move |first| {
        let mut piece = Vec::with_capacity(N);
        for tensor in &flat {
            piece.push(tensor.narrow(0, first, PIECE.min(len - first))?.to_dtype(DType::F64)?);
        }
        piece.try_into().map_err(|_| candle::Error::Msg("a piece of each tensor".into()))
    }))
}

/// A total of all elements: the sum, or the largest.
type Total = fn(&Tensor, usize) -> Result<Tensor>;
const SUM: Total = |values, dim| values.sum(dim);
const LARGEST: Total = |values, dim| values.max(dim);

/// One total of some vectors each. Rows come first: candle's kernel has one block for each result.
fn totals(total: Total, of: &[Tensor]) -> Result<Tensor> {
    const ROW: usize = 1024;
    let mut found = Vec::with_capacity(of.len());
    for values in of {
        let (rows, left) = (values.elem_count() / ROW, values.elem_count() % ROW);
        let mut parts = Vec::new();
        if rows > 0 {
            parts.push(total(&values.narrow(0, 0, rows * ROW)?.reshape((rows, ROW))?, 1)?);
        }
        if left > 0 {
            parts.push(values.narrow(0, rows * ROW, left)?);
        }
        found.push(total(&Tensor::cat(&parts, 0)?, 0)?);
    }
    Tensor::stack(&found, 0)
}

/// One total of those of all pieces.
fn over(total: Total, pieces: &[Tensor]) -> Result<Tensor> {
    match pieces {
        [one] => Ok(one.clone()),
        pieces => total(&Tensor::stack(pieces, 0)?, 0),
    }
}

/// Ones where elements are finite, else zeros: zero times infinity, and NaN, are not equal to themselves.
fn is_finite(x: &Tensor) -> Result<Tensor> {
    let nothing = (x * 0.)?;
    nothing.eq(&nothing)
}

fn is_nan(x: &Tensor) -> Result<Tensor> {
    x.ne(x)
}

/// How many of a mask are ones.
fn count(mask: &Tensor) -> Result<f64> {
    totals(SUM, &[mask.to_dtype(DType::F64)?])?.squeeze(0)?.to_scalar()
}

/// The errors of candle's result and of another one. `None` if an element is wrong, or none is finite.
pub(super) fn errors(unit: f64, tensors: [&Tensor; 3]) -> Result<Option<[Errors; 2]>> {
    let len = tensors[0].elem_count();
    if len == 0 {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    if let Some(totals) = error_totals(unit, tensors)? {
        return Ok(of_totals(totals));
    }
    let mut moments = Vec::new();
    for piece in pieces(tensors)? {
        let [r, c, o] = piece?;
        let is_compared = are_finite([&r, &c, &o])?;
        let squares = is_compared.where_cond(&r, &r.zeros_like()?)?.sqr()?;
        moments.push(totals(SUM, &[is_compared.to_dtype(DType::F64)?, squares])?);
    }
    let moments = over(SUM, &moments)?;
    // It stays there: all is read at once.
    let scale = (moments.narrow(0, 1, 1)? / moments.narrow(0, 0, 1)?)?.sqrt()?.maximum(f64::MIN_POSITIVE)?;
    let (mut sums, mut largest) = (Vec::new(), Vec::new());
    for piece in pieces(tensors)? {
        let [r, c, o] = piece?;
        let is_compared = are_finite([&r, &c, &o])?;
        let (zeros, rounding) = (r.zeros_like()?, (r.abs()?.broadcast_maximum(&scale)? * unit)?);
        let error = |y: Tensor| is_compared.where_cond(&((y - &r)?.abs()? / &rounding)?, &zeros);
        let errors = [error(c)?, error(o)?];
        largest.push(totals(LARGEST, &errors)?);
        let [c, o] = errors;
        sums.push(totals(SUM, &[c.sqr()?, o.sqr()?])?);
    }
    let read = Tensor::cat(&[moments, over(SUM, &sums)?, over(LARGEST, &largest)?], 0)?.to_vec1::<f64>()?;
    let [count, squares, c_squares, o_squares, c_max, o_max] = read[..] else {
        bail!("{} totals were read", read.len())
    };
    if count == 0. || count < len as f64 && !are_allowed(tensors)? {
        return Ok(None);
    }
    let errors = [(c_squares, c_max), (o_squares, o_max)];
    let are_numbers = [squares, c_squares, o_squares, c_max, o_max].iter().all(|total| total.is_finite());
    Ok(are_numbers.then(|| errors.map(|(squares, max)| Errors { rms: (squares / count).sqrt(), max })))
}

/// The errors of these totals.
#[cfg(feature = "cuda")]
fn of_totals(totals: ErrorTotals) -> Option<[Errors; 2]> {
    let ErrorTotals { count, squares, wrong, squared_errors: [candle, other], largest } = totals;
    let are_numbers = [squares, candle, other, largest[0], largest[1]].iter().all(|total| total.is_finite());
    let errors = [(candle, largest[0]), (other, largest[1])];
    let is_told = count > 0. && wrong == 0. && are_numbers;
    is_told.then(|| errors.map(|(squares, max)| Errors { rms: (squares / count).sqrt(), max }))
}

/// Where all of them are finite.
fn are_finite([r, c, o]: [&Tensor; 3]) -> Result<Tensor> {
    is_finite(r)? * is_finite(c)? * is_finite(o)?
}

/// Whether no element is other than it may be beside candle's and double precision's.
fn are_allowed(tensors: [&Tensor; 3]) -> Result<bool> {
    for piece in pieces(tensors)? {
        let [r, c, o] = piece?;
        let is_explained = is_finite(&r)?.maximum(&is_finite(&c)?)?;
        let is_candles = o.eq(&c)?.maximum(&(is_nan(&o)? * is_nan(&c)?)?)?;
        let is_allowed = is_finite(&o)?.where_cond(&is_explained, &is_candles)?;
        if count(&is_allowed)? < o.elem_count() as f64 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether no element is finite.
pub(super) fn has_no_finite(t: &Tensor) -> Result<bool> {
    for piece in pieces([t])? {
        let [x] = piece?;
        if count(&is_finite(&x)?)? > 0. {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a result is NaN, and infinite, where candle's is.
pub(super) fn are_same_kinds(candle: &Tensor, other: &Tensor) -> Result<bool> {
    for piece in pieces([candle, other])? {
        let [c, o] = piece?;
        let is_kind = is_finite(&o)?.maximum(&is_nan(&o)?)?.maximum(&o.eq(&c)?)?;
        let is_same = (is_nan(&c)?.eq(&is_nan(&o)?)? * is_kind)?;
        if count(&is_same)? < o.elem_count() as f64 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How far a result is from candle's where that is finite, relative to it. `None` if an element is wrong.
pub(super) fn distance(candle: &Tensor, other: &Tensor) -> Result<Option<f64>> {
    let (mut squares, mut differences) = (0., 0.);
    for piece in pieces([candle, other])? {
        let [c, o] = piece?;
        let (is_compared, zeros) = (is_finite(&c)?, c.zeros_like()?);
        let of = |values: &Tensor| is_compared.where_cond(values, &zeros)?.sqr();
        let sums = totals(SUM, &[of(&c)?, of(&(&c - o)?)?])?.to_vec1::<f64>()?;
        (squares, differences) = (squares + sums[0], differences + sums[1]);
    }
    Ok((squares.is_finite() && differences.is_finite()).then(|| relative(differences, squares)))
}
