//! The variables of an optimizer, and the numbers that it keeps on their device.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use candle::backprop::GradStore;
use candle::{bail, DType, Result, Shape, Tensor, TensorId, Var};
use parking_lot::Mutex;

use super::check::{check, finite, floats, part};
use super::checkpoint::{self, CheckpointError, Position};
use super::loss_scale::LossScale;
use super::mixed_precision::MixedPrecision;
use super::names::Names;
use super::slot::Slot;
use super::Schedule;
use crate::ops;
use crate::ops::optimizer::rule::{place, Rule, CONTROL};
use crate::ops::optimizer::{blend, round, square_sums, sums_of, tick, update, Blend, Update, Updated};

/// What a step reads and writes, apart from gradients.
pub(super) struct State {
    rule: Rule,
    slots: Vec<Slot>,
    /// [`CONTROL`] numbers.
    control: Tensor,
    /// Room for the sums of squares of all gradients, if their norm is computed.
    sums: Option<Tensor>,
    is_scaled: bool,
    /// Batches of a step.
    pub batches: usize,
    /// The part of averages that stays at a step.
    kept: f64,
    /// The learning rate that is set.
    rate: Mutex<f64>,
    /// The first failed write of a learning rate, which the next step tells.
    failed: Mutex<Option<candle::Error>>,
    /// Held by a step, and by what reads or writes all numbers: of clones on several threads, none sees half of another's step.
    turn: Mutex<()>,
}

impl State {
    /// The state of variables by name, of which those of integers are left out. Moments are zeros.
    pub fn new(variables: Vec<(String, Var)>, rule: Rule, rate: f64, decay: f64) -> Result<Self> {
        check(rule, rate, decay)?;
        let (floats, device) = floats(variables)?;
        let slots = floats.into_iter().map(|of| Slot::new(of, rule, decay)).collect::<Result<Vec<_>>>()?;
        let mut control = [0.; CONTROL];
        let [beta1, beta2] = rule.betas();
        (control[place::BETA1], control[place::BETA2], control[place::BASE]) = (beta1, beta2, rate);
        (control[place::BATCHES], control[place::SCALE]) = (1., 1.);
        Schedule::Constant { warm_up: 0 }.write(&mut control);
        let control = Tensor::new(&control, &device)?;
        Ok(Self {
            rule,
            slots,
            control,
            sums: None,
            is_scaled: false,
            batches: 1,
            kept: 0.,
            rate: Mutex::new(rate),
            failed: Mutex::new(None),
            turn: Mutex::new(()),
        })
    }

    /// Changes the numbers in the control block.
    pub fn set(&self, change: impl FnOnce(&mut [f64])) -> Result<()> {
        let _turn = self.turn.lock();
        self.write(change)
    }

    fn write(&self, change: impl FnOnce(&mut [f64])) -> Result<()> {
        let mut control = self.control.to_vec1::<f64>()?;
        change(&mut control);
        ops::assign(&self.control, &Tensor::new(control, self.control.device())?)
    }

    /// The numbers in the control block.
    pub fn control(&self) -> Result<Vec<f64>> {
        self.control.to_vec1()
    }

    /// One number of the control block, where it lies.
    pub fn number(&self, place: usize) -> Result<Tensor> {
        self.control.narrow(0, place, 1)
    }

    /// What losses are multiplied with, one number of f32, if that is anything.
    pub fn scale(&self) -> Result<Option<Tensor>> {
        self.is_scaled.then(|| self.number(place::SCALE)?.to_dtype(DType::F32)).transpose()
    }

    /// Sets the learning rate, in the order of the device's work: later steps have it, captured ones, too.
    pub fn set_rate(&self, rate: f64) {
        let written = finite("learning rate", rate)
            .and_then(|()| Tensor::new(&[rate], self.control.device()))
            .and_then(|rate| ops::assign(&self.control.narrow(0, place::BASE, 1)?, &rate));
        match written {
            Ok(()) => *self.rate.lock() = rate,
            Err(error) => drop(self.failed.lock().get_or_insert(error)),
        }
    }

    /// The learning rate that is set.
    pub fn rate(&self) -> f64 {
        *self.rate.lock()
    }

    /// Has the norm of all gradients computed, and sets numbers of the control block.
    pub fn compute_norm(&mut self, change: impl FnOnce(&mut [f64])) -> Result<()> {
        let count = self.slots.iter().map(|slot| sums_of(slot.variable.elem_count())).sum::<usize>();
        self.sums = Some(Tensor::zeros(count, DType::F64, self.control.device())?);
        self.set(change)
    }

    /// Multiplies losses.
    pub fn scale_loss(&mut self, scale: &LossScale) -> Result<()> {
        if let Some(slot) = self.slots.iter().find(|slot| slot.variable.dtype() == DType::F16) {
            bail!("`{}` is of f16, which has no room for its gradient: see `MixedPrecision`", slot.name)
        }
        if !(scale.first > 0. && scale.first.is_finite()) {
            bail!("a loss cannot be scaled by {}", scale.first)
        }
        self.is_scaled = true;
        self.compute_norm(|control| scale.write(control))
    }

    /// Has a step go by the gradients of so many batches.
    pub fn accumulate(&mut self, batches: usize) -> Result<()> {
        if batches == 0 {
            bail!("a step has one batch at least")
        }
        for slot in self.slots.iter_mut() {
            slot.sum = if batches > 1 { Some(slot.variable.as_detached_tensor().zeros_like()?) } else { None };
        }
        self.batches = batches;
        self.set(|control| control[place::BATCHES] = batches as f64)
    }

    /// Keeps averages of values.
    pub fn average(&mut self, kept: f64) -> Result<()> {
        part("kept", kept)?;
        for slot in self.slots.iter_mut() {
            if !matches!(slot.variable.dtype(), DType::F32 | DType::F64) {
                bail!("an average of `{}` would stay: {:?} rounds it to itself", slot.name, slot.variable.dtype())
            }
            slot.average = Some(slot.variable.as_detached_tensor().copy()?);
        }
        self.kept = kept;
        Ok(())
    }

    /// Keeps copies of 16 bits up to date.
    pub fn copy_to(&mut self, copies: &MixedPrecision) -> Result<()> {
        self.slots.iter_mut().for_each(|slot| slot.copy = copies.of(&slot.name));
        if self.slots.iter().all(|slot| slot.copy.is_none()) {
            bail!("no variable has a copy of 16 bits: make the model first, and the optimizer by `of`, whose names are the map's")
        }
        copies.refresh()
    }

    /// Leaves variables out.
    pub fn freeze(&mut self, names: impl Names) -> Result<()> {
        let mut is_frozen = self.chosen(names)?.into_iter();
        self.slots.retain(|_| is_frozen.next() != Some(true));
        Ok(())
    }

    /// Changes decay and rate of variables.
    pub fn for_each(&mut self, names: impl Names, change: impl Fn(&mut Update)) -> Result<()> {
        let chosen = self.chosen(names)?;
        let chosen = self.slots.iter_mut().zip(chosen).filter(|(_, is_chosen)| *is_chosen);
        chosen.for_each(|(slot, _)| change(&mut slot.update));
        Ok(())
    }

    fn chosen(&self, names: impl Names) -> Result<Vec<bool>> {
        names.choose(&self.slots.iter().map(|slot| &slot.name[..]).collect::<Vec<_>>())
    }

    /// The variables by name, and their slots.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Exchanges values and averages.
    pub fn swap_averages(&self) -> Result<()> {
        let _turn = self.turn.lock();
        for slot in &self.slots {
            let Some(average) = &slot.average else { bail!("no averages are kept") };
            let (value, kept) = (slot.variable.as_detached_tensor(), average.copy()?);
            ops::assign(average, &value)?;
            ops::assign(&value, &kept)?;
        }
        self.round()
    }

    /// Copies of all that a step writes, by the names of a checkpoint: the control block, then what each variable has.
    pub fn snapshot(&self) -> Result<Vec<(String, Tensor)>> {
        let _turn = self.turn.lock();
        let mut all = vec![(checkpoint::CONTROL.to_string(), self.control.copy()?)];
        for slot in &self.slots {
            all.extend(slot.snapshot(self.rule)?);
        }
        Ok(all)
    }

    /// Puts back what [`snapshot`](Self::snapshot) gave, where it was: a captured step knows the addresses.
    pub fn restore(&self, snapshot: &[(String, Tensor)]) -> Result<()> {
        let _turn = self.turn.lock();
        self.put(snapshot)
    }

    fn put(&self, snapshot: &[(String, Tensor)]) -> Result<()> {
        let [(_, control), rest @ ..] = snapshot else { bail!("a snapshot of another optimizer") };
        self.slots.iter().try_fold(rest, |rest, slot| slot.restore(rest))?;
        self.round()?;
        ops::assign(&self.control, control)
    }

    /// Names, shapes and dtypes of a snapshot.
    fn shapes(&self) -> Vec<(String, Shape, DType)> {
        let control = (checkpoint::CONTROL.to_string(), self.control.shape().clone(), self.control.dtype());
        [control].into_iter().chain(self.slots.iter().flat_map(|slot| slot.shapes(self.rule))).collect()
    }

    /// Writes a snapshot to a file, and the position of a loader. `optimizer` says what it is of. A sum that no batch has reached is nothing.
    pub fn save(&self, path: &Path, optimizer: &str, at: Option<Position>) -> std::result::Result<(), CheckpointError> {
        let mut snapshot = self.snapshot()?;
        let nothing: HashSet<_> = self.slots.iter().filter(|slot| !slot.was_reached()).map(Slot::name_of_sum).collect();
        snapshot.retain(|(name, _)| !nothing.contains(name));
        checkpoint::write(path, optimizer, at, &snapshot)
    }

    /// Reads what [`save`](Self::save) wrote, and gives the position of a loader of this order. Nothing is changed before all of the file has been
    /// read.
    pub fn load(
        &self,
        path: &Path,
        optimizer: &str,
        order: Option<String>,
    ) -> std::result::Result<Option<u64>, CheckpointError> {
        let (read, position) = checkpoint::read(path, optimizer, order, &self.shapes())?;
        let (device, mut nothing) = (self.control.device(), HashSet::new());
        let mut moved = Vec::new();
        for ((name, shape, dtype), tensor) in self.shapes().into_iter().zip(read) {
            let tensor = match tensor {
                Some(tensor) => tensor.to_device(device)?,
                None => {
                    nothing.insert(name.clone());
                    Tensor::zeros(shape, dtype, device)?
                }
            };
            moved.push((name, tensor));
        }
        let _turn = self.turn.lock();
        let own = self.control()?;
        self.put(&moved)?;
        self.slots.iter().for_each(|slot| slot.set_reached(!nothing.contains(&slot.name_of_sum())));
        self.write(|control| {
            let was_scaled = control[place::GROWTH] > 0.;
            // Sums of another factor, or of other batches, begin anew.
            if was_scaled != self.is_scaled || control[place::BATCHES] != own[place::BATCHES] {
                control[place::TAKEN] = 0.;
            }
            if was_scaled != self.is_scaled {
                (control[place::SCALE], control[place::GOOD]) = (own[place::SCALE], 0.);
            }
            // The limit of the norm and what follows from settings are this optimizer's.
            [place::MAX_NORM, place::BATCHES, place::GROWTH].into_iter().for_each(|at| control[at] = own[at]);
        })?;
        *self.rate.lock() = self.control()?[place::BASE];
        Ok(position)
    }

    /// Updates the variables that have a gradient. `ready` has variables in the order in which their gradients are computed, as far as that is
    /// known: a launch then updates some of them, beside the rest of the backward pass.
    pub fn step(&self, gradients: &GradStore, ready: &[TensorId]) -> Result<()> {
        let _turn = self.turn.lock();
        if let Some(error) = self.failed.lock().take() {
            return Err(error);
        }
        let (mut slots, mut gradients_of) = (Vec::new(), Vec::new());
        for slot in &self.slots {
            if let Some(gradient) = slot.gradient(gradients)? {
                slots.push(slot);
                gradients_of.push(gradient);
            }
        }
        let gradients = self.summed(&slots, gradients_of)?;
        let count = gradients.iter().map(|gradient| sums_of(gradient.elem_count())).sum();
        let sums = match &self.sums {
            Some(sums) if count > 0 => Some(sums.narrow(0, 0, count)?),
            _ => None,
        };
        if let Some(sums) = &sums {
            square_sums(sums, &gradients)?;
        }
        tick(&self.control, sums.as_ref())?;
        let mut pairs: Vec<_> = slots.into_iter().zip(&gradients).collect();
        // The norm of all gradients is there last, and so are sums over batches.
        if sums.is_none() && self.batches == 1 && !ready.is_empty() {
            let place: HashMap<_, _> = ready.iter().enumerate().map(|(place, id)| (*id, place)).collect();
            pairs.sort_by_key(|(slot, _)| place.get(&slot.variable.id()).copied().unwrap_or(usize::MAX));
            for group in groups(&pairs, |(_, gradient)| gradient.elem_count()) {
                self.update(group)?;
            }
        } else {
            self.update(&pairs)?;
        }
        let updated: HashSet<_> = pairs.iter().map(|(slot, _)| slot.variable.id()).collect();
        self.follow(self.slots.iter().filter(|slot| !updated.contains(&slot.variable.id())))
    }

    /// Updates some variables by their gradients, and what follows from their values.
    fn update(&self, some: &[(&Slot, &Tensor)]) -> Result<()> {
        let all = some.iter().map(|(slot, gradient)| Updated { by: &slot.update, value: &slot.variable, gradient });
        update(self.rule, &all.collect::<Vec<_>>(), &self.control)?;
        self.follow(some.iter().map(|(slot, _)| *slot))
    }

    /// Writes averages of values, and their copies of 16 bits.
    fn follow<'a>(&self, some: impl Iterator<Item = &'a Slot> + Clone) -> Result<()> {
        let averages = some.clone().filter_map(|slot| Some((slot.average.as_ref()?, slot.variable.as_tensor())));
        blend(Blend::Average(self.kept), &averages.collect::<Vec<_>>(), &self.control)?;
        round_some(some)
    }

    /// The sums of gradients over the batches of a step, if there are several.
    fn summed(&self, slots: &[&Slot], gradients: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let sums: Vec<_> = slots.iter().filter_map(|slot| slot.sum.clone()).collect();
        if sums.is_empty() {
            return Ok(gradients);
        }
        blend(Blend::Sum, &sums.iter().zip(&gradients).collect::<Vec<_>>(), &self.control)?;
        Ok(sums)
    }

    /// Writes the copies of 16 bits.
    fn round(&self) -> Result<()> {
        round_some(self.slots.iter())
    }
}

/// Writes the copies of 16 bits of some variables.
fn round_some<'a>(some: impl Iterator<Item = &'a Slot>) -> Result<()> {
    let pairs = some.filter_map(|slot| Some((slot.copy.as_ref()?, slot.variable.as_tensor())));
    round(&pairs.collect::<Vec<_>>())
}

/// Neighbours that one launch updates: an eighth of all elements, and enough to be worth a launch.
fn groups<T>(all: &[T], elements: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    const PARTS: usize = 8;
    const FEW: usize = 1 << 20;
    let most = (all.iter().map(&elements).sum::<usize>() / PARTS).max(FEW);
    let mut in_group = 0;
    let mut ends = Vec::new();
    for (at, of) in all.iter().enumerate() {
        in_group += elements(of);
        if in_group >= most || at + 1 == all.len() {
            ends.push(at + 1);
            in_group = 0;
        }
    }
    let begins = std::iter::once(0).chain(ends.clone());
    begins.zip(ends).map(|(begin, end)| &all[begin..end])
}

#[cfg(test)]
mod tests {
    use candle::Device::Cpu;
    use candle_nn::VarMap;

    use super::*;

    #[test]
    fn groups_have_an_eighth_of_all_elements_or_are_worth_a_launch() {
        let of = |sizes: &[usize]| groups(sizes, |size| *size).map(<[usize]>::len).collect::<Vec<_>>();
        assert_eq!(of(&[]), [0; 0]);
        assert_eq!(of(&[10, 20, 30]), [3], "few elements are one launch");
        assert_eq!(of(&[1 << 20; 16]), [2; 8]);
        assert_eq!(of(&[1 << 24, 1 << 10, 1 << 10, 1 << 22, 5]), [1, 3, 1], "a large one is alone");
    }

    #[test]
    fn updates_by_several_launches_are_those_of_one() -> Result<()> {
        let rule = Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, is_decoupled: true };
        let stepped = |in_order: bool| -> Result<Vec<(String, Vec<f32>)>> {
            let (weights, names) = (VarMap::new(), ["a", "b", "c", "without a gradient"]);
            let copies = MixedPrecision::new(&weights, DType::BF16);
            let builder = copies.var_builder(&Cpu);
            let mut variables = Vec::new();
            for (at, name) in names.into_iter().enumerate() {
                builder.get((1 << 10, 1 << 10), name)?;
                let variable = weights.data().lock().expect("it is not poisoned")[name].clone();
                let numbers = (0..1 << 20).map(|i| ((i * 31 + at * 7) % 257) as f32 / 64. - 2.);
                variable.set(&Tensor::from_iter(numbers, &Cpu)?.reshape((1 << 10, 1 << 10))?)?;
                variables.push((name.to_string(), variable));
            }
            let mut state = State::new(variables.clone(), rule, 0.01, 0.01)?;
            state.average(0.75)?;
            state.copy_to(&copies)?;
            let ready: Vec<_> = variables[..3].iter().rev().map(|(_, variable)| variable.id()).collect();
            for _ in 0..2 {
                let squares = variables[..3].iter().map(|(_, variable)| variable.sqr()?.sum_all());
                let loss = squares.reduce(|sum, of| sum? + of?).expect("there are variables")?;
                state.step(&loss.backward()?, if in_order { &ready } else { &[] })?;
            }
            let copies = state.slots.iter().map(|slot| (slot.name.to_string(), slot.copy.clone().expect("it has one")));
            let all = state.snapshot()?.into_iter().chain(copies);
            all.map(|(name, of)| Ok((name, of.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?))).collect()
        };
        for ((name, got), (_, expected)) in stepped(true)?.into_iter().zip(stepped(false)?) {
            assert!(got == expected, "{name}");
        }
        Ok(())
    }
}
