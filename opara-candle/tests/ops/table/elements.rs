//! Operators of each element.

use candle::{DType, Device::Cpu, Module, Result, Tensor};
use opara_candle::ops::{self, Activation};

use super::{
    case, floats, Case,
    Operand::{Bits, Floats},
    Sizes,
};

fn unary(name: &'static str, f: fn(&Tensor) -> Result<Tensor>) -> Case {
    case(name, |[b, n, m, _]| floats(&[&[b, n, m]]), |[b, n, m, _]| vec![b, n, m], move |t| f(&t[0]))
}

fn binary(name: &'static str, f: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Case {
    let operands = |[b, n, m, _]: Sizes| floats(&[&[b, n, m], &[n, m]]);
    case(name, operands, |[b, n, m, _]| vec![b, n, m], move |t| f(&t[0], &t[1]))
}

pub(super) fn cases() -> Vec<Case> {
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
