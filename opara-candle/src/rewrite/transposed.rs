//! Transposed convolutions: candle's own, and as ordinary ones.

use candle::{bail, DType, Result, Tensor};
use opara_plan::rewrite::{Node, ProductPrecision};
use opara_plan::trace::Window;

use super::evaluation::{Arithmetic, Evaluation};
use crate::ops::{self, Activation, ConvConfig, Padding};

/// The operand, `(batch, channels, h, w)`, and the weight, `(channels, out / groups, kh, kw)`.
fn operands(of: &mut Evaluation, node: &Node) -> Result<[Tensor; 2]> {
    let [x, weight, ..] = &node.operands[..] else { bail!("a transposed convolution has two operands") };
    Ok([of.own(x)?, of.own(weight)?])
}

/// candle's own; in f64 by products where that is possible, since candle's kernel goes over all weights for each result.
pub(super) fn transposed_convolution(
    of: &mut Evaluation,
    node: &Node,
    window: &Window,
    output_padding: [u64; 2],
) -> Result<Tensor> {
    let is_ordinary = window.groups == 1 && window.dilation == [1; 2];
    let is_padded = (0..2).all(|axis| window.padding[axis] < window.kernel[axis]);
    if of.arithmetic == Arithmetic::In(DType::F64) && is_ordinary && is_padded {
        return as_convolution(of, node, window, output_padding);
    }
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
    // cuDNN would round operands to TF32 where candle's kernel does not, and has no fast convolution in f64.
    let y = match x.dtype() {
        DType::F32 | DType::F64 => product(node.precision, &x, &weight, bias.as_ref(), padding)?,
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
fn product(
    precision: ProductPrecision,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    padding: Padding,
) -> Result<Tensor> {
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
    let under = under.reshape((batch * h * w, inner))?;
    let y = ops::linear_in(precision, &under, &weight, bias, Activation::None)?;
    y.reshape((batch, h, w, out))
}

#[cfg(test)]
mod tests {
    use candle::Device;
    use opara_plan::rewrite::{rules, Compute, Graph, Input, Operand, Output, Value};
    use opara_plan::trace::{Dim, Element, Function};

    use super::*;
    use crate::rewrite::evaluate::{evaluate, Arithmetic, Numbers};

    const BATCH: usize = 2;
    const CHANNELS: usize = 3;
    const OUT: usize = 2;

    fn window(kernel: [u64; 2], padding: [u64; 2], stride: [u64; 2]) -> Window {
        Window { kernel, padding, stride, dilation: [1; 2], groups: 1 }
    }

    fn operand(value: Value, dims: &[u64]) -> Operand {
        let stride = |at: usize| dims[at + 1..].iter().product();
        let dims = dims.iter().enumerate().map(|(at, &len)| Dim { len, stride: stride(at) }).collect();
        Operand { value, first: 0, dims }
    }

    /// A transposed convolution of a plane, and its bias.
    fn graph(window: Window, output_padding: [u64; 2], plane: [u64; 2], element: Element) -> Graph {
        let [h, w] = window.transposed(plane, output_padding).unwrap();
        let (batch, channels, out) = (BATCH as u64, CHANNELS as u64, OUT as u64);
        let x = operand(Value::Input(0), &[batch, channels, plane[0], plane[1]]);
        let weight = operand(Value::Input(1), &[channels, out, window.kernel[0], window.kernel[1]]);
        let len = batch * out * h * w;
        let mut bias = operand(Value::Input(2), &[batch, out, h * w]);
        (bias.dims[0].stride, bias.dims[1].stride, bias.dims[2].stride) = (0, 1, 0);
        let function = Function::TransposedConvolution { window, output_padding };
        let input = |len, is_constant| Input { buffer: 0, element, len, is_constant };
        let inputs = vec![input(x.len(), false), input(weight.len(), true), input(out, true)];
        let node = |function, operands| {
            let compute = Compute::Recorded(function);
            Node::new(compute, operands, element, len)
        };
        let sum = vec![operand(Value::Node(0), &[len]), bias];
        let nodes = vec![node(function, vec![x, weight]), node(Function::Binary("add".into()), sum)];
        Graph { inputs, nodes, outputs: vec![Output { value: Value::Node(1), buffer: 9 }] }
    }

    /// Small multiples of an eighth, which every type has.
    fn inputs(graph: &Graph, dtype: DType) -> Result<Vec<Tensor>> {
        let number = |i: u64| ((i * 7 + i / 5 * 3) % 17) as f64 / 8. - 1.;
        let tensor = |input: &Input| Tensor::from_iter((0..input.len).map(number), &Device::Cpu)?.to_dtype(dtype);
        graph.inputs.iter().map(tensor).collect()
    }

    /// The definition, element by element.
    fn expected(inputs: &[Tensor], window: Window, output_padding: [u64; 2], plane: [u64; 2]) -> Result<Vec<f64>> {
        let [x, weight, bias] = [0, 1, 2].map(|at| inputs[at].to_dtype(DType::F64)?.to_vec1::<f64>());
        let (x, weight, bias) = (x?, weight?, bias?);
        let usizes = |pair: [u64; 2]| pair.map(|n| n as usize);
        let [h, w] = usizes(plane);
        let [oh, ow] = usizes(window.transposed(plane, output_padding).unwrap());
        let ([kh, kw], [down, right]) = (usizes(window.kernel), usizes(window.stride));
        let [top, left] = usizes(window.padding);
        let mut y: Vec<f64> = (0..BATCH * OUT * oh * ow).map(|i| bias[i / (oh * ow) % OUT]).collect();
        let planes = || (0..BATCH * CHANNELS * OUT).map(|i| (i / OUT / CHANNELS, i / OUT % CHANNELS, i % OUT));
        for (image, channel, out) in planes() {
            for (i, j, di, dj) in (0..h * w * kh * kw).map(|i| (i / kw / kh / w, i / kw / kh % w, i / kw % kh, i % kw))
            {
                let (row, column) = (i * down + di, j * right + dj);
                if row < top || column < left || row - top >= oh || column - left >= ow {
                    continue;
                }
                let x = x[((image * CHANNELS + channel) * h + i) * w + j];
                let weight = weight[((channel * OUT + out) * kh + di) * kw + dj];
                y[((image * OUT + out) * oh + row - top) * ow + column - left] += x * weight;
            }
        }
        Ok(y)
    }

    fn differ(got: &Tensor, expected: &[f64]) -> Result<f64> {
        let got = got.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        assert_eq!(got.len(), expected.len());
        Ok(got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0., f64::max))
    }

    fn values(graph: &Graph, inputs: &[Tensor], arithmetic: Arithmetic) -> Result<Tensor> {
        Ok(evaluate(graph, inputs, arithmetic, Numbers::All)?.remove(0))
    }

    fn rewritten(graph: &Graph) -> Graph {
        let mut changed = graph.clone();
        let fits = rules::apply(&mut changed, &[], &Default::default());
        assert_eq!(fits.iter().map(|fit| fit.rule).collect::<Vec<_>>(), ["transposed-convolution"; 2]);
        changed
    }

    /// Holds candle's operators and ours against the definition.
    fn check(window: Window, output_padding: [u64; 2], plane: [u64; 2], is_candles: bool) -> Result<()> {
        for (element, dtype) in [(Element::F32, DType::F32), (Element::F16, DType::F16), (Element::Bf16, DType::BF16)] {
            let graph = graph(window, output_padding, plane, element);
            let inputs = inputs(&graph, dtype)?;
            let expected = expected(&inputs, window, output_padding, plane)?;
            let said = format!("{window:?}, {output_padding:?} more of {plane:?} in {dtype:?}");
            let changed = rewritten(&graph);
            for graph in [&graph, &changed] {
                assert!(differ(&values(graph, &inputs, Arithmetic::In(DType::F64))?, &expected)? < 1e-12, "{said}");
            }
            let largest = expected.iter().fold(1f64, |largest, y| largest.max(y.abs()));
            let unit = match dtype {
                DType::F16 => 2f64.powi(-11),
                DType::BF16 => 2f64.powi(-8),
                _ => 2f64.powi(-22),
            };
            assert!(differ(&values(&changed, &inputs, Arithmetic::Typed)?, &expected)? <= unit * largest, "{said}");
            if is_candles && dtype == DType::F32 {
                let candles = values(&graph, &inputs, Arithmetic::Typed)?;
                assert!(differ(&candles, &expected)? <= unit * largest, "candle, {said}");
            }
        }
        Ok(())
    }

    #[test]
    fn rows_are_those_of_the_definition() -> Result<()> {
        for (stride, kernel) in (1..=4).flat_map(|stride| (1..=9).map(move |kernel| (stride, kernel))) {
            for (padding, more) in (0..kernel.min(4)).flat_map(|padding| (0..stride).map(move |more| (padding, more))) {
                for size in [1, 5] {
                    let window = window([kernel, 1], [padding, 0], [stride, 1]);
                    if window.transposed([size, 1], [more, 0]).is_some() {
                        // Without padding candle takes a product, whose batches it mixes up on a CPU.
                        check(window, [more, 0], [size, 1], padding + more > 0)?;
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn planes_are_those_of_the_definition() -> Result<()> {
        for (stride, kernel) in [(1, 3), (2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (3, 7), (4, 4)] {
            for (padding, more) in (0..kernel.min(2)).flat_map(|padding| (0..stride).map(move |more| (padding, more))) {
                let window = window([kernel; 2], [padding; 2], [stride; 2]);
                check(window, [more; 2], [4, 3], true)?;
            }
        }
        // candle has none whose rows and columns differ.
        check(window([4, 3], [1, 0], [2, 3]), [0, 2], [3, 4], false)
    }

    /// With a kernel of as many elements as some strides, no zero is in the weight, so nothing becomes NaN where candle's is finite.
    #[test]
    fn infinities_stay_where_they_are() -> Result<()> {
        for element in [Element::F32, Element::F16] {
            let window = window([4, 1], [1, 0], [2, 1]);
            let graph = graph(window, [0; 2], [6, 1], element);
            let mut inputs = inputs(&graph, DType::F32)?;
            let mut x = inputs[0].to_vec1::<f32>()?;
            (x[2], x[20], x[27]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
            inputs[0] = Tensor::new(x, &Device::Cpu)?;
            let kinds = |graph: &Graph| -> Result<Vec<u8>> {
                let y = values(graph, &inputs, Arithmetic::Typed)?.flatten_all()?.to_dtype(DType::F32)?;
                let kind =
                    |y: &f32| if y.is_nan() { 3 } else { u8::from(y.is_infinite()) + u8::from(*y == f32::INFINITY) };
                Ok(y.to_vec1::<f32>()?.iter().map(kind).collect())
            };
            let ours = kinds(&rewritten(&graph))?;
            assert!(ours == kinds(&graph)? && ours.contains(&1) && ours.contains(&2) && ours.contains(&3), "{ours:?}");
        }
        Ok(())
    }
}
