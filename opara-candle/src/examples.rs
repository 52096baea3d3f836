//! The inputs that building runs a module on: the example, further examples, and the example with other floats.

use candle::{DType, Device, Result, Tensor};

use crate::arguments::StateArguments;
use crate::backend::Example;
use crate::verify::same_values;

/// The inputs that building may use in addition to its first example.
#[derive(Debug, Clone, Default)]
pub(crate) struct Examples {
    /// Further examples that the user gave.
    pub further: Vec<Vec<Tensor>>,
    /// Are copies of the example with other floats used, too?
    pub altered: bool,
    /// Does the user promise that host code does not depend on values?
    pub is_pure: bool,
    /// The state among the arguments. All inputs run with the example's state.
    pub state: StateArguments,
}

/// Inputs of the example's shapes and dtypes, with other values.
pub(crate) struct Other {
    pub inputs: Vec<Tensor>,
    /// Did the user give them? If not, the module may refuse their floats.
    pub given: bool,
}

impl Examples {
    /// Further arguments: the further examples that have its shapes and dtypes, and `first` with other floats in its inputs.
    ///
    /// Integers are never altered: an index out of range is an error on the CPU, and on a GPU an assertion that destroys the
    /// process's context; no example shows the range.
    ///
    /// On the CPU, where host code may depend on values, floats are altered twice: reversed with the other sign, and larger. On a
    /// GPU a capture refuses host code that reads values, so the example's own floats in reversed order suffice. A module that
    /// converts floats to indices is more likely to accept them.
    pub fn others(&self, first: &[Tensor]) -> Result<Vec<Other>> {
        let (first, state) = self.state.split(first);
        let mut others = Vec::new();
        for inputs in self.further.iter().filter(|further| have_same_shapes(further, first)) {
            if !same_inputs(inputs, first)? {
                others.push(Other { inputs: inputs.clone(), given: true });
            }
        }
        let has_floats = first.iter().any(|input| input.dtype().is_float() && input.elem_count() > 0);
        if self.altered && has_floats {
            let on_host = first.iter().all(|input| input.device().is_cpu());
            let alterations: &[_] =
                if on_host { &[Alteration::Negated, Alteration::Larger] } else { &[Alteration::Reversed] };
            for &alteration in alterations {
                let inputs = first.iter().map(|input| alteration.of(input)).collect::<Result<_>>()?;
                others.push(Other { inputs, given: false });
            }
        }
        others.iter_mut().for_each(|other| other.inputs.extend_from_slice(state));
        Ok(others)
    }
}

/// An alteration of a tensor's floats. Infinities and NaN are not altered.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Alteration {
    /// Reversed, and scaled if reversing changes nothing.
    Reversed,
    /// In reversed order, with the other sign, and scaled so that zeros of a sum of pairs do not hide it.
    Negated,
    /// Scaled to another magnitude.
    Larger,
}

impl Alteration {
    /// Factors that are exact in every dtype.
    const SMALLER: f64 = 0.75;
    const LARGER: f64 = 16.;

    /// Another tensor, computed on the host: some of a GPU's kernels take memory when they are first used (candle's
    /// `indexing`, which asserts, 90 MiB on an H200 with driver 580). Integers, and types that candle cannot convert, stay.
    fn of(self, input: &Tensor) -> Result<Tensor> {
        let count = input.elem_count();
        if !input.dtype().is_float() || count == 0 {
            return Ok(input.clone());
        }
        let wide = if input.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let Ok(flat) = input.to_device(&Device::Cpu)?.contiguous()?.flatten_all()?.to_dtype(wide) else {
            return Ok(input.clone());
        };
        let reversed = if count == 1 { flat.clone() } else { flat.flip(&[0])? };
        let candidates = match self {
            Self::Reversed => vec![reversed.clone(), scaled(&reversed, Self::SMALLER)?],
            Self::Negated => vec![scaled(&reversed, -Self::SMALLER)?],
            Self::Larger => vec![scaled(&flat, Self::LARGER)?, scaled(&flat, 1. / Self::LARGER)?],
        };
        let finite_elements = |t: &Tensor| finite(t)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>();
        for candidate in candidates {
            let other = candidate.to_dtype(input.dtype())?;
            let seen = other.to_dtype(wide)?;
            if finite_elements(&seen)? == finite_elements(&flat)? && !same_values(&seen, &flat)? {
                return other.reshape(input.shape())?.to_device(input.device());
            }
        }
        // Zeros, infinities and NaN are the same in any order and scale.
        // Not a range of floats, which would never end where adding one no longer changes a number.
        let rising = Tensor::from_iter((0..count).map(|at| ((at as f64 + 0.5) / count as f64) as f32), &Device::Cpu)?;
        let rising = if self == Self::Larger { (rising * -Self::LARGER)? } else { rising };
        rising.to_dtype(input.dtype())?.reshape(input.shape())?.to_device(input.device())
    }
}

/// A mask of the elements that are neither infinite nor NaN.
fn finite(t: &Tensor) -> Result<Tensor> {
    t.abs()?.lt(f64::INFINITY)
}

/// The finite elements scaled, the others as they are.
fn scaled(t: &Tensor, factor: f64) -> Result<Tensor> {
    finite(t)?.where_cond(&(t * factor)?, t)
}

/// Do two sets of inputs have the same shapes and dtypes?
fn have_same_shapes(a: &[Tensor], b: &[Tensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.shape() == b.shape() && a.dtype() == b.dtype())
}

/// Do two sets of inputs of the same shapes have the same values?
fn same_inputs(a: &[Tensor], b: &[Tensor]) -> Result<bool> {
    for (a, b) in a.iter().zip(b) {
        if !same_values(a, b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The integer inputs that have the same values in all examples. It is unknown whether results depend on them.
pub(crate) fn unvaried_inputs(examples: &[Example], state: &StateArguments) -> Result<Vec<usize>> {
    let Some((first, others)) = examples.split_first() else { return Ok(Vec::new()) };
    let mut same = Vec::new();
    for (index, input) in
        state.split(&first.inputs).0.iter().enumerate().filter(|(_, t)| t.dtype().is_int() && t.elem_count() > 0)
    {
        let mut differs = false;
        for other in others {
            differs = differs || !same_values(input, &other.inputs[index])?;
        }
        if !differs {
            same.push(index);
        }
    }
    Ok(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: &Device = &Device::Cpu;

    fn altered(inputs: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
        let examples = Examples { altered: true, ..Examples::default() };
        Ok(examples.others(inputs)?.into_iter().map(|other| other.inputs).collect())
    }

    fn floats(t: &Tensor) -> Result<Vec<f32>> {
        t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    #[test]
    fn integers_stay_and_floats_change_sign_and_magnitude() -> Result<()> {
        let ids = Tensor::new(&[[3u32, 7, 9]], CPU)?;
        let x = Tensor::new(&[1f32, 2.], CPU)?;
        let others = altered(&[ids, x])?;
        assert_eq!(others.len(), 2);
        for other in &others {
            assert_eq!(other[0].to_vec2::<u32>()?, [[3, 7, 9]]);
        }
        assert_eq!((floats(&others[0][1])?, floats(&others[1][1])?), (vec![-1.5, -0.75], vec![16., 32.]));
        assert!(altered(&[Tensor::new(&[1i64, 2], CPU)?])?.is_empty(), "of integers alone there is nothing else");
        Ok(())
    }

    #[test]
    fn the_order_alone_changes_where_only_a_gpu_sees_values() -> Result<()> {
        let of = |values: &[f32]| floats(&Alteration::Reversed.of(&Tensor::new(values, CPU)?)?);
        assert_eq!(of(&[1., 2., 5.])?, [5., 2., 1.]);
        assert_eq!(of(&[2., 4., 2.])?, [1.5, 3., 1.5]);
        assert_eq!(of(&[0., 0.])?, [0.25, 0.75]);
        Ok(())
    }

    #[test]
    fn altered_floats_differ_and_stay_finite() -> Result<()> {
        let column = Tensor::new(&[[1f32, 2.], [3., 4.]], CPU)?.narrow(1, 1, 1)?.squeeze(1)?;
        let inputs = [
            Tensor::zeros((2, 2), DType::F16, CPU)?,
            Tensor::new(&[60000f32, -60000.], CPU)?.to_dtype(DType::F16)?,
            Tensor::new(&[0f32, f32::NEG_INFINITY, 1.], CPU)?,
            Tensor::new(&[f32::MIN, f32::MAX], CPU)?.to_dtype(DType::BF16)?,
            Tensor::new(f64::MAX, CPU)?,
            Tensor::new(0f64, CPU)?,
            column,
        ];
        for (at, other) in altered(&inputs)?.iter().enumerate() {
            for (input, other) in inputs.iter().zip(other) {
                assert_eq!((input.shape(), input.dtype()), (other.shape(), other.dtype()));
                assert!(!same_values(input, other)?, "{input} in alteration {at}");
                let not_finite = |t: &Tensor| {
                    let values = t.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
                    Ok::<_, candle::Error>(values.iter().filter(|v| !v.is_finite()).count())
                };
                assert!(not_finite(other)? <= not_finite(input)?, "{input} became {other}");
            }
        }
        Ok(())
    }

    /// From there on a float that grows by one stays as it is.
    #[test]
    fn zeros_beyond_the_integers_of_a_float_are_altered() -> Result<()> {
        let zeros = Tensor::zeros((1 << 24) + 2, DType::F32, CPU)?;
        let last = Alteration::Reversed.of(&zeros)?.get(1 << 24)?.to_scalar::<f32>()?;
        assert!((0.9..=1.).contains(&last), "{last}");
        Ok(())
    }

    #[test]
    fn further_examples_count_once_and_only_for_their_shapes() -> Result<()> {
        let ids = |values: &[u32]| Ok::<_, candle::Error>(vec![Tensor::new(values, CPU)?]);
        let further = vec![ids(&[1, 2])?, ids(&[5, 6])?, ids(&[1, 2, 3])?];
        let examples = Examples { further, altered: true, ..Examples::default() };
        let others = examples.others(&ids(&[1, 2])?)?;
        assert_eq!(others.len(), 1);
        assert!(others[0].given && others[0].inputs[0].to_vec1::<u32>()? == [5, 6]);
        Ok(())
    }

    #[test]
    fn integers_that_no_example_changes_are_known() -> Result<()> {
        let none = StateArguments::default();
        let example = |ids: &[u32], x: f32| {
            Ok::<_, candle::Error>(Example::new(vec![Tensor::new(ids, CPU)?, Tensor::new(x, CPU)?], &[], 0.))
        };
        assert_eq!(unvaried_inputs(&[example(&[1], 0.)?], &none)?, [0]);
        assert_eq!(unvaried_inputs(&[example(&[1], 0.)?, example(&[1], 1.)?], &none)?, [0]);
        assert!(unvaried_inputs(&[example(&[1], 0.)?, example(&[2], 0.)?], &none)?.is_empty());
        assert!(unvaried_inputs(&[], &none)?.is_empty());
        Ok(())
    }
}
