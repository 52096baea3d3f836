//! Transposed convolutions: candle's own, and as ordinary ones.

use candle::{bail, DType, Result, Tensor};
use opara_plan::rewrite::Node;
use opara_plan::trace::Window;

use super::evaluation::{lens, Evaluation};
use crate::ops::{self, Activation, ConvConfig, Padding};

/// The operand, `(batch, channels, h, w)`, and the weight, `(channels, out / groups, kh, kw)`.
fn operands(of: &mut Evaluation, node: &Node) -> Result<[Tensor; 2]> {
    let [x, weight, ..] = &node.operands[..] else { bail!("a transposed convolution has two operands") };
    let shape = lens(&x.dims);
    Ok([of.operand(x, &shape)?.broadcast_as(shape)?, of.own(weight)?])
}

/// candle's own.
pub(super) fn transposed_convolution(
    of: &mut Evaluation,
    node: &Node,
    window: &Window,
    output_padding: [u64; 2],
) -> Result<Tensor> {
    let [x, weight] = operands(of, node)?;
    let x = x.contiguous()?;
    let Window { padding, stride, dilation, .. } = *window;
    let [padding, output_padding, stride, dilation] =
        [padding, output_padding, stride, dilation].map(|pair| pair.map(|n| n as usize));
    let groups = window.groups as usize;
    let is_of_rows = x.dim(3)? == 1 && window.kernel[1] == 1;
    if is_of_rows && (padding[1], output_padding[1], stride[1]) == (0, 0, 1) {
        let (x, weight) = (x.squeeze(3)?, weight.squeeze(3)?);
        let y = x.conv_transpose1d(&weight, padding[0], output_padding[0], stride[0], dilation[0], groups)?;
        return y.unsqueeze(3);
    }
    let is_square = [padding, output_padding, stride, dilation].iter().all(|pair| pair[0] == pair[1]);
    if !is_square || groups != 1 {
        bail!("candle has no transposed convolution over {window:?}")
    }
    x.conv_transpose2d(&weight, padding[0], output_padding[0], stride[0], dilation[0])
}

/// The same by an ordinary convolution, which gives the elements of a stride as channels.
pub(super) fn as_convolution(
    of: &mut Evaluation,
    node: &Node,
    window: &Window,
    output_padding: [u64; 2],
) -> Result<Tensor> {
    let [x, weight] = operands(of, node)?;
    let (batch, _, h, w) = x.dims4()?;
    let out = weight.dim(1)?;
    let Some(size) = window.transposed([h as u64, w as u64], output_padding) else {
        bail!("{window:?} over {:?} leaves nothing", x.dims())
    };
    let [rows, columns] = [0, 1].map(|axis| Along::of(window, [h, w][axis], size[axis] as usize, axis));
    let weight = arranged(&weight, [rows, columns])?;
    let bias = match node.operands.get(2) {
        Some(bias) => {
            let each = (rows.stride * columns.stride, out);
            Some(of.own(bias)?.broadcast_as(each)?.contiguous()?.flatten_all()?)
        }
        None => None,
    };
    let padding = Padding { top: rows.before, bottom: rows.after, left: columns.before, right: columns.after };
    // cuDNN would round operands to TF32 where candle's kernel does not.
    let y = match x.dtype() {
        DType::F32 => product(&x, &weight, bias.as_ref(), padding)?,
        _ => {
            let config = ConvConfig::default().padding(padding);
            ops::conv2d(&x, &weight, bias.as_ref(), &config)?.permute((0, 2, 3, 1))?
        }
    };
    // The elements of a stride come beside each other. Channels are innermost, so rows of one element need no copy.
    let (_, windows_down, windows_right, _) = y.dims4()?;
    let y = y.reshape(vec![batch, windows_down, windows_right, rows.stride, columns.stride, out])?;
    let y = y.permute(vec![0, 1, 3, 2, 4, 5])?;
    let y = y.reshape((batch, windows_down * rows.stride, windows_right * columns.stride, out))?;
    let y = y.narrow(1, rows.first, rows.len)?.narrow(2, columns.first, columns.len)?.contiguous()?;
    // Strides of dimensions of one, too, are those of a tensor that was not cut.
    y.reshape((batch, rows.len, columns.len, out))?.permute((0, 3, 1, 2))
}

/// Rows or columns of a transposed convolution as an ordinary one.
#[derive(Clone, Copy)]
struct Along {
    stride: usize,
    /// Elements of the ordinary convolution's weight.
    taps: usize,
    /// Zeros before and behind `x`.
    before: usize,
    after: usize,
    /// The first element that is part of the result, and how many are.
    first: usize,
    len: usize,
}

impl Along {
    /// Of `size` elements of `x` and `len` of the result. The padding is less than the kernel.
    fn of(window: &Window, size: usize, len: usize, axis: usize) -> Self {
        let [kernel, padding, stride] = [window.kernel, window.padding, window.stride].map(|pair| pair[axis] as usize);
        let taps = kernel.div_ceil(stride);
        let before = (taps - 1).saturating_sub(padding / stride);
        let after = (padding + len).div_ceil(stride).saturating_sub(size);
        Self { stride, taps, before, after, first: padding % stride, len }
    }
}

/// The weight of the ordinary convolution, `(row of a stride * column of a stride * out, channels, taps, taps)`.
fn arranged(weight: &Tensor, [rows, columns]: [Along; 2]) -> Result<Tensor> {
    let (channels, out, kernel_rows, kernel_columns) = weight.dims4()?;
    let weight = weight.pad_with_zeros(2, 0, rows.taps * rows.stride - kernel_rows)?;
    let weight = weight.pad_with_zeros(3, 0, columns.taps * columns.stride - kernel_columns)?;
    let shape = vec![channels, out, rows.taps, rows.stride, columns.taps, columns.stride];
    let weight = reversed(&reversed(&weight.reshape(shape)?, 2)?, 4)?;
    let out = rows.stride * columns.stride * out;
    weight.permute(vec![3, 5, 1, 0, 2, 4])?.reshape((out, channels, rows.taps, columns.taps))
}

/// The elements of a dimension from the last to the first.
fn reversed(x: &Tensor, dim: usize) -> Result<Tensor> {
    let elements = (0..x.dim(dim)?).rev().map(|at| x.narrow(dim, at, 1)).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&elements, dim)
}

/// A convolution as a product of the elements under each window, `(batch, h, w, out)`.
fn product(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, padding: Padding) -> Result<Tensor> {
    let (out, channels, rows, columns) = weight.dims4()?;
    let x = ops::pad(x, padding)?.permute((0, 2, 3, 1))?;
    let (batch, h, w, _) = x.dims4()?;
    let (h, w) = (h + 1 - rows, w + 1 - columns);
    let under = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let under = under.map(|(row, column)| x.narrow(1, row, h)?.narrow(2, column, w)?.contiguous());
    let under = under.collect::<Result<Vec<_>>>()?;
    let under = ops::cat(&under.iter().collect::<Vec<_>>(), 3)?;
    let inner = rows * columns * channels;
    let weight = weight.permute((0, 2, 3, 1))?.reshape((out, inner))?;
    let y = ops::linear_act(&under.reshape((batch * h * w, inner))?, &weight, bias, Activation::None)?;
    y.reshape((batch, h, w, out))
}
