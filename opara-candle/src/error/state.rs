//! Errors of states that a step cannot be run on.

use candle::{DType, DeviceLocation, Shape};

/// Why a [`StepExecutor`](crate::StepExecutor) cannot run on a state, or a [`Snapshot`](crate::Snapshot) cannot be put back
/// into it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The state has another number of tensors than the one that the step was built for.
    #[error("the step was built for a state of {expected} tensors and got one of {got}")]
    Count {
        /// Tensors of the state that it was built for.
        expected: usize,
        /// Tensors of this one.
        got: usize,
    },

    /// A tensor has another shape or dtype than it had when the step was built.
    #[error(
        "tensor {index} of the state is {got_dtype:?} {got:?} where the step was built for {expected_dtype:?} \
         {expected:?}: a state keeps its shapes and dtypes; build another step for others"
    )]
    Shape {
        /// Index of the tensor in the state.
        index: usize,
        /// The shape that it was built for.
        expected: Shape,
        /// The dtype that it was built for.
        expected_dtype: DType,
        /// This one's shape.
        got: Shape,
        /// This one's dtype.
        got_dtype: DType,
    },

    /// A tensor lies on another device than the one that the step was built on.
    #[error(
        "tensor {index} of the state is on {got:?} but the step is for {expected:?}: move it with `Tensor::to_device`"
    )]
    Device {
        /// Index of the tensor in the state.
        index: usize,
        /// The step's device.
        expected: DeviceLocation,
        /// This tensor's device.
        got: DeviceLocation,
    },

    /// A tensor shares memory with another tensor of the call. Reads of that memory would depend on the schedule.
    #[error(
        "tensor {index} of the state shares memory with {other}: give it memory of its own, with `Tensor::copy` or \
         `StepState::fork`"
    )]
    Shared {
        /// Index of the tensor in the state.
        index: usize,
        /// The tensor that it shares memory with.
        other: String,
    },

    /// A tensor's layout in memory does not let a replay write it in place.
    #[error("tensor {index} of the state {reason}: replace it by a copy, with `Tensor::force_contiguous`")]
    Layout {
        /// Index of the tensor in the state.
        index: usize,
        /// The property of the layout.
        reason: &'static str,
    },
}
