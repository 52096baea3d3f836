//! The variables of an optimizer, and the numbers that it keeps on their device.

use std::path::Path;

use candle::backend::BackendStorage;
use candle::backprop::GradStore;
use candle::op::BackpropOp;
use candle::{bail, DType, Device, Layout, Result, Shape, Storage, Tensor, Var};
use parking_lot::Mutex;

use super::checkpoint::{self, CheckpointError};
use super::Schedule;
use crate::ops;
use crate::ops::optimizer::rule::{place, Rule, CONTROL};
use crate::ops::optimizer::{square_sums, sums_of, tick, update, Update, Updated};

/// A variable, and how it is updated.
struct Slot {
    name: String,
    variable: Var,
    update: Update,
}

impl Slot {
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
}

/// What a step reads and writes, apart from gradients.
pub(super) struct State {
    rule: Rule,
    slots: Vec<Slot>,
    /// [`CONTROL`] numbers.
    control: Tensor,
    /// Room for the sums of squares of all gradients, if their norm is limited.
    sums: Option<Tensor>,
    /// The learning rate that is set.
    rate: Mutex<f64>,
    /// The first failed write of a learning rate, which the next step tells.
    failed: Mutex<Option<candle::Error>>,
}

impl State {
    /// The state of variables by name, of which those of integers are left out. Moments are zeros.
    pub fn new(variables: Vec<(String, Var)>, rule: Rule, rate: f64, decay: f64) -> Result<Self> {
        let floats: Vec<_> = variables.into_iter().filter(|(_, variable)| variable.dtype().is_float()).collect();
        let device = floats.first().map_or(Device::Cpu, |(_, variable)| variable.device().clone());
        let slot = |(name, variable): (String, Var)| {
            if !variable.device().same_device(&device) {
                bail!("`{name}` is on another device than the optimizer's first variable")
            }
            if !variable.is_contiguous() {
                bail!("`{name}` is not contiguous: an optimizer writes it in place")
            }
            let shape = Shape::from(rule.moments() * variable.elem_count());
            let moments = Mutex::new(zeros(&shape, variable.dtype(), &device)?);
            Ok(Slot { name, variable, update: Update { decay, rate: 1., moments } })
        };
        let slots = floats.into_iter().map(slot).collect::<Result<Vec<_>>>()?;
        let mut control = [0.; CONTROL];
        let [beta1, beta2] = rule.betas();
        (control[place::BETA1], control[place::BETA2], control[place::BASE]) = (beta1, beta2, rate);
        Schedule::Constant { warm_up: 0 }.write(&mut control);
        let control = Tensor::new(&control, &device)?;
        Ok(Self { rule, slots, control, sums: None, rate: Mutex::new(rate), failed: Mutex::new(None) })
    }

    /// Changes the numbers in the control block.
    pub fn set(&self, change: impl FnOnce(&mut [f64])) -> Result<()> {
        let mut control = self.control.to_vec1::<f64>()?;
        change(&mut control);
        ops::assign(&self.control, &Tensor::new(control, self.control.device())?)
    }

    /// The numbers in the control block.
    pub fn control(&self) -> Result<Vec<f64>> {
        self.control.to_vec1()
    }

    /// The number of steps that were taken, where it lies.
    pub fn step_number(&self) -> Result<Tensor> {
        self.control.narrow(0, place::STEPS, 1)
    }

    /// Sets the learning rate, in the order of the device's work: later steps have it, captured ones, too.
    pub fn set_rate(&self, rate: f64) {
        let written = Tensor::new(&[rate], self.control.device())
            .and_then(|rate| ops::assign(&self.control.narrow(0, place::BASE, 1)?, &rate));
        *self.rate.lock() = rate;
        if let Err(error) = written {
            self.failed.lock().get_or_insert(error);
        }
    }

    /// The learning rate that is set.
    pub fn rate(&self) -> f64 {
        *self.rate.lock()
    }

    /// Limits the norm of all gradients.
    pub fn clip_norm(&mut self, most: f64) -> Result<()> {
        let count = self.slots.iter().map(|slot| sums_of(slot.variable.elem_count())).sum::<usize>();
        self.sums = Some(Tensor::zeros(count, DType::F64, self.control.device())?);
        self.set(|control| control[place::MAX_NORM] = most)
    }

    /// Changes decay and rate of the variables by their names.
    pub fn for_each(&mut self, change: impl Fn(&str, &mut Update)) {
        self.slots.iter_mut().for_each(|slot| change(&slot.name, &mut slot.update));
    }

    /// The variables by name.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.slots.iter().map(|slot| (&slot.name[..], &slot.variable))
    }

    /// Copies of all that a step writes, by the names of a checkpoint: the control block, then values and moments.
    pub fn snapshot(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = vec![(checkpoint::CONTROL.to_string(), self.control.copy()?)];
        for slot in &self.slots {
            all.push((slot.name.clone(), slot.variable.copy()?));
            all.push((format!("{}{}", checkpoint::MOMENTS, slot.name), slot.moments(self.rule)?));
        }
        Ok(all)
    }

    /// Puts back what [`snapshot`](Self::snapshot) gave, where it was: a captured step knows the addresses.
    pub fn restore(&self, snapshot: &[(String, Tensor)]) -> Result<()> {
        let [(_, control), rest @ ..] = snapshot else { bail!("a snapshot of another optimizer") };
        let (pairs, []) = rest.as_chunks::<2>() else { bail!("a snapshot of another optimizer") };
        for (slot, [(_, value), (_, moments)]) in self.slots.iter().zip(pairs) {
            ops::assign(&slot.variable, value)?;
            slot.put_moments(moments)?;
        }
        ops::assign(&self.control, control)
    }

    /// Names, shapes and dtypes of a snapshot.
    fn shapes(&self) -> Vec<(String, Shape, DType)> {
        let mut all = vec![(checkpoint::CONTROL.to_string(), self.control.shape().clone(), self.control.dtype())];
        for slot in &self.slots {
            let dtype = slot.variable.dtype();
            all.push((slot.name.clone(), slot.variable.shape().clone(), dtype));
            all.push((format!("{}{}", checkpoint::MOMENTS, slot.name), slot.shape_of_moments(self.rule), dtype));
        }
        all
    }

    /// Writes a snapshot to a file. `optimizer` says what it is of.
    pub fn save(&self, path: &Path, optimizer: &str) -> std::result::Result<(), CheckpointError> {
        checkpoint::write(path, optimizer, &self.snapshot()?)
    }

    /// Reads what [`save`](Self::save) wrote. Nothing is changed before all of the file has been read.
    pub fn load(&self, path: &Path, optimizer: &str) -> std::result::Result<(), CheckpointError> {
        let read = checkpoint::read(path, optimizer, &self.shapes())?;
        let device = self.control.device();
        let moved = read.into_iter().map(|(name, tensor)| Ok((name, tensor.to_device(device)?)));
        self.restore(&moved.collect::<Result<Vec<_>>>()?)?;
        *self.rate.lock() = self.control()?[place::BASE];
        Ok(())
    }

    /// Updates the variables that have a gradient.
    pub fn step(&self, gradients: &GradStore) -> Result<()> {
        if let Some(error) = self.failed.lock().take() {
            return Err(error);
        }
        let reached = self.slots.iter().filter_map(|slot| Some((slot, gradients.get(&slot.variable)?)));
        let (slots, gradients): (Vec<_>, Vec<_>) = reached.unzip();
        let gradients = gradients.into_iter().map(Tensor::contiguous).collect::<Result<Vec<_>>>()?;
        let count = gradients.iter().map(|gradient| sums_of(gradient.elem_count())).sum();
        let sums = match &self.sums {
            Some(sums) if count > 0 => Some(sums.narrow(0, 0, count)?),
            _ => None,
        };
        if let Some(sums) = &sums {
            square_sums(sums, &gradients)?;
        }
        tick(&self.control, sums.as_ref())?;
        let pairs = slots.iter().zip(&gradients);
        let all = pairs.map(|(slot, gradient)| Updated { by: &slot.update, value: &slot.variable, gradient });
        update(self.rule, &all.collect::<Vec<_>>(), &self.control)
    }
}

/// Zeros in memory that nobody else has.
fn zeros(shape: &Shape, dtype: DType, device: &Device) -> Result<Storage> {
    let zeros = Tensor::zeros(shape, dtype, device)?;
    let (storage, layout) = zeros.storage_and_layout();
    storage.try_clone(layout)
}
