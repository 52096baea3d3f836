//! Uploads of a module's host code whose numbers depend on the position.

use candle::{DType, Device, Tensor};
use opara_plan::rewrite::{self, AtPosition, Input};

use super::known::refused;
use crate::cuda::{Place, WholePass};
use crate::rewrite::evaluate::Arithmetic;
use crate::Result;

/// How the numbers of an upload depend on the position.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counted {
    pub input: usize,
    dtype: DType,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// Each follows from the position.
    Affine(Vec<AtPosition>),
    /// There are as many places as tokens: the first ones of these rows, or the last ones, each of some numbers.
    Grows { numbers: Vec<f64>, rows: usize, size: usize, are_last: bool },
    /// What the caller says of each place of so many rows.
    Given { rows: usize },
}

/// The place of what the caller says of each token: behind the tokens.
const MASK: Place = Place::Argument(1);

impl Counted {
    /// Those of a module, of a pass and of one in which the text has all tokens of its capacity.
    ///
    /// # Errors
    /// Numbers that depend on the length in another way.
    pub fn of([a, b]: [&WholePass; 2], lengths: [usize; 2]) -> Result<Vec<Self>> {
        let mut counted = Vec::new();
        for (input, places) in a.places.iter().zip(&b.places).enumerate() {
            let Input { element, len, .. } = a.graph.inputs[input];
            let dtype = Arithmetic::Typed.dtype(element);
            if places == (&MASK, &MASK) {
                let rows = len as usize / (lengths[0] + 1);
                counted.push(Self { input, dtype, kind: Kind::Given { rows } });
            }
            let (Place::Upload(x), Place::Upload(y)) = places else { continue };
            if x == y {
                continue;
            }
            let kind = Kind::of([&numbers(x, dtype)?, &numbers(y, dtype)?], lengths);
            let kind = kind.ok_or_else(|| {
                refused(&format!(
                    "what the host uploads (input {input}) depends on the length in an unknown way: compute it on the device, or once"
                ))
            })?;
            counted.push(Self { input, dtype, kind });
        }
        Ok(counted)
    }

    /// Whether a pass behind `length` tokens uploads the numbers of that position.
    pub fn holds(&self, pass: &WholePass, length: usize) -> Result<bool> {
        Ok(match (pass.places.get(self.input), &self.kind) {
            (Some(Place::Upload(bytes)), kind) => kind.at(length) == numbers(bytes, self.dtype)?,
            (Some(place), Kind::Given { rows }) if *place == MASK => {
                pass.graph.inputs[self.input].len == (rows * (length + 1)) as u64
            }
            _ => false,
        })
    }

    /// The same for the comparison of graphs.
    pub fn plan(&self) -> rewrite::Counted {
        let grows = match self.kind {
            Kind::Affine(_) => None,
            Kind::Grows { rows, size, .. } => Some([rows as u64, size as u64]),
            Kind::Given { rows } => Some([rows as u64, 1]),
        };
        rewrite::Counted { input: self.input, grows, is_given: matches!(self.kind, Kind::Given { .. }) }
    }

    /// What a step computes it of.
    ///
    /// # Errors
    /// What the caller gives is a tensor of the text.
    pub fn source(&self, like: &Input, device: &Device) -> candle::Result<Numbers> {
        let on_device = |numbers: &[f64]| Tensor::from_slice(numbers, numbers.len(), device);
        Ok(match &self.kind {
            Kind::Affine(of) => {
                let zero: Vec<f64> = of.iter().map(|number| number.zero).collect();
                let step: Vec<f64> = of.iter().map(|number| number.step).collect();
                Numbers::Affine { zero: on_device(&zero)?, step: on_device(&step)?, dtype: self.dtype }
            }
            Kind::Grows { numbers, rows, size, are_last } => {
                let table = on_device(numbers)?.to_dtype(self.dtype)?;
                let places = like.len as usize / (rows * size);
                let table = table.reshape((*rows, places, *size))?;
                if *are_last {
                    Numbers::Last(table)
                } else {
                    Numbers::First(table)
                }
            }
            Kind::Given { .. } => candle::bail!("the caller gives it"),
        })
    }
}

impl Kind {
    fn of([a, b]: [&[f64]; 2], lengths: [usize; 2]) -> Option<Self> {
        if a.len() == b.len() {
            let positions = lengths.map(|length| length as u64);
            let numbers = a.iter().zip(b).map(|(a, b)| AtPosition::through([*a, *b], positions));
            let kind = Kind::Affine(numbers.collect::<Option<_>>()?);
            return (kind.at(lengths[0]) == a && kind.at(lengths[1]) == b).then_some(kind);
        }
        let of_place = a.len() / (lengths[0] + 1);
        let sizes = (1..=of_place).filter(|size| of_place.is_multiple_of(*size));
        let kinds = sizes
            .flat_map(|size| [false, true].map(|are_last| (size, are_last)))
            .map(|(size, are_last)| Kind::Grows { numbers: b.to_vec(), rows: of_place / size, size, are_last });
        let is_all = b.len() == of_place * (lengths[1] + 1);
        kinds.into_iter().find(|kind| is_all && kind.at(lengths[0]) == a)
    }

    /// The numbers behind `length` tokens.
    fn at(&self, length: usize) -> Vec<f64> {
        match self {
            Kind::Affine(of) => of.iter().map(|number| number.at(length as u64)).collect(),
            Kind::Grows { numbers, rows, size, are_last } => {
                let all = numbers.len() / (rows * size);
                let count = (length + 1).min(all);
                let first = if *are_last { all - count } else { 0 };
                let row = |row: usize| &numbers[(row * all + first) * size..(row * all + first + count) * size];
                (0..*rows).flat_map(row).copied().collect()
            }
            Kind::Given { .. } => Vec::new(),
        }
    }
}

/// What the numbers of an upload are computed of.
pub(super) enum Numbers {
    /// Of the numbers at position 0, and those that each token before adds.
    Affine { zero: Tensor, step: Tensor, dtype: DType },
    /// These, of which as many count as there are tokens.
    First(Tensor),
    /// The last ones of these.
    Last(Tensor),
}

impl Numbers {
    /// The numbers at a position, or at several, of which each has its own behind those of the one before.
    pub fn at(&self, position: &Tensor) -> candle::Result<Tensor> {
        match self {
            Numbers::Affine { zero, step, dtype } => {
                let positions = position.to_dtype(DType::F64)?.unsqueeze(1)?;
                positions.broadcast_mul(step)?.broadcast_add(zero)?.to_dtype(*dtype)
            }
            Numbers::First(table) => table.flatten_all(),
            Numbers::Last(table) => {
                let (places, device) = (table.dim(1)? as u32, table.device());
                let last = Tensor::new(&[places - 1], device)?;
                // From the first place that counts on; what is beyond the end does not.
                let ids = Tensor::arange(places - 1, 2 * places - 1, device)?.broadcast_sub(position)?;
                table.index_select(&ids.broadcast_minimum(&last)?, 1)?.flatten_all()
            }
        }
    }
}

/// The numbers that bytes are.
fn numbers(bytes: &[u8], dtype: DType) -> candle::Result<Vec<f64>> {
    let count = bytes.len() / dtype.size_in_bytes();
    Tensor::from_raw_buffer(bytes, dtype, &[count], &Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_position() {
        let position = Kind::of([&[5.], &[9.]], [5, 9]).expect("it is the position");
        assert_eq!(position.at(7), [7.]);
        // Places, and distances from the new token in two rows.
        let places: Vec<f64> = (0..10).map(f64::from).collect();
        let first = Kind::of([&places[..4], &places], [3, 9]).expect("the first places");
        assert_eq!(first.at(5), places[..6]);
        let distances = |count: i32| {
            (0..2).flat_map(|row| (1 - count..=0).map(move |at| f64::from(at * (row + 1)))).collect::<Vec<_>>()
        };
        let last = Kind::of([&distances(4), &distances(10)], [3, 9]).expect("the last places");
        assert_eq!(last.at(6), distances(7));
        assert_eq!(Kind::of([&[1., 2., 4.], &[1., 3., 5., 7.]], [2, 3]), None);
    }
}
