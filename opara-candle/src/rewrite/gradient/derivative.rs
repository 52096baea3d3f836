//! The derivative of each kind of node.

use candle::Result;
use opara_plan::rewrite::{Compute, Convolution, Graph, Node};
use opara_plan::trace::{Element, Function};

use super::rows::Norm;
use super::step::Step;
use super::{attention, batch_norm, elementwise, images, indexed, products, rows};

/// Gives the gradients of a node's operands.
type Derivative<'a> = Box<dyn Fn(&mut Step) -> Result<()> + 'a>;

/// The derivative of a node, if it has one.
pub(super) fn derivative(compute: &Compute) -> Option<Derivative<'_>> {
    Some(match compute {
        Compute::Recorded(function) => return recorded(function),
        Compute::Concat { .. } => Box::new(rows::concat),
        Compute::Attention(scores) => Box::new(|step| attention::attention(step, scores)),
        Compute::Linear { activation: None } => Box::new(products::linear),
        Compute::ActivatedProduct { activation } => Box::new(|step| products::activated(step, activation)),
        Compute::ProductSum { factor } => Box::new(|step| products::product_sum(step, *factor)),
        Compute::LogSoftmaxAt { columns } => Box::new(|step| rows::log_softmax_at(step, *columns)),
        Compute::RowMean { columns, factor } => Box::new(|step| rows::sum(step, *columns, (*factor).into())),
        &Compute::RowNorm { columns, epsilon, is_rms } => norm(Norm { columns, epsilon, is_rms, summands: 1 }),
        &Compute::NormOfSum { columns, epsilon, is_rms } => norm(Norm { columns, epsilon, is_rms, summands: 2 }),
        Compute::GroupNorm { groups, epsilon, silu } => {
            Box::new(|step| rows::group_norm(step, *groups, *epsilon, *silu))
        }
        Compute::FusedConvolution(of) if *of == Convolution::new(of.window) => {
            Box::new(|step| images::convolution_by_library(step, &of.window))
        }
        Compute::BatchNorm { epsilon } => Box::new(|step| batch_norm::batch_norm(step, *epsilon)),
        Compute::ActivatedBatchNorm { epsilon, activation } => {
            Box::new(|step| batch_norm::activated(step, *epsilon, activation))
        }
        Compute::BatchMoments { variance } => Box::new(|step| batch_norm::batch_moments(step, variance.is_some())),
        Compute::UpsampleNearest(size) => Box::new(|step| images::upsample_nearest(step, *size)),
        _ => return None,
    })
}

fn norm<'a>(of: Norm) -> Derivative<'a> {
    Box::new(move |step| rows::norm(step, &of))
}

fn recorded(function: &Function) -> Option<Derivative<'_>> {
    Some(match function {
        Function::Copy => Box::new(elementwise::copy),
        Function::Unary(name) if elementwise::UNARY.contains(&&name[..]) => {
            Box::new(|step| elementwise::unary(step, name))
        }
        Function::Binary(name) if elementwise::BINARY.contains(&&name[..]) => {
            Box::new(|step| elementwise::binary(step, name))
        }
        Function::Affine(factor, _) => Box::new(|step| elementwise::affine(step, (*factor).into())),
        Function::AffineWide(factor, _) => Box::new(|step| elementwise::affine(step, *factor)),
        Function::Power(exponent) => Box::new(|step| elementwise::power(step, *exponent)),
        Function::Elu(factor) => Box::new(|step| elementwise::elu(step, *factor)),
        Function::Where | Function::MaskedFill(_) => Box::new(elementwise::chosen),
        Function::RowSum(columns) => Box::new(|step| rows::sum(step, *columns, 1.)),
        Function::RowMax(columns) | Function::RowMin(columns) => Box::new(|step| rows::extreme(step, *columns)),
        Function::Softmax(columns) => Box::new(|step| rows::softmax(step, *columns)),
        &Function::LayerNorm(columns, epsilon) => norm(Norm { columns, epsilon, is_rms: false, summands: 1 }),
        &Function::RmsNorm(columns, epsilon) => norm(Norm { columns, epsilon, is_rms: true, summands: 1 }),
        Function::Matmul => Box::new(products::matmul),
        Function::Convolution(window) => Box::new(|step| images::convolution(step, window)),
        Function::TransposedConvolution { window, output_padding } => {
            Box::new(|step| images::transposed_convolution(step, window, *output_padding))
        }
        Function::MaxPool(window) => Box::new(|step| images::pool(step, window, true)),
        Function::MeanPool(window) => Box::new(|step| images::pool(step, window, false)),
        Function::Unfold(window) => Box::new(|step| images::unfold(step, window)),
        Function::Fold(window) => Box::new(|step| images::fold(step, window)),
        Function::UpsampleNearest(size) => Box::new(|step| images::upsample_nearest(step, *size)),
        Function::UpsampleBilinear(of) => Box::new(|step| images::upsample_bilinear(step, of)),
        Function::IndexSelect { left, from, right } => {
            Box::new(|step| indexed::index_select(step, [*left, *from, *right]))
        }
        Function::Gather(shape) => Box::new(|step| indexed::gather(step, shape)),
        Function::IndexAdd(shape) | Function::ScatterAdd(shape) | Function::Scatter(shape) => {
            Box::new(move |step| indexed::put(step, function, shape))
        }
        Function::Rotary(rotary) => Box::new(|step| indexed::rotary(step, rotary)),
        _ => return None,
    })
}

/// Whether the derivative gives the gradient of this operand.
pub(super) fn is_given(node: &Node, operand: usize) -> bool {
    match node.compute {
        Compute::Recorded(Function::Rotary(_)) => operand == 0,
        _ => true,
    }
}

/// Whether a node's results change with an operand's elements, wherever these are changed by little.
pub(super) fn is_read(graph: &Graph, node: &Node, operand: usize) -> bool {
    let is_float = |element: Element| element.is_float() || element == Element::F64;
    let are_floats = is_float(node.element) && is_float(graph.element(node.operands[operand].value));
    let is_smooth = match &node.compute {
        Compute::Recorded(Function::Unary(name)) => !["ceil", "floor", "round", "sign"].contains(&&name[..]),
        Compute::Attention(scores) => attention::is_reached(scores, operand),
        // The moments are its first operand's.
        Compute::BatchNorm { .. } | Compute::ActivatedBatchNorm { .. } => !matches!(operand, 1 | 2),
        _ => true,
    };
    are_floats && is_smooth
}
