//! Numbers of a step's functions that follow from the position.

use super::at_position::AtPosition;
use super::compute::Compute;
use super::graph::Node;
use crate::trace::{Element, Function};

/// The function that two nodes compute at two positions, if they are the same but for numbers that follow from the position.
pub(super) fn affine_at_position([node, other]: [&Node; 2], positions: [u64; 2]) -> Option<Compute> {
    let (Compute::Recorded(a), Compute::Recorded(b)) = (&node.compute, &other.compute) else { return None };
    let number = |a, b| AtPosition::through([a, b], positions);
    let (factor, summand) = match (a, b) {
        (&Function::Affine(factor, summand), &Function::Affine(other, another)) => {
            (number(factor.into(), other.into())?, number(summand.into(), another.into())?)
        }
        (&Function::AffineWide(factor, summand), &Function::AffineWide(other, another)) => {
            (number(factor, other)?, number(summand, another)?)
        }
        (&Function::Fill(a), &Function::Fill(b)) => {
            let of = |bits| of_bits(node.element, bits);
            (AtPosition { zero: 0., step: 0. }, number(of(a)?, of(b)?)?)
        }
        _ => return None,
    };
    Some(Compute::AffineAtPosition { factor, summand })
}

fn of_bits(element: Element, bits: u64) -> Option<f64> {
    element.number(bits).or_else(|| element.integer(bits).map(|integer| integer as f64))
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
        let number = |zero, step| AtPosition { zero, step };
        assert_eq!(affine, Some([number(0., 1.), number(2., -1.)]));
        let fill = both(|at| Function::Fill((at * 3.).to_bits().into()), [7, 61]);
        assert_eq!(fill, Some([number(0., 0.), number(0., 3.)]));
        assert_eq!(both(|at| Function::Power(at.into()), [7, 8]), None);
    }

    #[test]
    fn roundings_are_no_difference() {
        let tenths = |lengths| both(|at| Function::Affine(at * 0.1, 0.), lengths).unwrap()[0];
        let (short, long) = (tenths([7, 8]), tenths([7, 61]));
        assert!(short != long && short.is_near(long, 8, Element::F32));
        let squares = |lengths| both(|at| Function::Affine(at * at, 0.), lengths).unwrap()[0];
        assert!(!squares([7, 8]).is_near(squares([7, 61]), 8, Element::Bf16));
    }
}
