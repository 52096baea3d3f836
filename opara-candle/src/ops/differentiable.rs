//! Operators with a backward pass: where candle tracks an operand, the result is a node of candle's graph.

use std::sync::Arc;

use candle::{bail, CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp1, Layout, Result, Shape};
use candle::{DType, Storage, Tensor, Var};
use parking_lot::Mutex;

use super::column_sums::in_sums;
use crate::gradient::{self, Made};

/// Operands, results and gradient for a backward pass. No tensor is tracked.
pub(super) struct Passed<'a> {
    pub operands: &'a [Tensor],
    /// Tensors that the forward pass kept.
    pub saved: &'a [Tensor],
    pub result: &'a Tensor,
    /// The gradient of the result.
    pub gradient: &'a Tensor,
    needed: &'a [bool],
}

impl Passed<'_> {
    /// Is a gradient of this operand asked for?
    pub fn needs(&self, operand: usize) -> bool {
        self.needed.get(operand).is_some_and(|&is_needed| is_needed)
    }
}

/// Gives a gradient for each operand of which one is needed.
pub(super) type Backward = Box<dyn Fn(&Passed) -> Result<Vec<Option<Tensor>>> + Send + Sync>;

/// Runs `f`, which gives a result and what `backward` needs beside the operands.
///
/// # Errors
/// Those of `f`.
pub(super) fn differentiable(
    name: &'static str,
    operands: &[&Tensor],
    f: impl FnOnce(&[&Tensor]) -> Result<(Tensor, Vec<Tensor>)>,
    backward: impl Fn(&Passed) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    if !is_tracked(operands) {
        return Ok(f(operands)?.0);
    }
    let needed: Vec<_> = operands.iter().map(|operand| is_needed(operand)).collect();
    let detached: Vec<_> = operands.iter().map(|operand| operand.detach()).collect();
    let (y, saved) = gradient::untracked(|| f(&detached.iter().collect::<Vec<_>>()))?;
    let is_shared = detached.iter().chain(&saved).any(|other| have_one_storage(other, &y));
    let (y, order) = if is_shared { (y.force_contiguous()?, None) } else { as_it_lies(y)? };
    let tracked: Vec<_> = (0..operands.len()).filter(|&at| needed[at]).map(|at| operands[at]).collect();
    let result = Made::new(name, taken(&y)?, y.shape().clone());
    let (backward, rest) = (Box::new(backward), Arc::new(Mutex::new(Vec::new())));
    let node =
        Node { name, result, order: order.clone(), operands: detached, saved, needed, backward, rest: rest.clone() };
    let y = applied(&tracked, node, name, &rest)?;
    order.map_or_else(|| Ok(y.clone()), |order| y.permute(order))
}

/// [`differentiable`] by operators that candle differentiates: the backward pass runs them, and candle's backward pass through them.
///
/// # Errors
/// Those of `f`.
pub(super) fn recomputed(
    name: &'static str,
    operands: &[&Tensor],
    f: impl FnOnce(&[&Tensor]) -> Result<Tensor>,
    composed: impl Fn(&[&Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    differentiable(name, operands, |t| Ok((f(t)?, Vec::new())), move |passed| gradients_through(passed, &composed))
}

/// The gradients by candle's backward pass through operators that give the same result, for 16-bit types in f32.
///
/// # Errors
/// Those of the operators, and of their backward passes.
pub(super) fn gradients_through(
    passed: &Passed,
    composed: impl Fn(&[&Tensor]) -> Result<Tensor>,
) -> Result<Vec<Option<Tensor>>> {
    let numbered = passed.operands.iter().enumerate();
    let leaf = |(at, operand): (usize, &Tensor)| match passed.needs(at) {
        true => Ok(Var::from_tensor(&in_sums(operand)?)?.into_inner()),
        false => in_sums(operand),
    };
    let leaves = numbered.map(leaf).collect::<Result<Vec<_>>>()?;
    let y = composed(&leaves.iter().collect::<Vec<_>>())?;
    let found = (y * in_sums(passed.gradient)?)?.sum_all()?.backward()?;
    let of =
        |(leaf, operand): (&Tensor, &Tensor)| found.get(leaf).map(|found| found.to_dtype(operand.dtype())).transpose();
    leaves.iter().zip(passed.operands).map(of).collect()
}

/// A contiguous tensor, and the order of its dimensions in which it is `y`, if it is another one: the storage of `y` is not copied.
fn as_it_lies(y: Tensor) -> Result<(Tensor, Option<Vec<usize>>)> {
    let begins = y.layout().start_offset() == 0;
    if begins && y.is_contiguous() {
        return Ok((y, None));
    }
    let mut dims: Vec<_> = (0..y.rank()).collect();
    dims.sort_by_key(|&dim| std::cmp::Reverse(y.stride()[dim]));
    let whole = y.permute(dims.clone())?;
    if !begins || !whole.is_contiguous() {
        return Ok((y.force_contiguous()?, None));
    }
    let order = (0..y.rank()).map(|dim| dims.iter().position(|&of| of == dim).unwrap_or(dim)).collect();
    Ok((whole, Some(order)))
}

/// Does candle track one of these operands?
pub(super) fn is_tracked(operands: &[&Tensor]) -> bool {
    !gradient::is_off() && operands.iter().any(|operand| is_needed(operand))
}

fn is_needed(operand: &Tensor) -> bool {
    operand.track_op() && operand.dtype().is_float()
}

/// candle's custom operators have three operands at most: a tie stands for those behind the second one.
fn applied(tracked: &[&Tensor], node: Node, name: &'static str, rest: &Arc<Mutex<Vec<Tensor>>>) -> Result<Tensor> {
    let node = Custom(node);
    match tracked {
        [a] => a.apply_op1(node),
        [a, b] => a.apply_op2(b, node),
        [a, b, c] => a.apply_op3(b, c, node),
        [a, b, others @ ..] => {
            let tie = Custom(Tie { name, rest: rest.clone() });
            let tie = match others {
                [c, d] => c.apply_op2(d, tie)?,
                [c, d, e] => c.apply_op3(d, e, tie)?,
                _ => bail!("`{name}` has more than five operands"),
            };
            a.apply_op3(b, &tie, node)
        }
        [] => bail!("`{name}` has no operand that is tracked"),
    }
}

fn have_one_storage(a: &Tensor, b: &Tensor) -> bool {
    let ((a, _), (b, _)) = (a.storage_and_layout(), b.storage_and_layout());
    std::ptr::eq(&*a, &*b)
}

/// The storage of a tensor that nobody else has, which is empty after that.
fn taken(y: &Tensor) -> Result<Storage> {
    struct Taken(Mutex<Option<Storage>>);

    impl InplaceOp1 for Taken {
        fn name(&self) -> &'static str {
            "taken"
        }

        fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
            *self.0.lock() = Some(Storage::Cpu(std::mem::replace(storage, CpuStorage::U8(Vec::new()))));
            Ok(())
        }

        #[cfg(feature = "cuda")]
        fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
            let device = storage.device.clone();
            let nothing = crate::cuda::driver::kernels::written::<u8>(&device, 1, |_| Ok(()))?;
            let nothing = CudaStorage::wrap_cuda_slice(nothing, device);
            *self.0.lock() = Some(Storage::Cuda(std::mem::replace(storage, nothing)));
            Ok(())
        }
    }

    let taken = Taken(Mutex::new(None));
    y.inplace_op1(&taken)?;
    match taken.0.into_inner() {
        Some(storage) => Ok(storage),
        None => bail!("a result on a device that operators do not know"),
    }
}

/// A custom operator of any number of operands.
trait Operator {
    fn name(&self) -> &'static str;

    fn on_cpu(&self) -> Result<(CpuStorage, Shape)>;

    /// On the device of an operand.
    fn on_gpu(&self, like: &CudaStorage) -> Result<(CudaStorage, Shape)>;

    /// The gradients of the operands.
    fn gradients<const COUNT: usize>(&self, result: &Tensor, gradient: &Tensor) -> Result<[Option<Tensor>; COUNT]>;
}

/// Gives what was computed before.
struct Node {
    name: &'static str,
    result: Made,
    /// The order of the result's dimensions.
    order: Option<Vec<usize>>,
    operands: Vec<Tensor>,
    saved: Vec<Tensor>,
    needed: Vec<bool>,
    backward: Backward,
    /// The gradients of the operands behind a tie.
    rest: Arc<Mutex<Vec<Tensor>>>,
}

impl Operator for Node {
    fn name(&self) -> &'static str {
        self.name
    }

    fn on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        self.result.on_cpu()
    }

    fn on_gpu(&self, _: &CudaStorage) -> Result<(CudaStorage, Shape)> {
        self.result.on_gpu()
    }

    fn gradients<const COUNT: usize>(&self, result: &Tensor, gradient: &Tensor) -> Result<[Option<Tensor>; COUNT]> {
        let Self { name, operands, saved, needed, .. } = self;
        let ordered = |t: &Tensor| match &self.order {
            Some(order) => t.detach().permute(order.clone()),
            None => Ok(t.detach()),
        };
        let (result, gradient) = (&ordered(result)?, &ordered(gradient)?.contiguous()?);
        let all = (self.backward)(&Passed { operands, saved, result, gradient, needed })?;
        let mut of_tracked = Vec::with_capacity(operands.len());
        for (at, operand) in operands.iter().enumerate().filter(|&(at, _)| needed[at]) {
            match all.get(at) {
                Some(Some(found)) if found.shape() == operand.shape() && found.dtype() == operand.dtype() => {
                    of_tracked.push(found.detach());
                }
                _ => bail!("`{name}` has no gradient of operand {at}, {:?} {:?}", operand.shape(), operand.dtype()),
            }
        }
        if of_tracked.len() > COUNT {
            *self.rest.lock() = of_tracked.split_off(COUNT - 1);
            of_tracked.push(Tensor::zeros(1, DType::F32, gradient.device())?);
        }
        as_many(name, of_tracked)
    }
}

/// Stands for several operands of a node, which leaves their gradients in `rest`.
struct Tie {
    name: &'static str,
    rest: Arc<Mutex<Vec<Tensor>>>,
}

impl Operator for Tie {
    fn name(&self) -> &'static str {
        self.name
    }

    fn on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.]), Shape::from(1)))
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, like: &CudaStorage) -> Result<(CudaStorage, Shape)> {
        let zero = like.device.alloc_zeros::<f32>(1)?;
        Ok((CudaStorage::wrap_cuda_slice(zero, like.device.clone()), Shape::from(1)))
    }

    #[cfg(not(feature = "cuda"))]
    fn on_gpu(&self, _: &CudaStorage) -> Result<(CudaStorage, Shape)> {
        bail!("`{}` needs the feature `cuda`", self.name)
    }

    fn gradients<const COUNT: usize>(&self, _: &Tensor, _: &Tensor) -> Result<[Option<Tensor>; COUNT]> {
        as_many(self.name, std::mem::take(&mut *self.rest.lock()))
    }
}

fn as_many<const COUNT: usize>(name: &str, gradients: Vec<Tensor>) -> Result<[Option<Tensor>; COUNT]> {
    match <[Tensor; COUNT]>::try_from(gradients) {
        Ok(gradients) => Ok(gradients.map(Some)),
        Err(gradients) => bail!("`{name}` has {} gradients, but {COUNT} operands", gradients.len()),
    }
}

struct Custom<O>(O);

impl<O: Operator> CustomOp1 for Custom<O> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.on_cpu()
    }

    fn cuda_fwd(&self, like: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.0.on_gpu(like)
    }

    fn bwd(&self, _: &Tensor, result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        self.0.gradients(result, gradient).map(|[a]| a)
    }
}

impl<O: Operator> CustomOp2 for Custom<O> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.on_cpu()
    }

    fn cuda_fwd(&self, like: &CudaStorage, _: &Layout, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.0.on_gpu(like)
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.0.gradients(result, gradient).map(|[a, b]| (a, b))
    }
}

impl<O: Operator> CustomOp3 for Custom<O> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.on_cpu()
    }

    fn cuda_fwd(
        &self,
        like: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.0.on_gpu(like)
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        result: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.0.gradients(result, gradient).map(|[a, b, c]| (a, b, c))
    }
}
