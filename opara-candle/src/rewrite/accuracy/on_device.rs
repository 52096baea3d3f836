//! Where the tensors are, by candle's operators in f64: only totals are read back. What they cannot tell is left to the host: which
//! element is wrong, and numbers that are too large to be squared.

use candle::{DType, Result, Tensor};

use super::{relative, Errors};

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

/// Totals, read at once. Rows come first: candle's kernel has one block for each result.
fn totals<const N: usize>(of: [(Tensor, Total); N]) -> Result<[f64; N]> {
    const ROW: usize = 1024;
    let mut found = Vec::with_capacity(N);
    for (values, total) in of {
        let len = values.elem_count();
        let rows = len / ROW;
        let left = values.narrow(0, rows * ROW, len % ROW)?;
        let each = match rows {
            0 => left,
            _ => {
                let of_rows = total(&values.narrow(0, 0, rows * ROW)?.reshape((rows, ROW))?, 1)?;
                if left.elem_count() == 0 {
                    of_rows
                } else {
                    Tensor::cat(&[of_rows, left], 0)?
                }
            }
        };
        found.push(total(&each, 0)?);
    }
    let found = Tensor::stack(&found, 0)?.to_vec1()?;
    found.try_into().map_err(|_| candle::Error::Msg("a total of each".into()))
}

/// Ones where elements are finite, else zeros: zero times infinity, and NaN, are not equal to themselves.
fn is_finite(x: &Tensor) -> Result<Tensor> {
    let nothing = (x * 0.)?;
    nothing.eq(&nothing)
}

fn is_nan(x: &Tensor) -> Result<Tensor> {
    x.ne(x)
}

/// How many ones there are, to be summed.
fn ones(mask: &Tensor) -> Result<(Tensor, Total)> {
    Ok((mask.to_dtype(DType::F64)?, SUM))
}

fn has_zeros(mask: &Tensor) -> Result<bool> {
    let [count] = totals([ones(mask)?])?;
    Ok(count < mask.elem_count() as f64)
}

/// The errors of candle's result and of another one. `None` if an element is wrong, or none is finite.
pub(super) fn errors(unit: f64, tensors: [&Tensor; 3]) -> Result<Option<[Errors; 2]>> {
    let (mut count, mut squares) = (0., 0.);
    for piece in pieces(tensors)? {
        let [r, c, o] = piece?;
        let is_compared = are_finite([&r, &c, &o])?;
        let r_squares = is_compared.where_cond(&r, &r.zeros_like()?)?.sqr()?;
        let [of_piece, of_squares] = totals([ones(&is_compared)?, (r_squares, SUM)])?;
        if of_piece < r.elem_count() as f64 && !are_allowed([&r, &c, &o])? {
            return Ok(None);
        }
        (count, squares) = (count + of_piece, squares + of_squares);
    }
    if count == 0. {
        return Ok(None);
    }
    let scale = (squares / count).sqrt().max(f64::MIN_POSITIVE);
    let (mut sums, mut largest) = ([0.; 2], [0f64; 2]);
    for piece in pieces(tensors)? {
        let [r, c, o] = piece?;
        let is_compared = are_finite([&r, &c, &o])?;
        let (zeros, rounding) = (r.zeros_like()?, (r.abs()?.maximum(scale)? * unit)?);
        let error = |y: Tensor| is_compared.where_cond(&((y - &r)?.abs()? / &rounding)?, &zeros);
        let [c, o] = [error(c)?, error(o)?];
        let [c_squares, o_squares, c_max, o_max] =
            totals([(c.sqr()?, SUM), (o.sqr()?, SUM), (c, LARGEST), (o, LARGEST)])?;
        sums = [sums[0] + c_squares, sums[1] + o_squares];
        largest = [largest[0].max(c_max), largest[1].max(o_max)];
    }
    let errors = [0, 1].map(|at| Errors { rms: (sums[at] / count).sqrt(), max: largest[at] });
    let are_numbers = errors.iter().all(|errors| errors.rms.is_finite() && errors.max.is_finite());
    Ok((scale.is_finite() && are_numbers).then_some(errors))
}

/// Where all of them are finite.
fn are_finite([r, c, o]: [&Tensor; 3]) -> Result<Tensor> {
    is_finite(r)? * is_finite(c)? * is_finite(o)?
}

/// Whether no element is other than it may be beside candle's and double precision's.
fn are_allowed([r, c, o]: [&Tensor; 3]) -> Result<bool> {
    let is_explained = is_finite(r)?.maximum(&is_finite(c)?)?;
    let is_candles = o.eq(c)?.maximum(&(is_nan(o)? * is_nan(c)?)?)?;
    Ok(!has_zeros(&is_finite(o)?.where_cond(&is_explained, &is_candles)?)?)
}

/// Whether no element is finite.
pub(super) fn has_no_finite(t: &Tensor) -> Result<bool> {
    for piece in pieces([t])? {
        let [x] = piece?;
        let [count] = totals([ones(&is_finite(&x)?)?])?;
        if count > 0. {
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
        if has_zeros(&(is_nan(&c)?.eq(&is_nan(&o)?)? * is_kind)?)? {
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
        let of = |values: Tensor| is_compared.where_cond(&values, &zeros)?.sqr();
        let [of_candle, of_difference] = totals([(of(c.clone())?, SUM), (of((c - o)?)?, SUM)])?;
        (squares, differences) = (squares + of_candle, differences + of_difference);
    }
    Ok((squares.is_finite() && differences.is_finite()).then(|| relative(differences, squares)))
}
