//! Recording on tensors that hold nothing: does host code of a module depend on values?
//!
//! Recorded operators run on the values, but candle's own operators, and reads such as `to_scalar`, are not seen. So the module runs once
//! more, on tensors of the same shapes that candle cannot read: whatever looks at a value fails. Host code may go on after such an error,
//! or print what can be read: so it runs on several numbers, too. It must call the same operators each time. No operator that depends on
//! an input computes anything.

use std::cmp::Reverse;
use std::sync::Arc;

use candle::backend::BackendDevice;
use candle::cpu_backend::CpuDevice;
use candle::op::BackpropOp;
use candle::{bail, CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, TensorId};
use hashbrown::HashMap;

use super::program::{CpuProgram, HostOp, Source};
use crate::Error;

/// What the tensors hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Contents {
    /// Nothing: candle's operators refuse them.
    Nothing,
    /// This number, or the other one in integers.
    Number(f32, u8),
}

impl Contents {
    /// The ways that host code which goes on after an error is likely to tell apart: the smallest and the largest numbers, none, zero, signs
    /// and sizes, and small integers, which stand for modes and tokens.
    pub const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Number(f32::NEG_INFINITY, 0),
        Self::Number(f32::NAN, 1),
        Self::Number(0., 2),
        Self::Number(1., 3),
        Self::Number(-40., 4),
        Self::Number(700., 5),
        Self::Number(f32::INFINITY, 127),
    ];

    /// A contiguous tensor.
    fn tensor(self, shape: Shape, dtype: DType) -> Result<Tensor> {
        /// A type that none of candle's operators takes.
        struct Unreadable;
        impl InplaceOp1 for Unreadable {
            fn name(&self) -> &'static str {
                "unreadable"
            }

            fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
                *storage = CpuStorage::F4(Vec::new());
                Ok(())
            }
        }
        let full = |of: f32| Tensor::full(of, &shape, &Device::Cpu)?.to_dtype(dtype);
        match self {
            // There is nothing to read.
            _ if shape.elem_count() == 0 => Tensor::zeros(shape, dtype, &Device::Cpu),
            Self::Nothing => {
                let none = CpuDevice.zeros_impl(&Shape::from(0), dtype)?;
                let tensor = Tensor::from_storage(Storage::Cpu(none), shape, BackpropOp::none(), false);
                tensor.inplace_op1(&Unreadable)?;
                Ok(tensor)
            }
            Self::Number(float, integer) => full(if dtype.is_float() { float } else { f32::from(integer) }),
        }
    }

    /// A tensor whose elements lie in this order.
    fn tensor_like(self, layout: &Layout, dtype: DType) -> Result<Tensor> {
        if layout.is_contiguous() {
            return self.tensor(layout.shape().clone(), dtype);
        }
        let mut order: Vec<usize> = (0..layout.dims().len()).collect();
        order.sort_by_key(|&dim| Reverse(layout.stride()[dim]));
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &dim)| back[dim] = at);
        let dims: Vec<usize> = order.iter().map(|&dim| layout.dims()[dim]).collect();
        self.tensor(dims.into(), dtype)?.permute(back)
    }
}

/// A pass on such tensors that is compared with a recording.
pub(super) struct Unread {
    program: Arc<CpuProgram>,
    contents: Contents,
    sources: HashMap<TensorId, Source>,
    /// Results of operators that depend on no input. They are the same in all passes.
    constants: HashMap<usize, Tensor>,
    /// For each operator so far: does its result depend on an input?
    depends: Vec<bool>,
    /// Calls of operators so far.
    calls: usize,
    /// The first operator that is not the recording's.
    other: Option<&'static str>,
}

impl Unread {
    /// A pass, and its arguments. `constants` are those of an earlier pass.
    pub fn new(
        program: Arc<CpuProgram>,
        like: &[Tensor],
        contents: Contents,
        constants: HashMap<usize, Tensor>,
    ) -> Result<(Self, Vec<Tensor>)> {
        let tensor = |t: &Tensor| contents.tensor(t.shape().clone(), t.dtype());
        let arguments = like.iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let sources = arguments.iter().enumerate().map(|(i, t)| (t.id(), Source::Argument(i))).collect();
        Ok((Self { program, contents, sources, constants, depends: Vec::new(), calls: 0, other: None }, arguments))
    }

    /// The result of an operator.
    pub fn apply(
        &mut self,
        name: &'static str,
        inputs: &[&Tensor],
        in_place: bool,
        f: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let returned = self.program.returned.get(self.calls).copied().flatten();
        self.calls += 1;
        if let Some(operand) = returned.and_then(|at| inputs.get(at)) {
            return Ok((*operand).clone());
        }
        let sources: Vec<Source> = inputs.iter().map(|t| self.source(t)).collect();
        let depends = sources.iter().any(|source| match source {
            Source::Argument(_) => true,
            Source::Op(i) => self.depends[*i],
            Source::Constant(_) => false,
        });
        let at = self.depends.len();
        let is_same = |op: &&HostOp| {
            op.name == name
                && op.inputs.len() == sources.len()
                && op.inputs.iter().zip(&sources).all(|(a, b)| a.is_same(b))
        };
        let expected = self.program.ops.get(at).filter(is_same);
        let result = match expected {
            Some(_) if in_place => inputs[0].reshape(inputs[0].shape()),
            Some(op) if depends && (op.layout.shape().elem_count() == 0 || !self.program.is_view(at)) => {
                self.contents.tensor_like(&op.layout, op.dtype)
            }
            // Views read nothing.
            Some(_) if depends => f(),
            Some(_) => self.constants.get(&at).cloned().map_or_else(f, Ok),
            None => {
                self.other.get_or_insert(name);
                bail!("it calls `{name}` here")
            }
        }?;
        if !depends && !in_place {
            self.constants.insert(at, result.clone());
        }
        self.sources.insert(result.id(), Source::Op(at));
        self.depends.push(depends);
        Ok(result)
    }

    /// Compares the whole pass with the recording.
    ///
    /// # Errors
    /// [`Error::Unstable`] if its operators differ, and [`Error::NotCapturable`] if the module failed.
    pub fn agrees(&self, outputs: candle::Result<Vec<Tensor>>) -> crate::Result<()> {
        let at = self.depends.len();
        let name = |at: usize| self.program.ops.get(at).map_or("nothing", |op| op.name);
        if let Some(other) = self.other {
            return Err(Error::Unstable { at, first: name(at).into(), second: other.into() });
        }
        let outputs = outputs.map_err(|error| Error::NotCapturable {
            reason: format!(
                "host code of the module reads values of its inputs, or candle's own operators do, so that a replay could \
                 miss what follows from them. Compute with `opara_candle::ops`; or promise by \
                 `Builder::assume_pure(true)` that what is read has no effect. The read failed with: {error}"
            ),
        })?;
        let expected = &self.program.outputs;
        let same = outputs.len() == expected.len()
            && outputs.iter().zip(expected).all(|(output, expected)| self.source(output).is_same(expected));
        match at == self.program.ops.len() && same {
            true => Ok(()),
            false => Err(Error::Unstable { at, first: name(at).into(), second: "nothing".into() }),
        }
    }

    /// Those of this pass and the ones before.
    pub fn into_constants(self) -> HashMap<usize, Tensor> {
        self.constants
    }

    fn source(&self, t: &Tensor) -> Source {
        self.sources.get(&t.id()).cloned().unwrap_or_else(|| Source::Constant(t.clone()))
    }
}
