//! Computes the nodes of a graph by operators on tensors.

use candle::{bail, DType, Device, Module, Result, Tensor, D};
use opara_plan::rewrite::{Compute, Convolution, Node, ProductPrecision, Step, Value};
use opara_plan::trace::{Function, Order, Window};

use super::at_position::{affine_at_position, appended, at_position};
use super::attention::attention;
use super::batch_norm::{self, batch_moments, batch_norm};
use super::by_elements;
use super::elementwise::{activation_of, binary, in_order, unary};
use super::evaluation::{concat, Arithmetic, Evaluation};
use super::indexed::{gather, index_select, masked_fill, put, rotary, select};
use super::join::{below, joined};
use super::log_softmax::log_softmax_at;
use super::norms::{group_norm, layer_norm, norm_of_sum, rms_norm, row_norm, rows, sum_beside_norm};
use super::strided::shaped;
use super::transposed::{as_convolution, transposed_convolution};
use super::{attending, experts, quantized, windows};
use crate::ops::format::is_channels_last;
use crate::ops::{self, Activation, CachedAttention, ConvConfig, NewTokens, Padding, PoolConfig};

/// The result of a node, in some shape.
pub(super) fn compute(of: &mut Evaluation, node: &Node) -> Result<Tensor> {
    match &node.compute {
        Compute::Recorded(function) => recorded(of, node, function),
        #[cfg(feature = "cuda")]
        Compute::Opaque(number) => super::opaque::result(of, node, *number),
        #[cfg(not(feature = "cuda"))]
        Compute::Opaque(_) => bail!("a launch is of a device"),
        Compute::Concat { rows, widths } => concatenated(of, node, *rows, widths),
        Compute::ConcatRelu { rows, widths, are_sums } => concat_relu(of, node, *rows, widths, are_sums),
        Compute::FusedConvolution(convolution) => fused_convolution(of, node, convolution),
        Compute::TransposedConvolution { window, output_padding } => as_convolution(of, node, window, *output_padding),
        Compute::UpsampleNearest([rows, columns]) => {
            ops::upsample_nearest2d(&of.own(&node.operands[0])?, *rows as usize, *columns as usize)
        }
        Compute::Pool { window, end, is_max } => padded_pool(of, node, window, *end, *is_max),
        Compute::Attention(scores) => attention(of, node, scores),
        Compute::Linear { activation } => linear(of, node, activation.as_deref()),
        Compute::ActivatedProduct { activation } => activated_product(of, node, activation),
        Compute::ProductSum { factor } => product_sum(of, node, *factor),
        Compute::ProductConcat { have_bias } => Ok(joined_product(of, node, have_bias)?.0),
        Compute::ProductsOfOne { others, have_bias, tokens, size } => {
            products_of_one(of, node, others, have_bias, [*tokens as usize, *size as usize])
        }
        Compute::Gated { activation, has_bias } => gated(of, node, activation, *has_bias),
        Compute::QuantizedProduct { blocks, norm, end } => quantized::product(of, node, *blocks, *norm, end),
        Compute::LogSoftmaxAt { columns } => log_softmax_at(of, node, *columns),
        Compute::RowMean { columns, factor } => row_mean(of, node, *columns, *factor),
        Compute::RowNorm { columns, epsilon, is_rms } => row_norm(of, node, *columns, *epsilon, *is_rms),
        Compute::GroupNorm { groups, epsilon, silu } => group_norm(of, node, *groups, *epsilon, *silu),
        Compute::BatchNorm { epsilon } => batch_norm(of, node, *epsilon),
        Compute::ActivatedBatchNorm { epsilon, activation } => batch_norm::activated(of, node, *epsilon, activation),
        Compute::BatchMoments { variance } => batch_moments(of, node, *variance),
        Compute::NormOfSum { columns, epsilon, is_rms } => norm_of_sum(of, node, *columns, *epsilon, *is_rms),
        Compute::SumBesideNorm { norm, columns, epsilon } => sum_beside_norm(of, node, *norm, *columns, *epsilon),
        Compute::CachedAttention { heads, size, scale, window } => {
            cached_attention(of, node, [*heads, *size], *scale, *window)
        }
        Compute::Appended { rows, step } => appended(of, node, [*rows, *step]),
        Compute::AffineAtPosition { factor, summand } => affine_at_position(of, node, *factor, *summand),
        Compute::AtPosition { compute: with, operands } => {
            let node = &at_position(of, node, with, operands)?;
            compute(of, node)
        }
    }
}

fn concatenated(of: &mut Evaluation, node: &Node, rows: u64, widths: &[u64]) -> Result<Tensor> {
    let parts = node.operands.iter().map(|operand| of.whole_or_own(operand)).collect::<Result<Vec<_>>>()?;
    match concat(&parts, rows, widths) {
        Some(dim) => ops::cat(&parts.iter().collect::<Vec<_>>(), dim),
        None => in_rows(&parts, rows, widths),
    }
}

/// A concatenation along an inner dimension: blocks, each with elements of every part.
fn in_rows(parts: &[Tensor], rows: u64, widths: &[u64]) -> Result<Tensor> {
    let parts = parts.iter().zip(widths).map(|(part, &width)| shaped(part, &[rows as usize, width as usize]));
    ops::cat(&parts.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>(), 1)
}

/// `max(x, 0)` of a concatenation of parts, of which some are sums.
fn concat_relu(of: &mut Evaluation, node: &Node, rows: u64, widths: &[u64], are_sums: &[bool]) -> Result<Tensor> {
    let mut operands = node.operands.iter();
    let mut next = || operands.next().map_or_else(|| bail!("a part is missing"), |operand| of.whole_or_own(operand));
    let mut parts = Vec::with_capacity(are_sums.len());
    for &is_sum in are_sums {
        let part = next()?;
        if !is_sum {
            parts.push((part, None));
            continue;
        }
        // Summands lie alike, in the shape of an image if one of them has it.
        let other = next()?;
        let has_shape = |t: &Tensor| (is_channels_last(t), t.rank());
        let (part, other) = if has_shape(&other) > has_shape(&part) { (other, part) } else { (part, other) };
        let other = shaped(&other, part.dims())?;
        parts.push((part, Some(other)));
    }
    let first: Vec<Tensor> = parts.iter().map(|(part, _)| part.clone()).collect();
    if let Some(dim) = concat(&first, rows, widths) {
        let parts: Vec<_> = parts.iter().map(|(part, other)| (part, other.as_ref())).collect();
        return ops::cat_sums(&parts, dim, Activation::Relu);
    }
    let sum = |(part, other): &(Tensor, Option<Tensor>)| other.as_ref().map_or(Ok(part.clone()), |other| part + other);
    in_rows(&parts.iter().map(sum).collect::<Result<Vec<_>>>()?, rows, widths)?.relu()
}

fn recorded(of: &mut Evaluation, node: &Node, function: &Function) -> Result<Tensor> {
    let dtype = of.arithmetic.dtype(node.element);
    let is_typed = of.arithmetic == Arithmetic::Typed;
    Ok(match function {
        Function::Zeros => {
            // The device is that of any input.
            let device = of.device()?;
            Tensor::zeros(node.len as usize, dtype, &device)?
        }
        Function::Fill(bits) => filled(node, *bits, dtype, &of.device()?)?,
        Function::Copy => of.whole_or_own(&node.operands[0])?.to_dtype(dtype)?,
        Function::Unary(name) => {
            let operands = of.operands(node)?;
            in_order(&operands, |x| unary(name, &x[0]))?
        }
        Function::Binary(name) => {
            let operands = of.operands(node)?;
            in_order(&operands, |x| binary(name, &x[0], &x[1]))?
        }
        Function::Affine(factor, summand) => {
            let operands = of.operands(node)?;
            in_order(&operands, |x| x[0].affine((*factor).into(), (*summand).into()))?
        }
        Function::RowSum(columns) => {
            let (x, dims) = of.rows(&node.operands[0], *columns)?;
            x.sum(dims)?
        }
        Function::RowMax(columns) => {
            let (x, _) = of.rows(&node.operands[0], *columns)?;
            x.reshape(((), *columns as usize))?.max(1)?
        }
        Function::RowMin(columns) => {
            let (x, _) = of.rows(&node.operands[0], *columns)?;
            x.reshape(((), *columns as usize))?.min(1)?
        }
        Function::Softmax(columns) => {
            let x = rows(of, &node.operands[0], *columns)?;
            if is_typed || dtype == DType::F64 {
                candle_nn::ops::softmax_last_dim(&x)?
            } else {
                let e = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
                e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?
            }
        }
        Function::LayerNorm(columns, epsilon) => layer_norm(of, node, *columns, *epsilon)?,
        Function::RmsNorm(columns, epsilon) => rms_norm(of, node, *columns, *epsilon)?,
        Function::Matmul => {
            let [a, b] = [of.own(&node.operands[0])?, of.own(&node.operands[1])?];
            // candle takes transposed matrices, but not all views.
            a.matmul(&b).or_else(|_| a.contiguous()?.matmul(&b.contiguous()?))?
        }
        Function::Convolution(window) => {
            let (x, weight) = convolved(of, node, window)?;
            convolution(&x.contiguous()?, &weight, window)?
        }
        Function::TransposedConvolution { window, output_padding } => {
            transposed_convolution(of, node, window, *output_padding)?
        }
        Function::MaxPool(window) => pool(of, node, window, true)?,
        Function::MeanPool(window) => pool(of, node, window, false)?,
        Function::UpsampleNearest([rows, columns]) => {
            of.own(&node.operands[0])?.upsample_nearest2d(*rows as usize, *columns as usize)?
        }
        Function::IndexSelect { left, from, right } => {
            index_select(of, node, [*left, *from, *right])?.to_dtype(dtype)?
        }
        Function::Gather(shape) => gather(of, node, shape)?,
        Function::IndexAdd(shape) | Function::ScatterAdd(shape) | Function::Scatter(shape) => {
            put(of, node, function, shape)?
        }
        Function::ArgSort(columns, order) => {
            let x = rows(of, &node.operands[0], *columns)?.reshape(((), *columns as usize))?;
            x.contiguous()?.arg_sort_last_dim(*order == Order::Ascending)?
        }
        Function::ArgMax(columns) => rows(of, &node.operands[0], *columns)?.argmax(D::Minus1)?,
        Function::ArgMin(columns) => rows(of, &node.operands[0], *columns)?.argmin(D::Minus1)?,
        Function::Where => select(of, node)?,
        Function::MaskedFill(bits) => {
            let numbers = filled(node, *bits, dtype, &of.device()?)?;
            masked_fill(of, node, &numbers)?
        }
        Function::Rotary(of_heads) => rotary(of, node, of_heads)?,
        Function::QuantizedProduct(blocks) => quantized::recorded(of, node, *blocks)?,
        Function::AffineWide(factor, summand) => {
            let operands = of.operands(node)?;
            in_order(&operands, |x| x[0].affine(*factor, *summand))?
        }
        Function::Power(exponent) => {
            let operands = of.operands(node)?;
            in_order(&operands, |x| x[0].powf(*exponent))?
        }
        Function::Elu(factor) => {
            let operands = of.operands(node)?;
            in_order(&operands, |x| x[0].elu(*factor))?
        }
        Function::Unfold(window) => windows::unfold(of, node, window)?,
        Function::Fold(window) => windows::fold(of, node, window)?,
        Function::UpsampleBilinear(bilinear) => windows::upsample(&of.own(&node.operands[0])?, bilinear)?,
        Function::Dequantized(blocks) => quantized::dequantized(of, node, *blocks)?,
        Function::QuantizedRows(blocks) => quantized::rows(of, node, *blocks)?,
        Function::ExpertProduct(product) => experts::product(of, node, product)?,
        Function::Count => experts::count(of, node)?,
        Function::Bounds => experts::bounds(of, node)?,
        Function::Attention(shape) => attending::attention(of, node, shape, None)?,
        Function::PagedAttention(shape, pages) => attending::attention(of, node, shape, Some(pages))?,
        Function::Upload | Function::Part => bail!("{function:?} is no value"),
    })
}

/// As many elements of these bits as a node has.
fn filled(node: &Node, bits: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    let len = node.len as usize;
    match (node.element.number(bits), node.element.integer(bits)) {
        (Some(number), _) if dtype == DType::F64 => Tensor::full(number, len, device),
        (Some(number), _) => Tensor::full(number as f32, len, device)?.to_dtype(dtype),
        (None, integer) => Tensor::full(integer.unwrap_or(bits as i64), len, device)?.to_dtype(dtype),
    }
}

/// The operand and the weight of a convolution, `(batch, channels, h, w)` and `(out, channels / groups, kh, kw)`.
fn convolved(of: &mut Evaluation, node: &Node, window: &Window) -> Result<(Tensor, Tensor)> {
    let [x, weight] = &node.operands[..2] else { bail!("a convolution has two operands") };
    let images = of.own(x)?;
    let [rows, columns] = window.kernel.map(|n| n as usize);
    let inner = images.dim(1)? / window.groups.max(1) as usize;
    let out = weight.len() as usize / (inner * rows * columns).max(1);
    Ok((images, of.operand(weight, &[out, inner, rows, columns])?))
}

/// candle's own; in f64 by products, as long as a window has few elements.
fn convolution(x: &Tensor, weight: &Tensor, window: &Window) -> Result<Tensor> {
    const FEW: u64 = 64;
    let [padding, stride, dilation] =
        [window.padding, window.stride, window.dilation].map(|pair| pair.map(|n| n as usize));
    if x.dtype() == DType::F64 && window.kernel.iter().product::<u64>() <= FEW {
        return by_elements::convolution(x, weight, window, (padding[0], padding[1]).into());
    }
    let groups = window.groups as usize;
    if window.kernel[1] == 1 && x.dim(3)? == 1 && padding[1] == 0 {
        let y = x.squeeze(3)?.conv1d(&weight.squeeze(3)?, padding[0], stride[0], dilation[0], groups)?;
        return y.unsqueeze(3);
    }
    if padding[0] != padding[1] || stride[0] != stride[1] || dilation[0] != dilation[1] {
        bail!("candle has no convolution over {window:?}")
    }
    x.conv2d(weight, padding[0], stride[0], dilation[0], groups)
}

/// A window's padding above and to the left, with that below and to the right.
fn padding(window: &Window, end: [u64; 2]) -> Padding {
    let [[top, left], [bottom, right]] = [window.padding, end].map(|pair| pair.map(|n| n as usize));
    Padding { top, bottom, left, right }
}

fn fused_convolution(of: &mut Evaluation, node: &Node, convolution: &Convolution) -> Result<Tensor> {
    let Convolution { of_relu, window, end, residual, activation, .. } = convolution;
    let (x, weight) = convolved(of, node, window)?;
    let dtype = x.dtype();
    let [stride, dilation] = [window.stride, window.dilation].map(|pair| pair.map(|n| n as usize));
    if stride[0] != stride[1] || dilation[0] != dilation[1] {
        bail!("there is no convolution over {window:?}")
    }
    let padding = padding(window, *end);
    let activation = activation.as_deref().map_or(Ok(Activation::None), activation_of)?;
    let (weight, bias) = folded(of, node, convolution, weight)?;
    let input_activation = if *of_relu { Activation::Relu } else { Activation::None };
    if dtype == DType::F64 && !residual {
        let x = input_activation.forward(&x)?;
        let y = by_elements::convolution(&x, &weight, window, padding)?;
        let y = bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.reshape((1, (), 1, 1))?))?;
        return activation.forward(&y);
    }
    let config = ConvConfig::default()
        .stride(stride[0])
        .padding(padding)
        .dilation(dilation[0])
        .groups(window.groups as usize)
        .input_activation(input_activation)
        .activation(activation)
        .precision(node.precision);
    let Some(residual) = node.operands.last().filter(|_| *residual) else {
        return ops::conv2d(&x, &weight, bias.as_ref(), &config);
    };
    let (out, _, kh, kw) = weight.dims4()?;
    let (h, w) = config.output((x.dim(2)?, x.dim(3)?), (kh, kw))?;
    let residual = of.operand(residual, &[x.dim(0)?, out, h, w])?;
    ops::add_conv2d(&x, &weight, bias.as_ref(), &residual, &config)
}

/// A convolution's weight, scaled for each channel, and what is added to it, in the weight's type, as its steps say.
pub(super) fn folded(
    of: &mut Evaluation,
    node: &Node,
    convolution: &Convolution,
    weight: Tensor,
) -> Result<(Tensor, Option<Tensor>)> {
    let dtype = weight.dtype();
    // `scale * y + shift` of each channel.
    let (mut scale, mut shift): (Option<Tensor>, Option<Tensor>) = (None, None);
    let plus = |x: Option<Tensor>, by: Tensor| x.map_or(Ok(by.clone()), |x| x + by);
    for (step, operand) in convolution.steps.iter().zip(&node.operands[2..]) {
        let by = of.constant(operand)?;
        match step {
            Step::Add => shift = Some(plus(shift, by)?),
            Step::Sub => shift = Some(plus(shift, by.neg()?)?),
            Step::Mul => {
                shift = shift.map(|shift| &shift * &by).transpose()?;
                scale = Some(scale.map_or(Ok(by.clone()), |scale| scale * by)?);
            }
            Step::Div => {
                shift = shift.map(|shift| &shift / &by).transpose()?;
                scale = Some(scale.map_or_else(|| by.recip(), |scale| scale / &by)?);
            }
        }
    }
    let weight = match scale {
        Some(scale) => weight.to_dtype(DType::F32)?.broadcast_mul(&scale.reshape(((), 1, 1, 1))?)?.to_dtype(dtype)?,
        None => weight,
    };
    let bias = shift.map(|shift| shift.to_dtype(dtype)).transpose()?;
    Ok((weight, bias))
}

/// Attention of new tokens over a cache of `[heads, size]`, to which their keys and values go.
fn cached_attention(
    of: &mut Evaluation,
    node: &Node,
    [heads, size]: [u64; 2],
    scale: f32,
    window: Option<u64>,
) -> Result<Tensor> {
    let [kv_heads, head_dim] = [heads, size].map(|n| n as usize);
    let tokens = node.operands[1].len() as usize / (kv_heads * head_dim).max(1);
    let parts = node.operands[..3].iter().map(|operand| of.own(operand)?.reshape((tokens, ())));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let qkv = ops::cat(&parts.iter().collect::<Vec<_>>(), 1)?.unsqueeze(0)?;
    let (cache, start) = (of.tensor(node.operands[3].value)?, of.tensor(node.operands[4].value)?);
    let heads = node.len as usize / (tokens * head_dim).max(1);
    let window = window.map(|window| window as usize);
    let of = CachedAttention { heads, kv_heads, head_dim, scale: scale.into(), window, eps: 0. };
    let new =
        NewTokens { qkv: &qkv, start: &start, counts: None, pages: None, rotary: None, norms: None, by_distance: None };
    ops::cached_attention(&of, &cache, new)
}

fn linear(of: &mut Evaluation, node: &Node, activation: Option<&str>) -> Result<Tensor> {
    let [x, weight] = [0, 1].map(|at| of.own(&node.operands[at]));
    let activation = activation.map_or(Ok(Activation::None), activation_of)?;
    let (x, weight) = (x?, weight?.contiguous()?);
    let bias = node.operands.get(2).map(|bias| of.own(bias)?.contiguous()).transpose()?;
    product(node.precision, &x, &weight, bias.as_ref(), activation)
}

/// Of rows before their activation.
fn activated_product(of: &mut Evaluation, node: &Node, activation: &str) -> Result<Tensor> {
    let [x, weight] = [0, 1].map(|at| of.own(&node.operands[at])?.contiguous());
    let (x, weight, activation) = (x?, weight?, activation_of(activation)?);
    let bias = node.operands.get(2).map(|bias| of.own(bias)?.contiguous()).transpose()?;
    match ops::small_product(&x, &weight, bias.as_ref(), [activation, Activation::None])? {
        Some(y) => Ok(y),
        None => product(node.precision, &activation.forward(&x)?, &weight, bias.as_ref(), Activation::None),
    }
}

/// The summand is the last operand.
fn product_sum(of: &mut Evaluation, node: &Node, factor: f32) -> Result<Tensor> {
    let Some((to, product)) = node.operands.split_last() else { bail!("a sum without a summand") };
    let [x, weight] = [0, 1].map(|at| of.own(&product[at])?.contiguous());
    let (x, weight) = (x?, weight?);
    let bias = product.get(2).map(|bias| of.own(bias)?.contiguous()).transpose()?;
    let to = shaped(&of.tensor(to.value)?, &[x.dim(0)?, weight.dim(0)?])?;
    ops::product_sum((factor, &x), (&weight, true), bias.as_ref(), &to)
}

fn product(
    precision: ProductPrecision,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    // One row of products is bound by its weight: one launch reads it.
    match (x.dim(0)?, precision) {
        (1, ProductPrecision::Fastest) => ops::norm_linear_act(x, None, weight, bias, activation),
        _ => ops::linear_in(precision, x, weight, bias, activation),
    }
}

/// One product with both weights, the gate's first.
fn gated(of: &mut Evaluation, node: &Node, activation: &str, has_bias: bool) -> Result<Tensor> {
    let weight = joined(of, node)?;
    let bias = match (&node.operands[1..], has_bias) {
        ([_, _], false) => None,
        ([_, of_gate, _, of_up], true) => Some(below(of, [of_gate, of_up])?),
        (others, _) => bail!("{} operands are not the weights of a gated unit", others.len()),
    };
    let (x, activation) = (&of.own(&node.operands[0])?.contiguous()?, activation_of(activation)?);
    match node.precision {
        ProductPrecision::Fastest => ops::norm_gated(x, None, &weight, bias.as_ref(), activation),
        precision => {
            let both = ops::linear_in(precision, x, &weight, bias.as_ref(), Activation::None)?;
            ops::gated(&both, activation)
        }
    }
}

/// One product with all weights below each other, and the columns of each.
fn joined_product(of: &mut Evaluation, node: &Node, have_bias: &[bool]) -> Result<(Tensor, Vec<usize>)> {
    let x = of.own(&node.operands[0])?.contiguous()?;
    let (mut operands, mut columns, mut biases) = (node.operands[1..].iter(), Vec::new(), Vec::new());
    let mut next = || operands.next().map_or_else(|| bail!("a product has no weight"), Ok);
    for &has_bias in have_bias {
        let rows = next()?.dims[0].len as usize;
        biases.push(if has_bias {
            of.own(next()?)?.contiguous()?
        } else {
            Tensor::zeros(rows, x.dtype(), x.device())?
        });
        columns.push(rows);
    }
    let bias = have_bias.contains(&true).then(|| Tensor::cat(&biases, 0)).transpose()?;
    let weight = joined(of, node)?;
    Ok((product(node.precision, &x, &weight, bias.as_ref(), Activation::None)?, columns))
}

/// The first of several products that are one. The others are known from then on: all are views, `(batch, tokens, heads, size)`.
fn products_of_one(
    of: &mut Evaluation,
    node: &Node,
    others: &[usize],
    have_bias: &[bool],
    [tokens, size]: [usize; 2],
) -> Result<Tensor> {
    let (y, columns) = joined_product(of, node, have_bias)?;
    let y = y.reshape(((), tokens, y.dim(1)? / size, size))?;
    let mut first = 0;
    let mut parts = columns.into_iter().map(|columns| {
        let heads = columns / size;
        first += heads;
        y.narrow(2, first - heads, heads)
    });
    let product = parts.next().unwrap_or_else(|| bail!("there are no products"))?;
    others.iter().zip(parts).try_for_each(|(&other, part)| of.learn(Value::Node(other), part?))?;
    Ok(product)
}

/// Sums of rows, which may be the planes of images whose channels lie beside each other, times a factor.
fn row_mean(of: &mut Evaluation, node: &Node, columns: u64, factor: f32) -> Result<Tensor> {
    let (x, dims) = of.rows(&node.operands[0], columns)?;
    if of.arithmetic != Arithmetic::Typed {
        return x.sum(dims)?.affine(factor.into(), 0.);
    }
    let images = match dims[..] {
        [2, 3] => x,
        _ => x.reshape((1, x.elem_count() / (columns as usize).max(1), 1, columns as usize))?,
    };
    ops::plane_sums(&images, factor.into())
}

/// A pool with padding, which means count.
fn padded_pool(of: &mut Evaluation, node: &Node, window: &Window, end: [u64; 2], is_max: bool) -> Result<Tensor> {
    let x = of.own(&node.operands[0])?;
    let config = PoolConfig::new(window.kernel[0] as usize, window.stride[0] as usize);
    let config = config.padding(padding(window, end)).count_padding(true);
    match is_max {
        true => ops::max_pool2d(&x, &config),
        false => ops::avg_pool2d(&x, &config),
    }
}

/// A pool, which padding is never part of.
fn pool(of: &mut Evaluation, node: &Node, window: &Window, is_max: bool) -> Result<Tensor> {
    let x = of.own(&node.operands[0])?;
    let [kernel, stride] = [window.kernel, window.stride].map(|pair| (pair[0] as usize, pair[1] as usize));
    let is_square = kernel.0 == kernel.1 && stride.0 == stride.1;
    let config = PoolConfig::new(kernel.0, stride.0);
    match (is_max, is_square && of.arithmetic == Arithmetic::Typed) {
        (true, true) => ops::max_pool2d(&x, &config),
        (false, true) => ops::avg_pool2d(&x, &config),
        (true, false) => x.max_pool2d_with_stride(kernel, stride),
        (false, false) => x.avg_pool2d_with_stride(kernel, stride),
    }
}
