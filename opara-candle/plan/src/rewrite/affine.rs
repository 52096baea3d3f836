//! Numbers of a step's functions that follow from the position.

use super::compute::Compute;
use super::graph::Node;
use crate::trace::{Element, Function};

/// A number at position 0, and the difference that each token makes.
type AtPosition = [f64; 2];

/// The computation that two are behind texts of so many tokens: the same function, with other numbers.
pub(super) fn affine_at_position([node, other]: [&Node; 2], lengths: [u64; 2]) -> Option<Compute> {
    let (Compute::Recorded(a), Compute::Recorded(b)) = (&node.compute, &other.compute) else { return None };
    let number = |a: f64, b: f64| {
        let step = (b - a) / lengths[1].checked_sub(lengths[0]).filter(|apart| *apart > 0)? as f64;
        let number = [a - step * lengths[0] as f64, step];
        number.iter().all(|number| number.is_finite()).then_some(number)
    };
    let (factor, summand) = match (a, b) {
        (&Function::Affine(factor, summand), &Function::Affine(other, another)) => {
            (number(factor.into(), other.into())?, number(summand.into(), another.into())?)
        }
        (&Function::AffineWide(factor, summand), &Function::AffineWide(other, another)) => {
            (number(factor, other)?, number(summand, another)?)
        }
        (&Function::Fill(a), &Function::Fill(b)) => {
            let of = |bits| of_bits(node.element, bits);
            ([0.; 2], number(of(a)?, of(b)?)?)
        }
        _ => return None,
    };
    Some(Compute::AffineAtPosition { factor, summand })
}

fn of_bits(element: Element, bits: u64) -> Option<f64> {
    element.number(bits).or_else(|| element.integer(bits).map(|integer| integer as f64))
}

/// Whether a number is another one behind `length` tokens, and behind one less, but for its rounding to a type of elements.
pub(super) fn is_near(own: AtPosition, known: AtPosition, length: u64, element: Element) -> bool {
    let unit = match element {
        Element::F16 => 2f64.powi(-10),
        Element::Bf16 => 2f64.powi(-7),
        _ => f32::EPSILON.into(),
    };
    let at = |[zero, step]: AtPosition, length: u64| zero + step * length as f64;
    let is_same = |length| {
        let (own, known) = (at(own, length), at(known, length));
        (own - known).abs() <= 2. * unit * own.abs().max(known.abs())
    };
    is_same(length) && is_same(length.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(function: Function) -> Node {
        Node::new(Compute::Recorded(function), Vec::new(), Element::F32, 4)
    }

    fn both(function: impl Fn(f32) -> Function, lengths: [u64; 2]) -> Option<[AtPosition; 2]> {
        let nodes = lengths.map(|length| node(function(length as f32)));
        match affine_at_position([&nodes[0], &nodes[1]], lengths)? {
            Compute::AffineAtPosition { factor, summand } => Some([factor, summand]),
            _ => None,
        }
    }

    #[test]
    fn numbers_follow_from_the_position() {
        let affine = both(|at| Function::Affine(at, 2. - at), [7, 8]);
        assert_eq!(affine, Some([[0., 1.], [2., -1.]]));
        let fill = both(|at| Function::Fill((at * 3.).to_bits().into()), [7, 61]);
        assert_eq!(fill, Some([[0., 0.], [0., 3.]]));
        assert_eq!(both(|at| Function::Power(at.into()), [7, 8]), None);
    }

    #[test]
    fn roundings_are_no_difference() {
        let tenths = |lengths| both(|at| Function::Affine(at * 0.1, 0.), lengths).unwrap()[0];
        let (short, long) = (tenths([7, 8]), tenths([7, 61]));
        assert!(short != long && is_near(short, long, 8, Element::F32));
        let squares = |lengths| both(|at| Function::Affine(at * at, 0.), lengths).unwrap()[0];
        assert!(!is_near(squares([7, 8]), squares([7, 61]), 8, Element::Bf16));
    }
}
