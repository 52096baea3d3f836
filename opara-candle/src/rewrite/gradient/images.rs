//! Derivatives of convolutions, pools, and images with more rows and columns.

use candle::{bail, Result, Tensor};
use opara_plan::trace::{Bilinear, Window};

use super::super::windows::{fold_windows, unfold_image};
use super::products::multiply;
use super::step::Step;
use crate::ops::{conv2d_gradients, in_sums, pool_gradient, ConvConfig};

/// Images as rows of pixels of each group: `(groups, images * pixels, channels of a group)`.
fn pixels(images: &Tensor, groups: usize) -> Result<Tensor> {
    let (batch, channels, h, w) = images.dims4()?;
    let x = images.contiguous()?.reshape((batch, groups, channels / groups, h * w))?;
    x.permute((1, 0, 3, 2))?.contiguous()?.reshape((groups, batch * h * w, channels / groups))
}

/// The same back.
fn images(pixels: &Tensor, batch: usize, [h, w]: [usize; 2]) -> Result<Tensor> {
    let (groups, _, channels) = pixels.dims3()?;
    let x = pixels.contiguous()?.reshape((groups, batch, h * w, channels))?;
    x.permute((1, 0, 3, 2))?.contiguous()?.reshape((batch, groups * channels, h, w))
}

/// Windows as rows of each group: `(groups, images * windows, elements of a window in a group's channels)`.
fn window_rows(x: &Tensor, window: &Window) -> Result<Tensor> {
    let groups = window.groups as usize;
    let all = unfold_image(x, window)?;
    let [batch, rows, columns, channels, kh, kw] = all.dims()[..] else { bail!("windows have six dimensions") };
    let of_group = channels / groups * kh * kw;
    let all = all.reshape((batch * rows * columns, groups, of_group))?;
    all.transpose(0, 1)?.contiguous()
}

/// The same back: `(batch, rows, columns, channels, kh, kw)`.
fn windows_of(rows: &Tensor, [batch, h, w]: [usize; 3], window: &Window) -> Result<Tensor> {
    let (groups, _, of_group) = rows.dims3()?;
    let [kh, kw] = window.kernel.map(|n| n as usize);
    let channels = groups * of_group / (kh * kw);
    rows.transpose(0, 1)?.contiguous()?.reshape(vec![batch, h, w, channels, kh, kw])
}

/// Of a convolution that this library computes: by cuDNN, if it can.
pub(super) fn convolution_by_library(step: &mut Step, window: &Window) -> Result<()> {
    let x = step.of.own(&step.node.operands[0])?;
    let (batch, channels, h, w) = x.dims4()?;
    let Some(size) = window.windows([h as u64, w as u64]) else { bail!("no window {window:?} in {:?}", x.dims()) };
    let ([rows, columns], [kh, kw]) = (size.map(|n| n as usize), window.kernel.map(|n| n as usize));
    let inner = channels / window.groups as usize;
    let out = step.node.operands[1].len() as usize / (inner * kh * kw);
    let weight = step.of.operand(&step.node.operands[1], &[out, inner, kh, kw])?;
    let g = step.typed_gradient(&[batch, out, rows, columns])?;
    if step.is_typed() && is_of_tiles(window, [h, w]) {
        return by_tiles(step, window, [&x, &weight, &g]);
    }
    let config = ConvConfig::default()
        .stride(window.stride[0] as usize)
        .padding((window.padding[0] as usize, window.padding[1] as usize))
        .dilation(window.dilation[0] as usize)
        .groups(window.groups as usize)
        .precision(step.node.precision);
    let needs = [step.needs(0), step.needs(1)];
    let found = if step.is_typed() { conv2d_gradients(&x, &weight, &g, &config, needs)? } else { None };
    let Some(found) = found else { return convolution(step, window) };
    found.into_iter().enumerate().try_for_each(|(at, of)| of.map_or(Ok(()), |of| step.give(at, of)))
}

/// Whether windows lie beside each other and cover an image of this size, as patches do.
fn is_of_tiles(window: &Window, size: [usize; 2]) -> bool {
    let [kernel, stride] = [window.kernel, window.stride].map(|pair| pair.map(|n| n as usize));
    let covers = (0..2).all(|axis| kernel[axis] == stride[axis] && size[axis].is_multiple_of(kernel[axis]));
    covers && kernel != [1; 2] && (window.padding, window.dilation, window.groups) == ([0; 2], [1; 2], 1)
}

/// The same by products of whole windows, which libraries compute as convolutions of few channels.
fn by_tiles(step: &mut Step, window: &Window, [x, weight, g]: [&Tensor; 3]) -> Result<()> {
    let ((batch, channels, h, w), [kh, kw]) = (x.dims4()?, window.kernel.map(|n| n as usize));
    let (out, rows, columns) = (weight.dim(0)?, h / kh, w / kw);
    let g = g.permute((0, 2, 3, 1))?.contiguous()?.reshape((batch * rows * columns, out))?;
    if step.needs(1) {
        // Copies of two dimensions each, of which kernels are fast.
        let windows = exchanged(x, (batch * channels * rows, kh, columns, kw))?;
        let windows = exchanged(&windows, (batch, channels, rows * columns, kh * kw))?;
        step.give(1, multiply(&g.t()?, &windows.reshape((batch * rows * columns, channels * kh * kw))?)?)?;
    }
    if step.needs(0) {
        let windows = multiply(&g, &weight.contiguous()?.reshape((out, channels * kh * kw))?)?;
        let windows = exchanged(&windows, (batch, rows * columns, channels, kh * kw))?;
        let x = exchanged(&windows, (batch * channels * rows, columns, kh, kw))?;
        step.give(0, x.reshape((batch, channels, h, w))?)?;
    }
    Ok(())
}

/// A tensor of this shape with its middle dimensions exchanged.
fn exchanged(x: &Tensor, shape: (usize, usize, usize, usize)) -> Result<Tensor> {
    x.contiguous()?.reshape(shape)?.transpose(1, 2)?.contiguous()
}

/// Of images, `(batch, channels, h, w)`, by a weight, `(out, channels / groups, kh, kw)`.
pub(super) fn convolution(step: &mut Step, window: &Window) -> Result<()> {
    let x = step.of.own(&step.node.operands[0])?;
    let (batch, channels, h, w) = x.dims4()?;
    let groups = window.groups as usize;
    let [kh, kw] = window.kernel.map(|n| n as usize);
    let of_window = channels / groups * kh * kw;
    let out = step.node.operands[1].len() as usize / of_window;
    let weight = step.of.own(&step.node.operands[1])?.contiguous()?.reshape((groups, out / groups, of_window))?;
    let Some(size) = window.windows([h as u64, w as u64]) else { bail!("no window {window:?} in {:?}", x.dims()) };
    let [rows, columns] = size.map(|n| n as usize);
    let g = pixels(&step.typed_gradient(&[batch, out, rows, columns])?, groups)?;
    if step.needs(1) {
        step.give(1, multiply(&g.t()?, &window_rows(&x, window)?)?)?;
    }
    if step.needs(0) {
        let windows = windows_of(&multiply(&g, &weight)?, [batch, rows, columns], window)?;
        step.give(0, fold_windows(&windows, window, [h, w])?)?;
    }
    Ok(())
}

/// Of images, `(batch, channels, h, w)`, whose elements add their multiples of a weight, `(channels, out / groups, kh, kw)`.
pub(super) fn transposed_convolution(step: &mut Step, window: &Window, output_padding: [u64; 2]) -> Result<()> {
    let x = step.of.own(&step.node.operands[0])?;
    let (batch, channels, h, w) = x.dims4()?;
    let groups = window.groups as usize;
    let of_window = step.node.operands[1].len() as usize / channels;
    let weight = step.of.own(&step.node.operands[1])?.contiguous()?;
    let weight = weight.reshape((groups, channels / groups, of_window))?;
    let size = window.transposed([h as u64, w as u64], output_padding);
    let Some([rows, columns]) = size.map(|size| size.map(|n| n as usize)) else { bail!("{window:?} leaves nothing") };
    let out = step.node.len as usize / (batch * rows * columns);
    let g = step.typed_gradient(&[batch, out, rows, columns])?;
    // Windows of the result, as many as the operand has pixels.
    let all = unfold_image(&g, window)?.narrow(1, 0, h)?.narrow(2, 0, w)?.contiguous()?;
    let all = all.reshape((batch * h * w, groups, of_window))?.transpose(0, 1)?.contiguous()?;
    if step.needs(1) {
        step.give(1, multiply(&pixels(&x, groups)?.t()?, &all)?)?;
    }
    if step.needs(0) {
        step.give(0, images(&multiply(&all, &weight.t()?)?, batch, [h, w])?)?;
    }
    Ok(())
}

/// Of the means or the maxima of windows. Elements that are as large share the gradient.
pub(super) fn pool(step: &mut Step, window: &Window, is_max: bool) -> Result<()> {
    let x = step.of.own(&step.node.operands[0])?;
    let (batch, channels, h, w) = x.dims4()?;
    let Some(size) = window.windows([h as u64, w as u64]) else { bail!("no window {window:?} in {:?}", x.dims()) };
    let [rows, columns] = size.map(|n| n as usize);
    if step.is_typed() && window.padding == [0; 2] {
        let shape = [batch, channels, rows, columns];
        let operands = [&x, &step.typed_result(&shape)?, &step.typed_gradient(&shape)?];
        let windows = [window.kernel, window.stride].map(|pair| pair.map(|n| n as usize));
        if let Some(gradient) = pool_gradient(operands, is_max, windows)? {
            return step.give(0, gradient);
        }
    }
    let x = in_sums(&x)?;
    let [kh, kw] = window.kernel.map(|n| n as usize);
    let by_window = |t: Tensor| t.permute((0, 2, 3, 1))?.contiguous()?.reshape((batch, rows, columns, channels, 1));
    let shape = [batch, rows, columns, channels, kh * kw];
    let g = by_window(step.gradient(&[batch, channels, rows, columns])?)?;
    let parts = if is_max {
        let y = by_window(step.result(&[batch, channels, rows, columns])?)?;
        let is = unfold_image(&x, window)?.reshape(&shape[..])?.broadcast_eq(&y)?.to_dtype(g.dtype())?;
        is.broadcast_mul(&g.broadcast_div(&is.sum_keepdim(4)?)?)?
    } else {
        (g * (1. / (kh * kw) as f64))?.broadcast_as(&shape[..])?.contiguous()?
    };
    let parts = parts.reshape(vec![batch, rows, columns, channels, kh, kw])?;
    step.give(0, fold_windows(&parts, window, [h, w])?)
}

/// Of windows one after another.
pub(super) fn unfold(step: &mut Step, window: &Window) -> Result<()> {
    let dims = &step.node.operands[0].dims;
    let [batch, channels, h, w] = dims[..] else { bail!("images have four dimensions") };
    let [batch, channels, h, w] = [batch, channels, h, w].map(|dim| dim.len as usize);
    let Some(size) = window.windows([h as u64, w as u64]) else { bail!("no window {window:?} in {dims:?}") };
    let [[rows, columns], [kh, kw]] = [size, window.kernel].map(|pair| pair.map(|n| n as usize));
    let g = step.typed_gradient(&[batch, rows, columns, channels, kh, kw])?;
    step.give(0, fold_windows(&g, window, [h, w])?)
}

/// Of windows that are added up where they lie.
pub(super) fn fold(step: &mut Step, window: &Window) -> Result<()> {
    let lens = step.node.operands[0].dims.iter().map(|dim| dim.len as usize).collect::<Vec<_>>();
    let [batch, rows, columns, channels, _, _] = lens[..] else { bail!("windows have six dimensions") };
    let size = window.transposed([rows as u64, columns as u64], [0; 2]);
    let Some([h, w]) = size.map(|size| size.map(|n| n as usize)) else { bail!("{window:?} leaves nothing") };
    let g = step.typed_gradient(&[batch, channels, h, w])?;
    step.give(0, unfold_image(&g, window)?)
}

/// Of images each of whose rows and columns is a sum of multiples of the operand's, by one matrix of factors for rows, `(rows, h)`, and one
/// for columns.
fn resized(step: &mut Step, factors: impl Fn(usize, usize) -> Vec<f64>) -> Result<()> {
    let x = step.operand(0)?;
    let (batch, channels, h, w) = x.dims4()?;
    let rows_and_columns = step.node.len as usize / (batch * channels);
    let matrix = |axis: usize, len: usize| {
        let factors = factors(axis, len);
        let to = factors.len() / len;
        Tensor::from_vec(factors, (1, to, len), x.device())?.to_dtype(x.dtype())
    };
    let (of_rows, of_columns) = (matrix(0, h)?, matrix(1, w)?);
    let (rows, columns) = (of_rows.dim(1)?, of_columns.dim(1)?);
    if rows * columns != rows_and_columns {
        bail!("{rows} rows and {columns} columns are not {rows_and_columns} elements")
    }
    let planes = batch * channels;
    // A gradient may lie by channels, which products of several matrices do not take.
    let g = step.gradient(&[planes, rows, columns])?.contiguous()?;
    let g = of_rows.t()?.broadcast_matmul(&g)?;
    step.give(0, g.broadcast_matmul(&of_columns)?)
}

/// Of images whose pixels are copies of the nearest ones.
pub(super) fn upsample_nearest(step: &mut Step, size: [u64; 2]) -> Result<()> {
    resized(step, |axis, len| {
        let to = size[axis] as usize;
        let step = len as f64 / to as f64;
        let nearest = |at: usize| ((at as f64 * step) as usize).min(len - 1);
        (0..to).flat_map(|at| (0..len).map(move |of| f64::from(u8::from(nearest(at) == of)))).collect()
    })
}

/// Of images whose pixels lie between those nearest.
pub(super) fn upsample_bilinear(step: &mut Step, of: &Bilinear) -> Result<()> {
    resized(step, |axis, len| {
        let mut factors = vec![0.; of.size[axis] as usize * len];
        for (at, row) in factors.chunks_mut(len).enumerate() {
            let place = match of.is_aligned {
                true => at as f64 * of.step[axis],
                false => ((at as f64 + 0.5) * of.step[axis] - 0.5).max(0.),
            };
            let first = (place.floor() as usize).min(len - 1);
            let near = (place - place.floor()).clamp(0., 1.);
            row[first] += 1. - near;
            row[(first + 1).min(len - 1)] += near;
        }
        factors
    })
}
