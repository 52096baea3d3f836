//! One variable of an optimizer, and what is kept for it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle::backend::BackendStorage;
use candle::backprop::GradStore;
use candle::op::BackpropOp;
use candle::{bail, DType, Device, Layout, Result, Shape, Storage, Tensor, Var};
use parking_lot::Mutex;

use super::checkpoint;
use crate::ops;
use crate::ops::optimizer::rule::Rule;
use crate::ops::optimizer::Update;

/// A variable, and how it is updated.
pub(super) struct Slot {
    pub name: String,
    pub variable: Var,
    pub update: Update,
    /// The sum of the gradients of a step's batches, if there are several.
    pub sum: Option<Tensor>,
    /// The average of values, if it is kept.
    pub average: Option<Tensor>,
    /// Of 16 bits, for the model to compute with.
    pub copy: Option<Tensor>,
    /// Has any batch reached it? Then one that does not has a gradient of zeros in a sum.
    was_reached: AtomicBool,
}

impl Slot {
    pub fn new((name, variable): (String, Var), rule: Rule, decay: f64) -> Result<Self> {
        if !variable.is_contiguous() {
            bail!("`{name}` is not contiguous: an optimizer writes it in place")
        }
        let shape = Shape::from(rule.moments() * variable.elem_count());
        let moments = Mutex::new(zeros(&shape, variable.dtype(), variable.device())?);
        let update = Update { decay, rate: 1., moments };
        Ok(Self { name, variable, update, sum: None, average: None, copy: None, was_reached: false.into() })
    }

    /// Its contiguous gradient of a batch, if it has a part in the step.
    ///
    /// # Errors
    /// A gradient that is not like the variable.
    pub fn gradient(&self, all: &GradStore) -> Result<Option<Tensor>> {
        match all.get(&self.variable) {
            Some(gradient) => {
                let kind = |of: &Tensor| (of.shape().clone(), of.dtype(), of.device().location());
                let (own, got) = (kind(&self.variable), kind(gradient));
                if own != got || !gradient.device().same_device(self.variable.device()) {
                    bail!("the gradient of `{}` is not like its value: {got:?} for {own:?}", self.name)
                }
                self.was_reached.store(true, Relaxed);
                gradient.contiguous().map(Some)
            }
            None if self.sum.is_some() && self.was_reached.load(Relaxed) => {
                self.variable.as_detached_tensor().zeros_like().map(Some)
            }
            None => Ok(None),
        }
    }

    /// The name of its sum in a checkpoint.
    pub fn name_of_sum(&self) -> String {
        format!("{}{}", checkpoint::SUMS, self.name)
    }

    /// Has any batch reached it?
    pub fn was_reached(&self) -> bool {
        self.was_reached.load(Relaxed)
    }

    pub fn set_reached(&self, is_reached: bool) {
        self.was_reached.store(is_reached, Relaxed);
    }

    /// A row for each kind.
    fn shape_of_moments(&self, rule: Rule) -> Shape {
        let dims = [&[rule.moments()], self.variable.dims()].concat();
        dims.into()
    }

    /// A copy of its moments.
    fn moments(&self, rule: Rule) -> Result<Tensor> {
        let (moments, shape) = (self.update.moments.lock(), self.shape_of_moments(rule));
        let storage = moments.try_clone(&Layout::contiguous(&shape))?;
        Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false))
    }

    /// Overwrites its moments, where they lie: a captured step knows their addresses.
    fn put_moments(&self, from: &Tensor) -> Result<()> {
        let (from, layout) = from.storage_and_layout();
        match (&*from, &mut *self.update.moments.lock()) {
            (Storage::Cpu(from), Storage::Cpu(to)) => from.copy_strided_src(to, 0, layout),
            (Storage::Cuda(from), Storage::Cuda(to)) => from.copy_strided_src(to, 0, layout),
            _ => bail!("the optimizer's numbers are on another device"),
        }
    }

    /// The tensors that a step changes beside the moments, by the names of a checkpoint.
    fn tensors(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let name_of_average = format!("{}{}", checkpoint::AVERAGES, self.name);
        let kept = [(self.name_of_sum(), &self.sum), (name_of_average, &self.average)];
        let kept = kept.into_iter().filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)));
        [(self.name.clone(), self.variable.as_tensor())].into_iter().chain(kept)
    }

    fn name_of_moments(&self) -> String {
        format!("{}{}", checkpoint::MOMENTS, self.name)
    }

    /// Copies of all that a step changes, by the names of a checkpoint.
    pub fn snapshot(&self, rule: Rule) -> Result<Vec<(String, Tensor)>> {
        let copies = self.tensors().map(|(name, tensor)| Ok((name, tensor.detach().copy()?)));
        copies.chain([self.moments(rule).map(|moments| (self.name_of_moments(), moments))]).collect()
    }

    /// Names, shapes and dtypes of a snapshot.
    pub fn shapes(&self, rule: Rule) -> impl Iterator<Item = (String, Shape, DType)> + '_ {
        let tensors = self.tensors().map(|(name, tensor)| (name, tensor.shape().clone(), tensor.dtype()));
        tensors.chain([(self.name_of_moments(), self.shape_of_moments(rule), self.variable.dtype())])
    }

    /// Puts back its part of a snapshot, where it was, and gives the rest.
    pub fn restore<'a>(&self, snapshot: &'a [(String, Tensor)]) -> Result<&'a [(String, Tensor)]> {
        let tensors: Vec<_> = self.tensors().collect();
        let Some((own, [(_, moments), rest @ ..])) = snapshot.split_at_checked(tensors.len()) else {
            bail!("a snapshot of another optimizer")
        };
        for ((_, to), (_, from)) in tensors.into_iter().zip(own) {
            ops::assign(&to.detach(), from)?;
        }
        self.put_moments(moments)?;
        Ok(rest)
    }
}

/// Zeros in memory that nobody else has.
fn zeros(shape: &Shape, dtype: DType, device: &Device) -> Result<Storage> {
    let zeros = Tensor::zeros(shape, dtype, device)?;
    let (storage, layout) = zeros.storage_and_layout();
    storage.try_clone(layout)
}
