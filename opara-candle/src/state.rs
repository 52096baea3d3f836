//! The state of a step, and saved copies of it.

use candle::{DType, Shape, Tensor};

use crate::arguments::{copy, write};
use crate::{Result, StateError};

/// The state that a step carries from one call to the next: counters, caches, the last token.
///
/// An implementation lists its tensors. They always come in the same order, with the same shapes and dtypes, on one device. Each
/// is contiguous and has its own memory. A step [writes to them in place](crate::Builder::build_step).
///
/// ```
/// use candle::{DType, Device, Result, Tensor};
/// use opara_candle::StepState;
///
/// struct Writing {
///     position: Tensor,
///     cache: Tensor,
/// }
///
/// impl StepState for Writing {
///     fn tensors(&self) -> Vec<Tensor> {
///         vec![self.position.clone(), self.cache.clone()]
///     }
///
///     fn with(&self, tensors: Vec<Tensor>) -> Self {
///         Self { position: tensors[0].clone(), cache: tensors[1].clone() }
///     }
/// }
///
/// let start = Writing {
///     position: Tensor::zeros(1, DType::U32, &Device::Cpu)?,
///     cache: Tensor::zeros((2, 8), DType::F32, &Device::Cpu)?,
/// };
/// let other = start.fork()?; // The same contents in other memory.
/// # Ok::<(), opara_candle::Error>(())
/// ```
pub trait StepState: Sized {
    /// The tensors, without copying them.
    fn tensors(&self) -> Vec<Tensor>;

    /// The same state with other tensors, which match [its own](Self::tensors) in number, order, shapes and dtypes.
    fn with(&self, tensors: Vec<Tensor>) -> Self;

    /// The state that executors are built on. Building calls the step many times, and must not change this value. Default: a
    /// copy.
    ///
    /// Its contents may differ from this value's, as long as a step can run on them. A tensor that is this value's own is neither
    /// copied nor restored: for example a cache of several sequences, of which building uses free pages.
    ///
    /// # Errors
    /// No memory for a copy.
    fn scratch(&self) -> Result<Self> {
        self.fork()
    }

    /// An independent copy.
    ///
    /// # Errors
    /// No memory for it.
    fn fork(&self) -> Result<Self> {
        let copies = self.tensors().iter().map(copy).collect::<candle::Result<_>>()?;
        Ok(self.with(copies))
    }

    /// Resets the state to the start, in the same memory. Default: zeros everywhere.
    ///
    /// # Errors
    /// A call of the device that failed.
    fn reset(&mut self) -> Result<()> {
        for tensor in self.tensors() {
            write(&tensor, &tensor.zeros_like()?)?;
        }
        Ok(())
    }
}

/// A state of one tensor.
impl StepState for Tensor {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.clone()]
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        tensors.into_iter().next().unwrap_or_else(|| self.clone())
    }
}

/// A state whose tensors have no names.
impl StepState for Vec<Tensor> {
    fn tensors(&self) -> Vec<Tensor> {
        self.clone()
    }

    fn with(&self, tensors: Vec<Tensor>) -> Self {
        tensors
    }
}

/// The contents of a state at one time.
///
/// ```
/// use candle::{Device, Tensor};
/// use opara_candle::{ops, Snapshot};
///
/// let mut counter = Tensor::new(&[3u32], &Device::Cpu)?;
/// let saved = Snapshot::of(&counter)?;
/// ops::advance(&counter, 4)?;
/// assert_eq!(counter.to_vec1::<u32>()?, [7]);
/// saved.restore(&mut counter)?;
/// assert_eq!(counter.to_vec1::<u32>()?, [3]);
/// # Ok::<(), opara_candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Snapshot(Vec<Tensor>);

impl Snapshot {
    /// Copies the current state.
    ///
    /// # Errors
    /// No memory for it.
    pub fn of(state: &impl StepState) -> Result<Self> {
        Ok(Self(state.tensors().iter().map(copy).collect::<candle::Result<_>>()?))
    }

    /// Restores the saved contents, into the same state or another one of the same shapes and dtypes.
    ///
    /// # Errors
    /// A state of other shapes or dtypes, which stays unchanged.
    pub fn restore(&self, state: &mut impl StepState) -> Result<()> {
        let tensors = state.tensors();
        if tensors.len() != self.0.len() {
            return Err(StateError::Count { expected: self.0.len(), got: tensors.len() }.into());
        }
        for (index, (saved, tensor)) in self.0.iter().zip(&tensors).enumerate() {
            check_alike(index, (saved.shape(), saved.dtype()), tensor)?;
        }
        tensors.iter().zip(&self.0).try_for_each(|(tensor, saved)| Ok(write(tensor, saved)?))
    }
}

/// Checks shape and dtype of a tensor of a state.
pub(crate) fn check_alike(index: usize, (shape, dtype): (&Shape, DType), tensor: &Tensor) -> Result<()> {
    if tensor.shape() != shape || tensor.dtype() != dtype {
        let (expected, got) = (shape.clone(), tensor.shape().clone());
        return Err(StateError::Shape { index, expected, expected_dtype: dtype, got, got_dtype: tensor.dtype() }.into());
    }
    Ok(())
}
