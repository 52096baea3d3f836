//! Operators without a backward pass of their own: where a gradient would reach one, candle's backward pass fails with its name, instead of leaving
//! the gradient out in silence.
//!
//! Kernels make their results by [`made`]. If candle tracks an operand, the result is a node of candle's graph whose backward pass is an
//! error. The node holds a variable and nothing else, so that operands are freed as they would be without it.

use std::cell::{Cell, RefCell};

use candle::op::BackpropOp;
use candle::{
    bail, CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Device, Layout, Result, Shape, Storage,
    Tensor,
};
use parking_lot::Mutex;

/// The name of an operator, and a variable that one of its operands depends on.
type Tracked = (&'static str, Tensor);

thread_local! {
    /// The outermost operator that runs on this thread, if candle tracks one of its operands.
    static CURRENT: RefCell<Option<Tracked>> = const { RefCell::new(None) };

    /// Do operators of this thread give their results as they are?
    static IS_OFF: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, whose results nobody keeps: operators with tracked operands give theirs as they are. Results that hold no values could not be
/// made anew.
pub(crate) fn unwatched<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_OFF.set(self.0);
        }
    }
    let _restore = Restore(IS_OFF.replace(true));
    f()
}

/// The operator around one that runs, which goes on after that, after a panic, too.
struct Around(Option<Tracked>);

impl Around {
    fn taken() -> Self {
        Self(CURRENT.take())
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Do operators of this thread give their results as they are?
pub(crate) fn is_off() -> bool {
    IS_OFF.get()
}

/// Runs `f` on operands that are not tracked, within an operator that knows its gradient.
pub(crate) fn untracked<T>(f: impl FnOnce() -> T) -> T {
    let _around = Around::taken();
    f()
}

/// Runs `f`, an operator of this name on these operands. If candle tracks one of them, the result has candle's gradient or an error in
/// its place.
pub(crate) fn watched(name: &'static str, operands: &[&Tensor], f: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let is_tracked = operands.iter().any(|operand| operand.track_op());
    if IS_OFF.get() || !is_tracked && CURRENT.with_borrow(Option::is_none) {
        return f();
    }
    let around = Around::taken();
    let name = around.0.as_ref().map_or(name, |(name, _)| name);
    let tracked = variable(operands.iter().copied()).map(|variable| (name, variable));
    CURRENT.set(tracked.clone());
    let y = f()?;
    drop(around);
    match tracked {
        Some(tracked) if !operands.iter().any(|operand| operand.id() == y.id()) => with_error(&tracked, y),
        _ => Ok(y),
    }
}

/// The variable that a gradient would reach through one of these tensors; `None` if candle tracks none of them.
pub(crate) fn variable<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Option<Tensor> {
    let tracked = tensors.into_iter().filter(|t| t.track_op() && t.dtype().is_float());
    let variable = |t: &Tensor| t.sorted_nodes().into_iter().find(|node| node.is_variable()).cloned();
    tracked.into_iter().find_map(variable)
}

/// A variable that nothing else knows.
pub(crate) fn own_variable(device: &Device) -> Result<Tensor> {
    Ok(candle::Var::zeros(1, DType::F32, device)?.into_inner())
}

/// The same values. If they are floats that candle does not track, they become a node whose backward pass fails: they are copied for that.
pub(crate) fn with_error(tracked: &Tracked, y: Tensor) -> Result<Tensor> {
    if y.track_op() || !y.dtype().is_float() {
        return Ok(y);
    }
    let y = if y.is_contiguous() && y.layout().start_offset() == 0 { y } else { y.force_contiguous()? };
    let copy = {
        let (storage, layout) = y.storage_and_layout();
        storage.try_clone(layout)?
    };
    node(tracked, copy, y.shape().clone())
}

/// A kernel's result.
pub(crate) fn made(storage: Storage, shape: impl Into<Shape>) -> Result<Tensor> {
    match CURRENT.with_borrow(Clone::clone).filter(|_| storage.dtype().is_float()) {
        Some(tracked) => node(&tracked, storage, shape.into()),
        None => Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false)),
    }
}

/// [`made`] of a kernel for the CPU.
pub(crate) fn made_on_cpu<T: candle::WithDType>(elements: Vec<T>, shape: impl Into<Shape>) -> Result<Tensor> {
    made(Storage::Cpu(T::to_cpu_storage_owned(elements)), shape)
}

/// [`made`] by a custom operator.
pub(crate) fn applied(x: &Tensor, op: &impl CustomOp1) -> Result<Tensor> {
    let (storage, shape) = {
        let (x, layout) = x.storage_and_layout();
        match &*x {
            Storage::Cpu(x) => on_cpu(op.cpu_fwd(x, layout)?),
            Storage::Cuda(x) => on_gpu(op.cuda_fwd(x, layout)?),
            Storage::Metal(_) => bail!("`{}` runs on CUDA devices and on the CPU", op.name()),
        }
    };
    made(storage, shape)
}

/// [`applied`] of two operands.
pub(crate) fn applied2(x: &Tensor, y: &Tensor, op: &impl CustomOp2) -> Result<Tensor> {
    let (storage, shape) = {
        let ((x, xl), (y, yl)) = (x.storage_and_layout(), y.storage_and_layout());
        match (&*x, &*y) {
            (Storage::Cpu(x), Storage::Cpu(y)) => on_cpu(op.cpu_fwd(x, xl, y, yl)?),
            (Storage::Cuda(x), Storage::Cuda(y)) => on_gpu(op.cuda_fwd(x, xl, y, yl)?),
            _ => bail!("`{}` needs its operands on one device", op.name()),
        }
    };
    made(storage, shape)
}

/// [`applied`] of three operands.
pub(crate) fn applied3(x: &Tensor, y: &Tensor, z: &Tensor, op: &impl CustomOp3) -> Result<Tensor> {
    let (storage, shape) = {
        let ((x, xl), (y, yl), (z, zl)) = (x.storage_and_layout(), y.storage_and_layout(), z.storage_and_layout());
        match (&*x, &*y, &*z) {
            (Storage::Cpu(x), Storage::Cpu(y), Storage::Cpu(z)) => on_cpu(op.cpu_fwd(x, xl, y, yl, z, zl)?),
            (Storage::Cuda(x), Storage::Cuda(y), Storage::Cuda(z)) => on_gpu(op.cuda_fwd(x, xl, y, yl, z, zl)?),
            _ => bail!("`{}` needs its operands on one device", op.name()),
        }
    };
    made(storage, shape)
}

fn on_cpu((storage, shape): (CpuStorage, Shape)) -> (Storage, Shape) {
    (Storage::Cpu(storage), shape)
}

fn on_gpu((storage, shape): (CudaStorage, Shape)) -> (Storage, Shape) {
    (Storage::Cuda(storage), shape)
}

/// A tensor of this storage in whose place a backward pass fails.
fn node((name, variable): &Tracked, storage: Storage, shape: Shape) -> Result<Tensor> {
    let device = storage.device();
    let made = Made::new(name, storage, shape);
    // A variable may be on another device, from which a weight was copied.
    match variable.device().same_device(&device) {
        true => variable.apply_op1(made),
        false => own_variable(&device)?.apply_op1(made),
    }
}

/// A custom operator that gives what was made before, once. candle gives its backward pass, which is an error.
pub(crate) struct Made {
    name: &'static str,
    result: Mutex<Option<(Storage, Shape)>>,
}

impl Made {
    pub fn new(name: &'static str, storage: Storage, shape: Shape) -> Self {
        Self { name, result: Mutex::new(Some((storage, shape))) }
    }

    /// # Errors
    /// A result on a GPU.
    pub fn on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.result.lock().take() {
            Some((Storage::Cpu(storage), shape)) => Ok((storage, shape)),
            _ => bail!("`{}` needs its operands on one device", self.name),
        }
    }

    /// # Errors
    /// A result on the CPU.
    pub fn on_gpu(&self) -> Result<(CudaStorage, Shape)> {
        match self.result.lock().take() {
            Some((Storage::Cuda(storage), shape)) => Ok((storage, shape)),
            _ => bail!("`{}` needs its operands on one device", self.name),
        }
    }
}

impl CustomOp1 for Made {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }
}
