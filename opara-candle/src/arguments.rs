//! The arguments of a wrapped function: its inputs, then the state of a step, which it writes in place.

use candle::{Result, Tensor};

/// The state among a function's arguments: the last ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateArguments {
    /// For each tensor of the state: do executors run on the caller's own memory? Such a tensor is not copied, restored or
    /// compared.
    shared: Vec<bool>,
}

impl StateArguments {
    /// For a caller's state whose executors are built on `scratch`.
    pub fn new(state: &[Tensor], scratch: &[Tensor]) -> Self {
        Self { shared: state.iter().zip(scratch).map(|(a, b)| share_memory(a, b)).collect() }
    }

    /// The inputs and the state among the arguments.
    pub fn split<'a>(&self, arguments: &'a [Tensor]) -> (&'a [Tensor], &'a [Tensor]) {
        arguments.split_at(arguments.len().saturating_sub(self.shared.len()))
    }

    /// The number of inputs among this many arguments.
    pub fn inputs(&self, arguments: usize) -> usize {
        arguments.saturating_sub(self.shared.len())
    }

    /// Is there no state?
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// These arguments with the state copied.
    pub fn with_own_state(&self, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
        let (inputs, state) = self.split(arguments);
        let copies = state.iter().zip(&self.shared).map(|(t, shared)| if *shared { Ok(t.clone()) } else { copy(t) });
        inputs.iter().cloned().map(Ok).chain(copies).collect()
    }

    /// These arguments with inputs and state copied.
    pub fn copies(&self, arguments: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut copies = self.with_own_state(arguments)?;
        let inputs = self.inputs(copies.len());
        for input in &mut copies[..inputs] {
            *input = copy(input)?;
        }
        Ok(copies)
    }

    /// The number of state tensors at the end of a pass's answers.
    pub fn compared(&self) -> usize {
        self.shared.iter().filter(|shared| !**shared).count()
    }

    /// The answers of a pass: its outputs, then the state after it.
    pub fn answers(&self, mut outputs: Vec<Tensor>, arguments: &[Tensor]) -> Vec<Tensor> {
        let (_, state) = self.split(arguments);
        outputs.extend(state.iter().zip(&self.shared).filter(|(_, shared)| !**shared).map(|(t, _)| t.clone()));
        outputs
    }

    /// Arguments of the next call: the same inputs, and the state at the end of a pass's answers.
    pub fn next(&self, arguments: &[Tensor], answers: &[Tensor]) -> Vec<Tensor> {
        let mut after = answers[answers.len().saturating_sub(self.compared())..].iter();
        let (inputs, state) = self.split(arguments);
        let state = state.iter().zip(&self.shared);
        let state = state.map(|(t, shared)| if *shared { t } else { after.next().unwrap_or(t) }.clone());
        inputs.iter().cloned().chain(state).collect()
    }

    /// Copies the state at the end of a pass's answers to the state among the arguments.
    pub fn store(&self, answers: &[Tensor], arguments: &[Tensor]) -> Result<()> {
        let own = self.answers(Vec::new(), arguments);
        let from = &answers[answers.len().saturating_sub(own.len())..];
        from.iter().zip(&own).try_for_each(|(from, to)| write(to, from))
    }
}

/// Arguments whose state is a copy, for several runs that each begin with the same state.
pub(crate) struct Rerun<'a> {
    from: &'a [Tensor],
    own: Vec<Tensor>,
}

impl<'a> Rerun<'a> {
    /// Copies the state of these arguments.
    pub fn new(state: &StateArguments, from: &'a [Tensor]) -> Result<Self> {
        Ok(Self { from, own: state.with_own_state(from)? })
    }

    /// Copies state and inputs of these arguments.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only passes on a GPU are captured"))]
    pub fn of_copies(state: &StateArguments, from: &'a [Tensor]) -> Result<Self> {
        Ok(Self { from, own: state.copies(from)? })
    }

    /// The arguments.
    pub fn arguments(&self) -> &[Tensor] {
        &self.own
    }

    /// Restores the state that runs have changed.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only passes on a GPU are captured"))]
    pub fn rewind(&self) -> Result<()> {
        self.rewind_if(|_| true)
    }

    /// Restores small tensors only: the time of a run depends on counters, not on the rows of a cache.
    pub fn rewind_counters(&self) -> Result<()> {
        const LARGEST: usize = 64 << 10;
        self.rewind_if(|t| t.elem_count() * t.dtype().size_in_bytes() <= LARGEST)
    }

    fn rewind_if(&self, wanted: impl Fn(&Tensor) -> bool) -> Result<()> {
        let pairs = self.from.iter().zip(&self.own).filter(|(from, own)| wanted(own) && !share_memory(from, own));
        pairs.into_iter().try_for_each(|(from, own)| write(own, from))
    }
}

/// A contiguous copy in memory of its own.
pub(crate) fn copy(tensor: &Tensor) -> Result<Tensor> {
    tensor.force_contiguous()
}

/// Overwrites a contiguous tensor with another one of its shape and dtype.
///
/// # Errors
/// Tensors that differ in shape, dtype or device, or share memory.
pub(crate) fn write(to: &Tensor, from: &Tensor) -> Result<()> {
    if to.dims() != from.dims() {
        candle::bail!("a tensor of shape {:?} cannot take the elements of one of shape {:?}", to.dims(), from.dims())
    }
    if !to.is_contiguous() {
        candle::bail!("a tensor that is not contiguous cannot be overwritten: {:?}", to.layout())
    }
    /// candle's kernel counts elements in 32 bits.
    const AT_ONCE: usize = 1 << 30;
    let (to, from) = (to.flatten_all()?, from.contiguous()?.flatten_all()?);
    for start in (0..to.elem_count()).step_by(AT_ONCE) {
        let part = |t: &Tensor| t.narrow(0, start, AT_ONCE.min(t.elem_count() - start));
        part(&to)?.slice_set(&part(&from)?, 0, 0)?;
    }
    Ok(())
}

/// Are two tensors views of one storage?
pub(crate) fn share_memory(a: &Tensor, b: &Tensor) -> bool {
    // One lock after the other: both tensors may have the same storage.
    let address = |t: &Tensor| std::ptr::from_ref(&*t.storage_and_layout().0) as usize;
    let a = address(a);
    a == address(b)
}
