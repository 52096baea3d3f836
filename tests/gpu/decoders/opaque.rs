//! Decoders with kernels of a user's own, of which nobody knows what they compute: steps are replayed where a launch is the same behind
//! every text.
#![cfg(feature = "cuda")]

use candle::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle::cuda_backend::{CudaStorage, WrapErr};
use candle::{CpuStorage, CustomOp2, DType, InplaceOp1, Layout, Result, Shape, Tensor};
use candle_transformers::models::qwen2;
use opara_candle::OparaExecutor;

use super::behaviour::{assert_near, qwen2, VOCABULARY};
use super::padded::strict;
use super::prompt;
use crate::common::gpu;

/// y[i] = x[i] * w[i % m] + c for i < n, each of four bytes.
const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry weighted(.param .u64 x, .param .u64 w, .param .u64 y, .param .u32 n, .param .u32 m, .param .f32 c)
{
    .reg .pred %out;
    .reg .f32 %value, %factor, %c;
    .reg .b32 %i, %n, %m, %at, %block, %threads, %thread;
    .reg .b64 %x, %w, %y, %offset;
    ld.param.u64 %x, [x];
    ld.param.u64 %w, [w];
    ld.param.u64 %y, [y];
    ld.param.u32 %n, [n];
    ld.param.u32 %m, [m];
    ld.param.f32 %c, [c];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.s32 %i, %block, %threads, %thread;
    setp.ge.u32 %out, %i, %n;
    @%out bra DONE;
    cvta.to.global.u64 %x, %x;
    cvta.to.global.u64 %w, %w;
    cvta.to.global.u64 %y, %y;
    mul.wide.u32 %offset, %i, 4;
    add.s64 %x, %x, %offset;
    add.s64 %y, %y, %offset;
    rem.u32 %at, %i, %m;
    mul.wide.u32 %offset, %at, 4;
    add.s64 %w, %w, %offset;
    ld.global.f32 %value, [%x];
    ld.global.f32 %factor, [%w];
    fma.rn.f32 %value, %value, %factor, %c;
    st.global.f32 [%y], %value;
DONE:
    ret;
}
";

/// Elements times weights, which repeat, and a number that the host gives.
struct Weighted {
    summand: f32,
    /// The weights that repeat, if not all.
    weights: Option<usize>,
}

fn weighted(summand: f32) -> Weighted {
    Weighted { summand, weights: None }
}

impl CustomOp2 for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("a kernel of the GPU")
    }

    fn cuda_fwd(&self, x: &CudaStorage, of_x: &Layout, w: &CudaStorage, of_w: &Layout) -> Result<(CudaStorage, Shape)> {
        let (device, count) = (x.device.clone(), of_x.shape().elem_count());
        let kernel = device.get_or_load_custom_func("weighted", "weighted", PTX)?;
        let x = x.as_cuda_slice::<f32>()?.slice(of_x.start_offset()..);
        let w = w.as_cuda_slice::<f32>()?.slice(of_w.start_offset()..);
        // SAFETY: the kernel writes all elements.
        let y = unsafe { device.alloc::<f32>(count)? };
        let (n, m) = (count as u32, self.weights.unwrap_or(of_w.shape().elem_count()) as u32);
        let mut launch = kernel.builder();
        launch.arg(&x).arg(&w).arg(&y).arg(&n).arg(&m).arg(&self.summand);
        // SAFETY: the kernel takes three pointers and three numbers, and goes no further than these say.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.w()?;
        Ok((CudaStorage::wrap_cuda_slice(y, device), of_x.shape().clone()))
    }
}

/// The same in place, times the weights.
struct InPlace;

impl InplaceOp1 for InPlace {
    fn name(&self) -> &'static str {
        "in place"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("a kernel of the GPU")
    }

    fn cuda_fwd(&self, x: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = x.device.clone();
        let kernel = device.get_or_load_custom_func("weighted", "weighted", PTX)?;
        let x = x.as_cuda_slice::<f32>()?.slice(layout.start_offset()..);
        let n = layout.shape().elem_count() as u32;
        let mut launch = kernel.builder();
        launch.arg(&x).arg(&x).arg(&x).arg(&n).arg(&n).arg(&0.5f32);
        // SAFETY: each thread reads and writes its own element.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }.w()?;
        Ok(())
    }
}

/// A model whose logits go through kernels that nobody knows, with their weights.
#[derive(Clone)]
struct Scaled {
    model: qwen2::ModelForCausalLM,
    weights: Tensor,
}

#[test]
fn steps_with_kernels_that_nobody_knows_are_replayed() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weights = Tensor::from_iter((0..VOCABULARY).map(|i| 0.5 + i as f32 / VOCABULARY as f32), &device)?;
    let (model, example) = (Scaled { model: qwen2(DType::F32, &device)?, weights }, prompt(6, &device)?);
    let forward = |of: &mut Scaled, tokens: &Tensor, at: usize| {
        let logits = of.model.forward(tokens, at)?.contiguous()?;
        // Between operators that are known, and as the last one.
        let logits = logits.apply_op2_no_bwd(&of.weights, &weighted(0.25))?.tanh()?;
        (logits * 3.)?.apply_op2_no_bwd(&of.weights, &weighted(-1.))
    };
    let mut fast = strict().build_decoder(model.clone(), forward, &example, 64)?;
    // They are behind the last attention, where pieces have the last token alone.
    assert_eq!(fast.several_refused(), None);
    assert_near(&mut fast, &model, forward, 1e-4, &device)
}

/// The numbers of the first launch follow from the position, and those of the last one do not.
#[test]
fn kernels_that_nobody_knows_have_numbers_of_the_position() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weights = Tensor::from_iter((0..VOCABULARY).map(|i| 0.5 + i as f32 / VOCABULARY as f32), &device)?;
    let (model, example) = (Scaled { model: qwen2(DType::F32, &device)?, weights }, prompt(6, &device)?);
    let forward = |of: &mut Scaled, tokens: &Tensor, at: usize| {
        let logits = of.model.forward(tokens, at)?.contiguous()?;
        let numbers = Weighted { summand: at as f32 * -0.25, weights: Some(at + 1) };
        let logits = logits.apply_op2_no_bwd(&of.weights, &numbers)?;
        // Nothing but its numbers depends on the text.
        let table = of.weights.apply_op2_no_bwd(&of.weights, &weighted(at as f32))?;
        logits.broadcast_add(&table)?.apply_op2_no_bwd(&of.weights, &weighted(-1.))
    };
    let mut fast = strict().build_decoder(model.clone(), forward, &example, 64)?;
    assert_near(&mut fast, &model, forward, 1e-4, &device)
}

/// Functions that are known have numbers of the position, too.
#[test]
fn numbers_of_the_position_are_replayed() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [DType::F32, DType::BF16] {
        let (model, example) = (qwen2(dtype, &device)?, prompt(6, &device)?);
        let forward = |of: &mut qwen2::ModelForCausalLM, tokens: &Tensor, at: usize| {
            let logits = of.forward(tokens, at)?.affine(1. + at as f64 * 0.1, -(at as f64))?;
            let places = Tensor::full(at as f32 * 2., logits.shape(), logits.device())?.to_dtype(logits.dtype())?;
            logits + places
        };
        let mut fast = strict().build_decoder(model.clone(), forward, &example, 64)?;
        let tolerance = if dtype == DType::F32 { 1e-4 } else { 8e-2 };
        assert_near(&mut fast, &model, forward, tolerance, &device)?;
    }
    Ok(())
}

#[test]
fn kernels_that_nobody_knows_are_refused_by_name_where_a_step_cannot_have_them() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let weights = Tensor::ones(VOCABULARY, DType::F32, &device)?;
    let (model, example) = (Scaled { model: qwen2(DType::F32, &device)?, weights }, prompt(6, &device)?);
    type Forward = fn(&mut Scaled, &Tensor, usize) -> Result<Tensor>;
    let cases: [(Forward, &[&str]); 2] = [
        // A number that grows by more with each token.
        (
            |of, tokens, at| {
                of.model.forward(tokens, at)?.contiguous()?.apply_op2_no_bwd(&of.weights, &weighted((at * at) as f32))
            },
            &["`weighted`", "argument 5", "a tensor on the device"],
        ),
        // What it writes was there before.
        (
            |of, tokens, at| {
                let logits = of.model.forward(tokens, at)?.affine(2., 1.)?;
                logits.inplace_op1(&InPlace)?;
                Ok(logits)
            },
            &["`weighted`", "let it write to a new one"],
        ),
    ];
    for (forward, said) in cases {
        let mut fast = OparaExecutor::builder().build_decoder(model.clone(), forward, &example, 64)?;
        let reason = fast.refused().expect("it is refused").to_string();
        println!("{reason}");
        assert!(said.iter().all(|said| reason.contains(said)), "{reason}");
        assert_near(&mut fast, &model, forward, 0., &device)?;
    }
    Ok(())
}
