//! Windows of images one after another, and rows and columns between those of an image.

use candle::{bail, Result, Tensor};
use opara_plan::rewrite::Node;
use opara_plan::trace::{Bilinear, Window};

use super::evaluation::Evaluation;
use crate::ops::pad;

/// The windows of `(batch, channels, h, w)`, as `(batch, rows, columns, channels, kh, kw)`.
pub(super) fn unfold(of: &mut Evaluation, node: &Node, window: &Window) -> Result<Tensor> {
    unfold_image(&of.own(&node.operands[0])?, window)
}

/// The same of a tensor.
pub(super) fn unfold_image(x: &Tensor, window: &Window) -> Result<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let Some(size) = window.windows([h as u64, w as u64]) else { bail!("no window {window:?} in {:?}", x.dims()) };
    let [top, left] = window.padding.map(|n| n as usize);
    let x = pad(x, (top, left).into())?;
    let mut parts = Vec::new();
    for place in Place::all(window) {
        parts.push(place.of(&x, window, size)?);
    }
    let [kh, kw] = window.kernel.map(|n| n as usize);
    let parts = Tensor::stack(&parts, 0)?;
    let (_, batch, channels, rows, columns) = parts.dims5()?;
    parts.reshape(vec![kh, kw, batch, channels, rows, columns])?.permute(vec![2, 4, 5, 3, 0, 1])?.contiguous()
}

/// The windows `(batch, rows, columns, channels, kh, kw)`, added up where they lie in `(batch, channels, h, w)`.
pub(super) fn fold(of: &mut Evaluation, node: &Node, window: &Window) -> Result<Tensor> {
    let windows = of.own(&node.operands[0])?;
    let [_, rows, columns, _, _, _] = windows.dims()[..] else { bail!("windows have six dimensions") };
    let Some(size) = window.transposed([rows as u64, columns as u64], [0; 2]) else {
        bail!("{window:?} leaves nothing")
    };
    fold_windows(&windows, window, size.map(|n| n as usize))
}

/// The same of a tensor, in images of this size.
pub(super) fn fold_windows(windows: &Tensor, window: &Window, [h, w]: [usize; 2]) -> Result<Tensor> {
    let [batch, rows, columns, channels, _, _] = windows.dims()[..] else { bail!("windows have six dimensions") };
    let [top, left] = window.padding.map(|n| n as usize);
    let (all_rows, all_columns) = (h + 2 * top, w + 2 * left);
    let mut sum = Tensor::zeros((batch * channels, all_rows * all_columns), windows.dtype(), windows.device())?;
    for place in Place::all(window) {
        let part = windows.narrow(4, place.row, 1)?.narrow(5, place.column, 1)?;
        let part = part.permute(vec![0, 3, 1, 2, 4, 5])?.contiguous()?.reshape((batch * channels, rows * columns))?;
        let [rows, columns] = [place.places(window, 0, rows), place.places(window, 1, columns)];
        let ids = rows.iter().flat_map(|row| columns.iter().map(move |column| (row * all_columns + column) as u32));
        sum = sum.index_add(&Tensor::from_iter(ids, part.device())?, &part, 1)?;
    }
    sum.reshape((batch, channels, all_rows, all_columns))?.narrow(2, top, h)?.narrow(3, left, w)?.contiguous()
}

/// A place in a window.
struct Place {
    row: usize,
    column: usize,
}

impl Place {
    fn all(window: &Window) -> impl Iterator<Item = Self> {
        let [rows, columns] = window.kernel.map(|n| n as usize);
        (0..rows).flat_map(move |row| (0..columns).map(move |column| Self { row, column }))
    }

    /// Where it lies along an axis in each window.
    fn places(&self, window: &Window, axis: usize, windows: usize) -> Vec<usize> {
        let first = [self.row, self.column][axis] * window.dilation[axis] as usize;
        (0..windows).map(|at| first + at * window.stride[axis] as usize).collect()
    }

    /// What lies there in an image with its padding.
    fn of(&self, x: &Tensor, window: &Window, size: [u64; 2]) -> Result<Tensor> {
        let mut x = x.clone();
        for (axis, windows) in size.into_iter().enumerate() {
            let ids = self.places(window, axis, windows as usize).into_iter().map(|at| at as u32);
            x = x.contiguous()?.index_select(&Tensor::from_iter(ids, x.device())?, 2 + axis)?;
        }
        Ok(x)
    }
}

/// Rows and columns between those of an image, by candle's operator.
pub(super) fn upsample(x: &Tensor, of: &Bilinear) -> Result<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let [rows, columns] = of.size.map(|n| n as usize);
    let is_by_size = of.step == [h as f64 / rows as f64, w as f64 / columns as f64];
    if of.is_aligned || is_by_size {
        return x.upsample_bilinear2d(rows, columns, of.is_aligned);
    }
    let [down, right] = of.step.map(f64::recip);
    let y = x.upsample_bilinear2d_with_scale(down, right, false)?;
    if y.dims()[2..] != [rows, columns] {
        bail!("candle has no upsampling of {:?} like {of:?}", x.dims())
    }
    Ok(y)
}
