//! A user's own kernels, copies and memsets that write to tensors in place. Their accesses are known from intercepted
//! calls, never from their names. Tests skip without a GPU, and say so.
#![cfg(feature = "cuda")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use anyhow::ensure;
use candle::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle::cuda_backend::{CudaStorage, WrapErr};
use candle::{CpuStorage, DType, Device, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
use opara_candle::{BuiltIn, Mode, OparaExecutor};

use crate::common::{answers_like, assert_same, built_or_stateful, gpu, isolated, waves};

/// x[i] = 3 x[i] + 1 for i < n.
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry NAME(.param .u64 x, .param .u32 n)
{
    .reg .pred %out;
    .reg .f32 %value;
    .reg .b32 %i, %n, %block, %threads, %thread;
    .reg .b64 %x, %offset;
    ld.param.u64 %x, [x];
    ld.param.u32 %n, [n];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %i, %block, %threads, %thread;
    setp.ge.u32 %out, %i, %n;
    @%out bra DONE;
    cvta.to.global.u64 %x, %x;
    mul.wide.u32 %offset, %i, 4;
    add.s64 %x, %x, %offset;
    ld.global.f32 %value, [%x];
    fma.rn.f32 %value, %value, 0f40400000, 0f3F800000;
    st.global.f32 [%x], %value;
DONE:
    ret;
}
";

/// The kernel with a name of the user's choice.
struct ThriceAndOne(&'static str);

impl InplaceOp1 for ThriceAndOne {
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("a kernel of the GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = storage.device.clone();
        let kernel = device.get_or_load_custom_func(self.0, self.0, &PTX.replace("NAME", self.0))?;
        let (start, end) = layout.contiguous_offsets().ok_or_else(|| candle::Error::msg("not contiguous"))?;
        let mut elements = storage.as_cuda_slice_mut::<f32>()?.slice_mut(start..end);
        let count = (end - start) as u32;
        let mut launch = kernel.builder();
        launch.arg(&mut elements).arg(&count);
        // SAFETY: the kernel takes a pointer and a number, and writes no further than that number of floats.
        unsafe { launch.launch(LaunchConfig::for_num_elems(count)) }.w()?;
        Ok(())
    }
}

/// Fills with zeros by the driver's memset.
struct Clear;

impl InplaceOp1 for Clear {
    fn name(&self) -> &'static str {
        "clear"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("a fill on the GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let stream = storage.device.cuda_stream();
        stream.memset_zeros(storage.as_cuda_slice_mut::<f32>()?).w()?;
        Ok(())
    }
}

/// Copies by the driver's memcpy.
struct CopyFrom;

impl InplaceOp2 for CopyFrom {
    fn name(&self) -> &'static str {
        "copy from"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("a copy on the GPU")
    }

    fn cuda_fwd(&self, to: &mut CudaStorage, _: &Layout, from: &CudaStorage, _: &Layout) -> Result<()> {
        let device = to.device.clone();
        device.memcpy_dtod(from.as_cuda_slice::<f32>()?, to.as_cuda_slice_mut::<f32>()?)
    }
}

/// Elements of an input.
const COUNT: usize = 256;

fn input(i: usize, device: &Device) -> Result<Vec<Tensor>> {
    Ok(vec![waves(i, COUNT)?.to_device(device)?])
}

/// Runs a function that launches the kernel under names of library kernels and under a name of its own.
fn assert_correct_under_every_scheduler<F>(function: F) -> anyhow::Result<()>
where
    F: Fn(&'static str, &Tensor) -> Result<Tensor> + Copy + Send + Sync + 'static,
{
    let Some(device) = gpu() else { return Ok(()) };
    for name in ["my_gemm_epilogue", "cutlass_epilogue", "cudnn_epilogue", "epilogue"] {
        let function = move |t: &[Tensor]| Ok(vec![function(name, &t[0])?]);
        for scheduler in BuiltIn::FIXED {
            for fuse in [true, false] {
                let builder =
                    OparaExecutor::builder().scheduler(scheduler).benchmark_challengers(false).fuse(fuse).stress(4);
                let fast = builder.build_fn(function, &input(0, &device)?)?;
                let report = fast.report();
                let got = (report.mode(), report.is_verified(), &report.reason());
                ensure!(got == (Mode::Graph, true, &None), "{name}, {scheduler}, fuse {fuse}: {report}");
                answers_like(&fast, function, |i| input(i, &device));
            }
        }
    }
    Ok(())
}

#[test]
fn a_kernel_in_place_after_its_tensor_was_computed() -> anyhow::Result<()> {
    isolated(|| {
        assert_correct_under_every_scheduler(|name, x| {
            let y = x.affine(2., 0.5)?;
            y.inplace_op1(&ThriceAndOne(name))?;
            y.sqr()
        })
    })
}

#[test]
fn a_kernel_in_place_after_its_tensor_was_filled() -> anyhow::Result<()> {
    isolated(|| {
        assert_correct_under_every_scheduler(|name, x| {
            let ones = Tensor::ones(COUNT, DType::F32, x.device())?;
            ones.inplace_op1(&ThriceAndOne(name))?;
            let zeros = Tensor::zeros(COUNT, DType::F32, x.device())?;
            zeros.inplace_op1(&ThriceAndOne(name))?;
            x * (ones + zeros)?
        })
    })
}

#[test]
fn a_kernel_in_place_between_two_readers() -> anyhow::Result<()> {
    isolated(|| {
        assert_correct_under_every_scheduler(|name, x| {
            let y = x.tanh()?;
            let before = y.sqr()?;
            y.inplace_op1(&ThriceAndOne(name))?;
            let between = y.affine(0.5, 0.)?;
            y.inplace_op1(&ThriceAndOne(name))?;
            (before - between)? + y
        })
    })
}

/// A kernel that nobody knows, between attention and a norm with a product. What it overwrites in place is not there to be compared with,
/// so the launches before it stay candle's.
#[test]
fn a_kernel_in_front_of_a_part_that_is_rewritten() -> anyhow::Result<()> {
    isolated(|| {
        let Some(device) = gpu() else { return Ok(()) };
        let weight = (waves(9, (256, 64))? * 0.1)?.to_device(&device)?;
        let scale = waves(8, 64)?.to_device(&device)?;
        let input = |i: usize| {
            let operand = |at: usize| waves(3 * i + at, (8, 128, 64))?.to_device(&device);
            Ok(vec![operand(0)?, operand(1)?, operand(2)?])
        };
        let function = move |t: &[Tensor]| {
            let scores = (t[0].matmul(&t[1].t()?)? * 0.125)?;
            let y = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&t[2])?;
            y.inplace_op1(&ThriceAndOne("epilogue"))?;
            let y = y.broadcast_div(&(y.sqr()?.mean_keepdim(2)? + 1e-5)?.sqrt()?)?.broadcast_mul(&scale)?;
            Ok(vec![y.reshape((1024, 64))?.matmul(&weight.t()?)?.silu()?])
        };
        let exact = OparaExecutor::builder().benchmark_challengers(false).stress(2);
        answers_like(&exact.build_fn(function.clone(), &input(0)?)?, function.clone(), input);
        let accurate = OparaExecutor::builder().accurate().benchmark_challengers(false).cache_folder(None).stress(2);
        let fast = accurate.build_fn(function.clone(), &input(0)?)?;
        let report = fast.report();
        ensure!(report.mode() == Mode::Graph && report.is_verified(), "{report}");
        ensure!(report.rewrites().iter().any(|rewrite| rewrite.rule == "row-norm"), "{report}");
        for i in 1..4 {
            let (got, expected) = (fast.call(&input(i)?)?, function(&input(i)?)?);
            let apart = opara_examples::relative_error(&got[0], &expected[0])?;
            ensure!(apart < 1e-4, "input {i}: {apart}");
        }
        Ok(())
    })
}

/// Wraps a module that alternates between two buffers to write to. Either the executor behaves like the module from the
/// first call on, or building it reports that the module keeps state.
fn assert_alternating_writes_are_handled(write: fn(&Tensor, &Tensor) -> Result<()>) -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let twin = || -> Result<_> {
        let buffers = [Tensor::ones(COUNT, DType::F32, &device)?, Tensor::ones(COUNT, DType::F32, &device)?];
        let (calls, of) = (Arc::new(AtomicUsize::new(0)), buffers.clone());
        let module = move |t: &[Tensor]| {
            write(&of[calls.fetch_add(1, Ordering::Relaxed) % 2], &t[0])?;
            Ok(vec![t[0].relu()?])
        };
        Ok((module, buffers))
    };
    let ((module, buffers), (plain, expected)) = (twin()?, twin()?);
    let built = OparaExecutor::builder().build_fn(module, &input(0, &device)?);
    let Some(fast) = built_or_stateful(built)? else { return Ok(()) };
    for i in 0..4 {
        // Give the written buffer other values before and after.
        for buffer in buffers.iter().chain(&expected) {
            buffer.slice_set(&waves(20 + i, COUNT)?.to_device(&device)?, 0, 0)?;
        }
        let x = input(i, &device)?;
        assert_same(&fast.call(&x)?, &plain(&x)?, format_args!("call {i}"));
        assert_same(&buffers, &expected, format_args!("the buffers after call {i}: {}", fast.report()));
    }
    Ok(())
}

#[test]
fn alternating_fills_of_two_buffers() -> anyhow::Result<()> {
    isolated(|| assert_alternating_writes_are_handled(|buffer, _| buffer.inplace_op1(&Clear)))
}

#[test]
fn alternating_copies_to_two_buffers() -> anyhow::Result<()> {
    isolated(|| assert_alternating_writes_are_handled(|buffer, x| buffer.inplace_op2(&x.affine(2., 1.)?, &CopyFrom)))
}

#[test]
fn alternating_kernels_on_two_buffers() -> anyhow::Result<()> {
    isolated(|| assert_alternating_writes_are_handled(|buffer, _| buffer.inplace_op1(&ThriceAndOne("epilogue"))))
}
