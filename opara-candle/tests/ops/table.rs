//! Every operator and layer with its operands, for tests that hold for all of them.

use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device::Cpu, Module, Result, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::{
    self, Activation, CachedAttention, ConvConfig, NewTokens, PackedWeight, Padding, PoolConfig, QuantizedWeight,
    Sampler, Sampling,
};
use opara_candle::{candle_nn, nn};

use crate::values;

/// Sizes that shapes are made of: of batches, rows, columns, and what a matrix has besides.
pub type Sizes = [usize; 4];

/// Sizes that are not zero.
pub const SOME: Sizes = [2, 4, 6, 3];

/// An operand of an operator.
#[derive(Clone, Debug)]
pub enum Operand {
    /// Floats of this shape.
    Floats(Vec<usize>),
    /// Integers of u32 of this shape, below this number.
    Ids(Vec<usize>, u32),
    /// Zeros and ones of u8.
    Bits(Vec<usize>),
}

use Operand::{Bits, Floats, Ids};

impl Operand {
    /// Contiguous values.
    pub fn values(&self, seed: usize, dtype: DType) -> Result<Tensor> {
        let ids = |shape: &[usize], below: u32| {
            let n = shape.iter().product::<usize>();
            Tensor::from_iter((0..n).map(|i| ((i * 7 + seed) as u32) % below.max(1)), &Cpu)?.reshape(shape)
        };
        match self {
            Floats(shape) => values(seed, shape, dtype),
            Ids(shape, below) => ids(shape, *below),
            Bits(shape) => ids(shape, 2)?.to_dtype(DType::U8),
        }
    }

    pub fn shape(&self) -> &[usize] {
        match self {
            Floats(shape) | Ids(shape, _) | Bits(shape) => shape,
        }
    }
}

type Shapes = Box<dyn Fn(Sizes) -> Vec<Vec<usize>>>;

/// Computes outputs of inputs.
pub type Run = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// An operator on its operands.
pub struct Case {
    pub name: &'static str,
    pub operands: Box<dyn Fn(Sizes) -> Vec<Operand>>,
    /// The shapes of its results.
    pub results: Shapes,
    pub run: Box<Run>,
}

fn case<O, R, F>(name: &'static str, operands: O, results: R, run: F) -> Case
where
    O: Fn(Sizes) -> Vec<Operand> + 'static,
    R: Fn(Sizes) -> Vec<usize> + 'static,
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    let (results, run) = (move |sizes| vec![results(sizes)], move |t: &[Tensor]| Ok(vec![run(t)?]));
    Case { name, operands: Box::new(operands), results: Box::new(results), run: Box::new(run) }
}

fn floats(shapes: &[&[usize]]) -> Vec<Operand> {
    shapes.iter().map(|shape| Floats(shape.to_vec())).collect()
}

/// A layer whose weights are operands.
fn weights(names: &[&str], tensors: &[Tensor]) -> VarBuilder<'static> {
    let named = names.iter().zip(tensors).map(|(name, tensor)| (name.to_string(), tensor.clone()));
    VarBuilder::from_tensors(named.collect(), tensors[0].dtype(), &Cpu)
}

/// A quantised weight `(rows, 32)`.
fn quantized(rows: usize) -> Result<QuantizedWeight> {
    let weight = values(9, &[rows, 32], DType::F32)?;
    QuantizedWeight::new(&[&QTensor::quantize(&weight, GgmlDType::Q8_0)?], &Cpu)
}

fn unary(name: &'static str, f: fn(&Tensor) -> Result<Tensor>) -> Case {
    case(name, |[b, n, m, _]| floats(&[&[b, n, m]]), |[b, n, m, _]| vec![b, n, m], move |t| f(&t[0]))
}

fn binary(name: &'static str, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Case {
    let operands = |[b, n, m, _]: Sizes| floats(&[&[b, n, m], &[n, m]]);
    case(name, operands, |[b, n, m, _]| vec![b, n, m], move |t| f(&t[0], &t[1]))
}

/// All cases.
pub fn cases() -> Vec<Case> {
    [element_wise(), views(), products(), rows(), images(), layers(), others()].into_iter().flatten().collect()
}

fn element_wise() -> Vec<Case> {
    let all = |[b, n, m, _]: Sizes| vec![b, n, m];
    let one = |[b, n, m, _]: Sizes| floats(&[&[b, n, m]]);
    vec![
        unary("relu", ops::relu),
        unary("gelu_erf", ops::gelu_erf),
        unary("gelu", ops::gelu),
        unary("silu", ops::silu),
        unary("sigmoid", ops::sigmoid),
        unary("tanh", ops::tanh),
        unary("sqr", ops::sqr),
        unary("Activation", |x| Activation::Silu.forward(x)),
        binary("add", ops::add),
        binary("sub", ops::sub),
        binary("mul", ops::mul),
        binary("div", |x, y| ops::div(x, &ops::affine(y, 0.1, 2.)?)),
        binary("eq", ops::eq),
        case("affine", one, all, |t| ops::affine(&t[0], 3., 0.5)),
        case("to_dtype", one, all, |t| ops::to_dtype(&t[0], DType::F64)),
        case("custom", one, all, |t| ops::custom("softplus", &[&t[0]], |t| (t[0].exp()? + 1.)?.log())),
        case("constant", |_| vec![], |_| vec![3], |_| ops::constant("ones", || Tensor::ones(3, DType::F32, &Cpu))),
        case(
            "where_cond",
            |[b, n, ..]| vec![Bits(vec![b, n]), Floats(vec![b, n]), Floats(vec![b, n])],
            |[b, n, ..]| vec![b, n],
            |t| ops::where_cond(&t[0], &t[1], &t[2]),
        ),
    ]
}

fn views() -> Vec<Case> {
    let one = |[b, n, m, _]: Sizes| floats(&[&[b, n, m]]);
    vec![
        case(
            "reshape",
            one,
            |[b, n, m, _]| vec![m, b, n],
            |t| {
                let (b, n, m) = t[0].dims3()?;
                ops::reshape(&t[0], (m, b, n))
            },
        ),
        case(
            "narrow",
            one,
            |[b, n, m, _]| vec![b, n / 2, m],
            |t| {
                let n = t[0].dim(1)?;
                ops::narrow(&t[0], 1, n / 2, n / 2)
            },
        ),
        case(
            "broadcast_as",
            one,
            |[b, n, m, _]| vec![2, b, n, m],
            |t| {
                let (b, n, m) = t[0].dims3()?;
                ops::broadcast_as(&t[0], (2, b, n, m))
            },
        ),
        case("transpose", one, |[b, n, m, _]| vec![b, m, n], |t| ops::transpose(&t[0], 1, 2)),
        case("permute", one, |[b, n, m, _]| vec![m, b, n], |t| ops::permute(&t[0], &[2, 0, 1])),
        case("unsqueeze", one, |[b, n, m, _]| vec![b, 1, n, m], |t| ops::unsqueeze(&t[0], 1)),
        case("squeeze", |[b, n, ..]| floats(&[&[b, 1, n]]), |[b, n, ..]| vec![b, n], |t| ops::squeeze(&t[0], 1)),
        case("contiguous", one, |[b, n, m, _]| vec![b, n, m], |t| ops::contiguous(&t[0])),
        case(
            "cat",
            |[b, n, m, k]| floats(&[&[b, n, m], &[b, k, m]]),
            |[b, n, m, k]| vec![b, n + k, m],
            |t| ops::cat(&[&t[0], &t[1]], 1),
        ),
        case(
            "cat_sums",
            |[b, n, m, k]| floats(&[&[b, n, m], &[b, n, m], &[b, k, m]]),
            |[b, n, m, k]| vec![b, n + k, m],
            |t| ops::cat_sums(&[(&t[0], Some(&t[1])), (&t[2], None)], 1, Activation::Relu),
        ),
        case(
            "index_select",
            |[b, n, m, k]| vec![Floats(vec![b, n, m]), Ids(vec![k], n as u32)],
            |[b, _, m, k]| vec![b, k, m],
            |t| ops::index_select(&t[0], &t[1], 1),
        ),
        case(
            "embedding",
            |[b, n, m, k]| vec![Floats(vec![n, m]), Ids(vec![b, k], n as u32)],
            |[b, _, m, k]| vec![b, k, m],
            |t| ops::embedding(&t[0], &t[1]),
        ),
        case(
            "split_heads",
            |[b, n, m, _]| floats(&[&[b, n, 2 * m], &[2 * m]]),
            |[b, n, m, _]| vec![b, 2, n, m],
            |t| ops::split_heads(&t[0], Some(&t[1]), 2, 0.5),
        ),
        case(
            "merge_heads",
            |[b, n, m, k]| floats(&[&[b, n, m, k]]),
            |[b, n, m, k]| vec![b, m, n * k],
            |t| ops::merge_heads(&t[0]),
        ),
    ]
}

fn products() -> Vec<Case> {
    let linear = |[b, n, m, k]: Sizes| floats(&[&[b, n, m], &[k, m], &[k]]);
    let normed = |[b, n, m, k]: Sizes| floats(&[&[b, n, m], &[m], &[k, m], &[k]]);
    let rows = |[b, n, _, k]: Sizes| vec![b, n, k];
    vec![
        case("matmul", |[b, n, m, k]| floats(&[&[b, n, m], &[b, m, k]]), rows, |t| ops::matmul(&t[0], &t[1])),
        case(
            "matmul",
            |[b, n, m, k]| floats(&[&[b, 2, n, m], &[m, k]]),
            |[b, n, _, k]| vec![b, 2, n, k],
            |t| {
                let (b, two, ..) = t[0].dims4()?;
                ops::matmul(&t[0], &ops::broadcast_as(&t[1], [&[b, two], t[1].dims()].concat())?)
            },
        ),
        case(
            "matmul",
            |[b, n, m, k]| floats(&[&[b, 2, 1, n, m], &[b, 2, 1, m, k]]),
            |[b, n, _, k]| vec![b, 2, 1, n, k],
            |t| ops::matmul(&t[0], &t[1]),
        ),
        case("linear", linear, rows, |t| ops::linear(&t[0], &t[1], Some(&t[2]))),
        case(
            "linear",
            |[b, n, m, k]| floats(&[&[b, n, 2, m], &[k, m]]),
            |[b, n, _, k]| vec![b, n, 2, k],
            |t| ops::linear(&t[0], &t[1], None),
        ),
        case(
            "linear",
            |[_, _, m, k]| floats(&[&[m], &[k, m], &[k]]),
            |[_, _, _, k]| vec![k],
            |t| ops::linear(&t[0], &t[1], Some(&t[2])),
        ),
        case("linear_act", linear, rows, |t| ops::linear_act(&t[0], &t[1], Some(&t[2]), Activation::Gelu)),
        case("linear_packed", linear, rows, |t| match PackedWeight::new(&t[1])? {
            Some(packed) => ops::linear_packed(&t[0], &packed, Some(&t[2]), Activation::Silu),
            None => ops::linear_act(&t[0], &t[1], Some(&t[2]), Activation::Silu),
        }),
        case("norm_linear", normed, rows, |t| ops::norm_linear(&t[0], Some((&t[1], 1e-3)), &t[2], Some(&t[3]), None)),
        case(
            "norm_linear",
            |[b, n, m, k]| floats(&[&[b, n, m], &[k, m], &[b, n, k]]),
            rows,
            |t| ops::norm_linear(&t[0], None, &t[1], None, Some(&t[2])),
        ),
        case("norm_linear_act", normed, rows, |t| {
            ops::norm_linear_act(&t[0], Some((&t[1], 1e-3)), &t[2], Some(&t[3]), Activation::Silu)
        }),
        case(
            "norm_gated",
            |[b, n, m, k]| floats(&[&[b, n, m], &[m], &[2 * k, m], &[2 * k]]),
            rows,
            |t| ops::norm_gated(&t[0], Some((&t[1], 1e-3)), &t[2], Some(&t[3]), Activation::Silu),
        ),
        case(
            "gated",
            |[b, n, m, _]| floats(&[&[b, n, 2 * m]]),
            |[b, n, m, _]| vec![b, n, m],
            |t| ops::gated(&t[0], Activation::Silu),
        ),
        case(
            "quantized_linear",
            |[b, n, ..]| floats(&[&[b, n, 32], &[32], &[10], &[b, n, 10]]),
            |[b, n, ..]| vec![b, n, 10],
            |t| ops::quantized_linear(&t[0], Some((&t[1], 1e-3)), &quantized(10)?, Some(&t[2]), Some(&t[3])),
        ),
        case(
            "quantized_gated",
            |[b, n, ..]| floats(&[&[b, n, 32], &[10]]),
            |[b, n, ..]| vec![b, n, 5],
            |t| ops::quantized_gated(&t[0], None, &quantized(10)?, Some(&t[1]), Activation::Silu),
        ),
        case(
            "quantized_embedding",
            |[b, n, ..]| vec![Ids(vec![b, n], 10)],
            |[b, n, ..]| vec![b, n, 32],
            |t| ops::quantized_embedding(&quantized(10)?, &t[0], DType::F32),
        ),
        case("dequantize", |_| vec![], |_| vec![10, 32], |_| quantized(10)?.dequantize(DType::F32)),
    ]
}

fn rows() -> Vec<Case> {
    let all = |[b, n, m, _]: Sizes| vec![b, n, m];
    let heads = |[b, n, m, k]: Sizes| floats(&[&[b, 2, n, m], &[b, 2, k, m], &[b, 2, k, m], &[b, 1, 1, k]]);
    vec![
        case("softmax_last_dim", |[b, n, m, _]| floats(&[&[b, n, m]]), all, |t| ops::softmax_last_dim(&t[0])),
        case(
            "add_softmax",
            |[b, n, m, _]| floats(&[&[b, n, m], &[b, 1, m]]),
            all,
            |t| ops::add_softmax(&t[0], Some(&t[1])),
        ),
        case(
            "layer_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[m]]),
            all,
            |t| ops::layer_norm(&t[0], &t[1], &t[2], 1e-3),
        ),
        case(
            "add_layer_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[b, n, m], &[m], &[m]]),
            all,
            |t| ops::add_layer_norm(&t[0], Some(&t[1]), &t[2], &t[3], &t[4], 1e-3),
        ),
        case("rms_norm", |[b, n, m, _]| floats(&[&[b, n, m], &[m]]), all, |t| ops::rms_norm(&t[0], &t[1], 1e-3)),
        Case {
            name: "add_rms_norm",
            operands: Box::new(|[b, n, m, _]| floats(&[&[b, n, m], &[b, n, m], &[m]])),
            results: Box::new(|[b, n, m, _]| vec![vec![b, n, m]; 2]),
            run: Box::new(|t| {
                let (sum, normed) = ops::add_rms_norm(&t[0], &t[1], &t[2], 1e-3)?;
                Ok(vec![sum, normed])
            }),
        },
        case(
            "group_norm",
            |[b, n, m, k]| floats(&[&[b, 2 * n, m, k], &[2 * n], &[2 * n]]),
            |[b, n, m, k]| vec![b, 2 * n, m, k],
            |t| ops::group_norm(&t[0], &t[1], &t[2], 2, 1e-3, Activation::Silu),
        ),
        case(
            "attention",
            heads,
            |[b, n, m, _]| vec![b, 2, n, m],
            |t| ops::attention(&t[0], &t[1], &t[2], Some(&t[3]), 0.5),
        ),
        case(
            "attention",
            |[b, n, m, k]| floats(&[&[b, 4, n, m], &[b, 2, k, m], &[b, 2, k, m]]),
            |[b, n, m, _]| vec![b, 4, n, m],
            |t| ops::attention(&t[0], &t[1], &t[2], None, 1.),
        ),
        case(
            "mean_keepdim",
            |[b, n, m, _]| floats(&[&[b, n, m]]),
            |[b, _, m, _]| vec![b, 1, m],
            |t| ops::mean_keepdim(&t[0], 1),
        ),
        case(
            "sum_keepdim",
            |[b, n, m, _]| floats(&[&[b, n, m]]),
            |[b, _, m, _]| vec![b, 1, m],
            |t| ops::sum_keepdim(&t[0], 1),
        ),
        case("argmax", |[b, n, m, _]| floats(&[&[b, n, m]]), |[b, n, ..]| vec![b, n], |t| ops::argmax(&t[0], 2)),
        case("argmax", |[b, n, m, _]| floats(&[&[b, n, m]]), |[b, _, m, _]| vec![b, m], |t| ops::argmax(&t[0], 1)),
    ]
}

fn images() -> Vec<Case> {
    let image = |[b, n, m, _]: Sizes| floats(&[&[b, n, m, m]]);
    let same = ConvConfig::default().padding(1);
    vec![
        case(
            "conv2d",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 3, 3], &[k]]),
            |[b, _, m, k]| vec![b, k, m, m],
            move |t| ops::conv2d(&t[0], &t[1], Some(&t[2]), &same.activation(Activation::Silu)),
        ),
        case(
            "conv2d",
            |[b, n, m, _]| floats(&[&[b, n, m, m], &[n, 1, 3, 3]]),
            |[b, n, m, _]| vec![b, n, m, m],
            move |t| ops::conv2d(&t[0], &t[1], None, &same.groups(t[0].dim(1)?)),
        ),
        case(
            "add_conv2d",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 1, 1], &[k], &[b, k, m, m]]),
            |[b, _, m, k]| vec![b, k, m, m],
            |t| ops::add_conv2d(&t[0], &t[1], Some(&t[2]), &t[3], &ConvConfig::default()),
        ),
        case(
            "conv2d_weight",
            |[_, n, m, k]| floats(&[&[n, m, k, k]]),
            |[_, n, m, k]| vec![n, m, k, k],
            |t| ops::conv2d_weight(&t[0], 1),
        ),
        case(
            "max_pool2d",
            image,
            |[b, n, m, _]| vec![b, n, m / 2, m / 2],
            |t| ops::max_pool2d(&t[0], &PoolConfig::new(2, 2)),
        ),
        case(
            "avg_pool2d",
            image,
            |[b, n, m, _]| vec![b, n, m, m],
            |t| ops::avg_pool2d(&t[0], &PoolConfig::new(3, 1).padding(1)),
        ),
        case("global_avg_pool2d", image, |[b, n, ..]| vec![b, n], |t| ops::global_avg_pool2d(&t[0])),
        case(
            "subsample",
            image,
            |[b, n, m, _]| vec![b, n, m.div_ceil(2), m.div_ceil(2)],
            |t| ops::subsample(&t[0], 1, 2),
        ),
        case(
            "upsample_nearest2d",
            image,
            |[b, n, m, _]| vec![b, n, 2 * m, 2 * m],
            |t| {
                let m = t[0].dim(2)?;
                ops::upsample_nearest2d(&t[0], 2 * m, 2 * m)
            },
        ),
        case(
            "pad",
            image,
            |[b, n, m, _]| vec![b, n, m + 3, m + 3],
            |t| ops::pad(&t[0], Padding { top: 1, bottom: 2, left: 3, right: 0 }),
        ),
    ]
}

fn layers() -> Vec<Case> {
    let linear = |[b, n, m, k]: Sizes| floats(&[&[b, n, m], &[k, m], &[k]]);
    let rows = |[b, n, _, k]: Sizes| vec![b, n, k];
    let of = |t: &[Tensor]| nn::Linear::new("linear", t[1].clone(), Some(t[2].clone()));
    let all = |[b, n, m, _]: Sizes| vec![b, n, m];
    let size = |t: &Tensor| t.dim(candle::D::Minus1);
    vec![
        case("nn::linear", linear, rows, |t| {
            let (out, k) = t[1].dims2()?;
            nn::linear(k, out, weights(&["weight", "bias"], &t[1..]))?.forward(&t[0])
        }),
        case(
            "nn::linear_no_bias",
            |[b, n, m, k]| floats(&[&[b, n, m], &[k, m]]),
            rows,
            |t| {
                let (out, k) = t[1].dims2()?;
                nn::linear_no_bias(k, out, weights(&["weight"], &t[1..]))?.forward(&t[0])
            },
        ),
        case("nn::Linear::forward_act", linear, rows, move |t| of(t).forward_act(&t[0], Activation::Gelu)),
        case("nn::Linear::forward_no_bias", linear, rows, move |t| ops::add(&of(t).forward_no_bias(&t[0])?, &t[2])),
        case(
            "nn::Linear::forward_heads",
            |[b, n, m, k]| floats(&[&[b, n, m], &[2 * k, m], &[2 * k]]),
            |[b, n, _, k]| vec![b, 2, n, k],
            move |t| of(t).forward_heads(&t[0], 2, 0.5),
        ),
        case("nn::PackedLinear", linear, rows, move |t| of(t).packed()?.forward(&t[0])),
        case("nn::PackedLinear::forward_act", linear, rows, move |t| {
            of(t).packed()?.forward_act(&t[0], Activation::Gelu)
        }),
        case("nn::PackedLinear::forward_no_bias", linear, rows, move |t| {
            ops::add(&of(t).packed()?.forward_no_bias(&t[0])?, &t[2])
        }),
        case(
            "nn::layer_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[m]]),
            all,
            move |t| nn::layer_norm(size(&t[0])?, 1e-3, weights(&["weight", "bias"], &t[1..]))?.forward(&t[0]),
        ),
        case(
            "nn::LayerNorm::forward_add",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m], &[m]]),
            all,
            move |t| {
                let norm = nn::layer_norm(size(&t[0])?, 1e-3, weights(&["weight", "bias"], &t[1..]))?;
                norm.forward_add(&t[0], Some(&t[2]), &t[0])
            },
        ),
        case(
            "nn::rms_norm",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m]]),
            all,
            move |t| nn::rms_norm(size(&t[0])?, 1e-3, weights(&["weight"], &t[1..]))?.forward(&t[0]),
        ),
        case(
            "nn::RmsNorm::forward_add",
            |[b, n, m, _]| floats(&[&[b, n, m], &[m]]),
            all,
            |t| Ok(nn::RmsNorm::new("norm", t[1].clone(), 1e-3).forward_add(&t[0], &t[0])?.1),
        ),
        case(
            "nn::embedding",
            |[b, n, m, k]| vec![Ids(vec![b, k], n as u32), Floats(vec![n, m])],
            |[b, _, m, k]| vec![b, k, m],
            |t| {
                let (rows, hidden) = t[1].dims2()?;
                nn::embedding(rows, hidden, weights(&["weight"], &t[1..]))?.forward(&t[0])
            },
        ),
        case(
            "nn::conv2d",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 3, 3], &[k]]),
            |[b, _, m, k]| vec![b, k, m, m],
            |t| {
                let (out, input, ..) = t[1].dims4()?;
                let (config, vb) = (ConvConfig::default().padding(1), weights(&["weight", "bias"], &t[1..]));
                nn::conv2d(input, out, (3, 3), config, vb)?.forward(&t[0])
            },
        ),
        case(
            "nn::conv2d_norm",
            |[b, n, m, k]| floats(&[&[b, n, m, m], &[k, n, 1, 1], &[k], &[k], &[k], &[k]]),
            |[b, _, m, k]| vec![b, k, m, m],
            |t| {
                let (out, input, ..) = t[1].dims4()?;
                // A variance is positive.
                let variance = ops::affine(&ops::sqr(&t[5])?, 1., 0.5)?;
                let t = [&t[..5], &[variance]].concat();
                let names = ["conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"];
                let vb = weights(&names, &t[1..]);
                let norm = nn::batch_norm(out, 1e-3, vb.pp("norm"))?;
                nn::conv2d_norm(input, out, (1, 1), ConvConfig::default(), &norm, vb.pp("conv"))?.forward(&t[0])
            },
        ),
        Case {
            name: "nn::KvCache::append",
            operands: Box::new(|[b, n, m, _]| floats(&[&[b, 2, n, m], &[b, 2, n, m]])),
            results: Box::new(|[b, _, m, _]| vec![vec![b, 2, 8, m]; 2]),
            run: Box::new(|t| {
                let (batch, heads, _, dim) = t[0].dims4()?;
                let cache = nn::KvCache::new(1, (batch, heads, dim), 8, t[0].dtype(), &Cpu)?;
                let (k, v) = cache.append(0, &t[0], &t[1])?;
                Ok(vec![k, v])
            }),
        },
        case(
            "nn::KvCache::rows",
            |[_, _, m, _]| floats(&[&[8, m]]),
            |[_, _, m, _]| vec![3, m],
            |t| nn::KvCache::new(1, (1, 1, 1), 8, DType::F32, &Cpu)?.rows(&t[0], 3),
        ),
    ]
}

fn others() -> Vec<Case> {
    let dim = |m: usize| 2 * m;
    vec![
        case(
            "cached_attention",
            move |[b, n, m, _]| vec![Floats(vec![b, n, 8 * dim(m)]), Ids(vec![b], 3), Floats(vec![8, dim(m)])],
            move |[b, n, m, _]| vec![b, n, 4 * dim(m)],
            |t| {
                let head_dim = t[2].dim(1)?;
                let of = CachedAttention { heads: 4, kv_heads: 2, head_dim, scale: 0.5, window: None, eps: 1e-3 };
                let cache = Tensor::zeros((t[0].dim(0)?, 2, 2, 8, head_dim), t[0].dtype(), &Cpu)?;
                let rotary = t[2].to_dtype(DType::F32)?;
                let new = NewTokens { qkv: &t[0], start: &t[1], rotary: Some(&rotary), norms: None, by_distance: None };
                ops::cached_attention(&of, &cache, new)
            },
        ),
        case(
            "sample",
            |[b, _, m, _]| vec![Floats(vec![b, m]), Ids(vec![b], 9)],
            |[b, ..]| vec![b],
            |t| {
                let rows = vec![Sampling { temperature: 0.8, seed: 3, ..Sampling::default() }; t[0].dim(0)?];
                ops::sample(&t[0], &Sampler::new(&rows, &Cpu)?, &t[1], None)
            },
        ),
    ]
}

/// Operators that write in place, which have no results.
pub const IN_PLACE: [&str; 4] = ["advance", "assign", "mark_seen", "write_rows"];
