//! candle's quantised modules, on a GPU: decoders of candle-transformers from GGUF files that are written here, and products by themselves.

use std::io::Cursor;
use std::sync::Arc;

use anyhow::ensure;
use candle::quantized::gguf_file::{self, Content, Value};
use candle::quantized::{GgmlDType, QMatMul, QTensor};
use candle::{DType, Device, Module, Tensor, D};
use candle_transformers::models::{quantized_gemma3, quantized_glm4, quantized_llama, quantized_phi3, quantized_qwen3};
use opara_candle::{Mode, Numerics, OnUncapturable, OparaExecutor};
use opara_examples::relative_error;

use crate::common::{gpu, same_bits, waves, CPU};

const VOCABULARY: usize = 320;
const HIDDEN: usize = 256;
const INNER: usize = 512;
const HEAD: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const LAYERS: usize = 2;

/// A GGUF file of a small decoder, whose weights are of one type. The logits are those of the table's rows, each in the place of another
/// one: the next token follows from the last one by a wide margin, and all else from the layers.
fn file(architecture: &str, dtype: GgmlDType) -> candle::Result<Vec<u8>> {
    let table = Tensor::randn(0f32, 1., (VOCABULARY, HIDDEN), CPU)?;
    let order = Tensor::from_iter((0..VOCABULARY).map(|row| (row * 7 % VOCABULARY) as u32), CPU)?;
    let head = (table.index_select(&order, 0)? * 0.1)?;
    let mut tensors = vec![
        ("token_embd.weight".to_string(), QTensor::quantize(&table, dtype)?),
        ("output.weight".into(), QTensor::quantize(&head, dtype)?),
    ];
    let vector = |len: usize, around: f64| -> candle::Result<QTensor> {
        QTensor::quantize(&(Tensor::randn(0f32, 0.1, len, CPU)? + around)?, GgmlDType::F32)
    };
    tensors.push(("output_norm.weight".into(), vector(HIDDEN, 1.)?));
    let (all, keys) = (HEADS * HEAD, KV_HEADS * HEAD);
    // Some have gate and `up` in one weight.
    let of_up = if matches!(architecture, "phi3" | "glm4") { 2 * INNER } else { INNER };
    for at in 0..LAYERS {
        for (name, rows, columns) in [
            ("attn_q", all, HIDDEN),
            ("attn_k", keys, HIDDEN),
            ("attn_v", keys, HIDDEN),
            ("attn_qkv", all + 2 * keys, HIDDEN),
            ("attn_output", HIDDEN, all),
            ("ffn_gate", INNER, HIDDEN),
            ("ffn_up", of_up, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ] {
            let weight = (Tensor::randn(0f32, 1., (rows, columns), CPU)? * (columns as f64).powf(-0.5))?;
            tensors.push((format!("blk.{at}.{name}.weight"), QTensor::quantize(&weight, dtype)?));
        }
        for (name, len) in [("attn_q", all), ("attn_k", keys), ("attn_v", keys)] {
            tensors.push((format!("blk.{at}.{name}.bias"), vector(len, 0.)?));
        }
        for (name, len) in [
            ("attn_norm", HIDDEN),
            ("ffn_norm", HIDDEN),
            ("attn_q_norm", HEAD),
            ("attn_k_norm", HEAD),
            ("post_attention_norm", HIDDEN),
            ("post_ffw_norm", HIDDEN),
        ] {
            tensors.push((format!("blk.{at}.{name}.weight"), vector(len, 1.)?));
        }
    }
    let metadata = [
        ("embedding_length", Value::U32(HIDDEN as u32)),
        ("feed_forward_length", Value::U32(INNER as u32)),
        ("block_count", Value::U32(LAYERS as u32)),
        ("attention.head_count", Value::U32(HEADS as u32)),
        ("attention.head_count_kv", Value::U32(KV_HEADS as u32)),
        ("attention.key_length", Value::U32(HEAD as u32)),
        ("attention.value_length", Value::U32(HEAD as u32)),
        ("attention.sliding_window", Value::U32(128)),
        ("rope.dimension_count", Value::U32(HEAD as u32)),
        ("rope.freq_base", Value::F32(1e4)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("context_length", Value::U32(256)),
    ];
    let metadata: Vec<(String, Value)> =
        metadata.into_iter().map(|(name, value)| (format!("{architecture}.{name}"), value)).collect();
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &metadata, &tensors)?;
    Ok(file.into_inner())
}

type Forward<M> = fn(&mut M, &Tensor, usize) -> candle::Result<Tensor>;

/// Writes 64 tokens by the module and by its replayed steps: the same ones, of logits that are near.
fn write<M: Clone + Send + Sync + 'static>(model: &M, forward: Forward<M>, device: &Device) -> anyhow::Result<()> {
    const PROMPT: usize = 9;
    const TOKENS: usize = 64;
    let prompt = Tensor::from_iter((0..PROMPT).map(|at| (at * 31 % VOCABULARY) as u32), device)?.unsqueeze(0)?;
    let next = |logits: &Tensor| -> candle::Result<u32> { logits.flatten_all()?.argmax(D::Minus1)?.to_scalar() };
    let token = |id: u32| Tensor::new(&[[id]], device);
    let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
    let mut fast = strict.build_decoder(model.clone(), forward, &prompt, PROMPT + TOKENS + 4)?;
    let mut own = model.clone();
    let (mut expected, mut got) = (forward(&mut own, &prompt, 0)?, fast.forward(&prompt, 0)?);
    for at in PROMPT..PROMPT + TOKENS {
        let (id, replayed) = (next(&expected)?, next(&got)?);
        let apart = relative_error(&got, &expected)?;
        ensure!(id == replayed && apart < 0.06, "token {replayed} for {id}, logits {apart} apart behind {at} tokens");
        (expected, got) = (forward(&mut own, &token(id)?, at)?, fast.forward(&token(replayed)?, at)?);
    }
    ensure!(fast.refused().is_none(), "{:?}", fast.refused());
    Ok(())
}

/// A module from a file of one type.
macro_rules! written {
    ($module:ident, $architecture:literal, $dtype:expr, $device:expr, $load:expr) => {{
        let file = file($architecture, $dtype)?;
        let mut reader = Cursor::new(file);
        let content = Content::read(&mut reader)?;
        let load: fn(Content, &mut Cursor<Vec<u8>>, &Device) -> candle::Result<$module::ModelWeights> = $load;
        let written = load(content, &mut reader, $device)
            .map_err(anyhow::Error::from)
            .and_then(|model| write(&model, $module::ModelWeights::forward, $device));
        written.err().map(|error| format!("{}, {:?}: {error:#}", $architecture, $dtype))
    }};
}

/// All types by one decoder, and all decoders with one type.
#[test]
fn quantised_decoders_are_replayed_and_write_what_they_write_eagerly() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut failed = Vec::new();
    for dtype in [
        GgmlDType::Q4K,
        GgmlDType::Q6K,
        GgmlDType::Q8_0,
        GgmlDType::Q4_0,
        GgmlDType::Q5K,
        GgmlDType::Q4_1,
        GgmlDType::Q5_0,
        GgmlDType::Q5_1,
        GgmlDType::Q3K,
        GgmlDType::Q2K,
    ] {
        failed.push(written!(quantized_llama, "llama", dtype, &device, |of, reader, device| {
            quantized_llama::ModelWeights::from_gguf(of, reader, device)
        }));
    }
    let dtype = GgmlDType::Q4K;
    failed.push(written!(quantized_qwen3, "qwen3", dtype, &device, |of, reader, device| {
        quantized_qwen3::ModelWeights::from_gguf(of, reader, device)
    }));
    failed.push(written!(quantized_phi3, "phi3", dtype, &device, |of, reader, device| {
        quantized_phi3::ModelWeights::from_gguf(false, of, reader, device)
    }));
    failed.push(written!(quantized_gemma3, "gemma3", dtype, &device, |of, reader, device| {
        quantized_gemma3::ModelWeights::from_gguf(of, reader, device)
    }));
    failed.push(written!(quantized_glm4, "glm4", dtype, &device, |of, reader, device| {
        quantized_glm4::ModelWeights::from_gguf(of, reader, device, DType::F32)
    }));
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// candle rounds activations to a scratch of its own, which is as large as the largest so far, and frees the smaller one: a replay that was
/// built with that is built anew, and leaves alone what has its memory by then.
#[test]
fn a_scratch_that_grows_is_not_used_after_it_is_freed() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let product = |rows: usize, columns: usize| -> candle::Result<QMatMul> {
        let weight = QTensor::quantize(&waves(1, (rows, columns))?.to_device(&device)?, GgmlDType::Q8_0)?;
        QMatMul::from_arc(Arc::new(weight))
    };
    for rows in [1, 20] {
        let (small, large) = (product(INNER, HIDDEN)?, product(32, 1 << 16)?);
        let x = waves(2, (rows, HIDDEN))?.to_device(&device)?;
        let expected = small.forward(&x)?;
        let of = small.clone();
        let exact = OparaExecutor::builder().numerics(Numerics::Exact).build(move |x: &Tensor| of.forward(x), &x)?;
        assert_ne!(exact.report().mode(), Mode::Eager, "{}", exact.report());
        assert!(same_bits(&exact.forward(&x)?, &expected)?);
        large.forward(&Tensor::ones((rows, 1 << 16), DType::F32, &device)?)?;
        // Of many sizes, one of which is the scratch's.
        let others = (0..64).map(|at| Tensor::ones((at + 1) * 128, DType::F32, &device));
        let others = others.collect::<candle::Result<Vec<_>>>()?;
        for _ in 0..2 {
            assert!(same_bits(&exact.forward(&x)?, &expected)?, "{rows} rows");
        }
        for other in others {
            let changed = other.ne(&other.ones_like()?)?.to_dtype(DType::F32)?;
            assert_eq!(changed.sum_all()?.to_scalar::<f32>()?, 0.);
        }
    }
    Ok(())
}

/// Few rows and many, with the bits that candle gives; and no less accurate with other operators.
#[test]
fn products_have_candles_bits_or_its_accuracy() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for dtype in [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q6K, GgmlDType::Q3K] {
        let shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)];
        let weight = |(at, (rows, columns)): (usize, (usize, usize))| -> candle::Result<Arc<QTensor>> {
            let weight = (waves(at + 1, (rows, columns))? * (columns as f64).powf(-0.5))?;
            Ok(Arc::new(QTensor::quantize(&weight.to_device(&device)?, dtype)?))
        };
        let weights = shapes.into_iter().enumerate().map(weight).collect::<candle::Result<Vec<_>>>()?;
        let elements = weights.iter().map(|weight| weight.dequantize(&device)?.to_dtype(DType::F64));
        let elements = elements.collect::<candle::Result<Vec<_>>>()?;
        let products = weights.into_iter().map(QMatMul::from_arc).collect::<candle::Result<Vec<_>>>()?;
        let ones = Tensor::ones(HIDDEN, DType::F32, &device)?;
        let unit = move |x: &Tensor| -> candle::Result<Tensor> {
            let normed = candle_nn::ops::rms_norm(x, &ones, 1e-5)?;
            let gated = (products[0].forward(&normed)?.silu()? * products[1].forward(&normed)?)?;
            x + products[2].forward(&gated)?
        };
        for rows in [1, 5, 8, 20, 130] {
            let of = format!("{dtype:?}, {rows} rows");
            let x = waves(9, (rows, HIDDEN))?.to_device(&device)?;
            let expected = unit(&x)?;
            let exact = OparaExecutor::builder().numerics(Numerics::Exact).build(unit.clone(), &x)?;
            assert_ne!(exact.report().mode(), Mode::Eager, "{of}: {}", exact.report());
            for input in [&x, &(waves(4, (rows, HIDDEN))? * 3.)?.to_device(&device)?] {
                assert!(same_bits(&exact.forward(input)?, &unit(input)?)?, "{of}");
            }
            let accurate = OparaExecutor::builder().accurate().build(unit.clone(), &x)?;
            assert_ne!(accurate.report().mode(), Mode::Eager, "{of}: {}", accurate.report());
            let wide = x.to_dtype(DType::F64)?;
            let scale = (wide.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?;
            let normed = wide.broadcast_div(&scale)?;
            let silu = |x: Tensor| -> candle::Result<Tensor> { &x / (x.neg()?.exp()? + 1.)? };
            let gate = silu(normed.matmul(&elements[0].t()?)?)?;
            let reference = (gate * normed.matmul(&elements[1].t()?)?)?.matmul(&elements[2].t()?)?;
            let reference = (wide + reference)?.to_dtype(DType::F32)?;
            let [own, other] =
                [relative_error(&expected, &reference)?, relative_error(&accurate.forward(&x)?, &reference)?];
            // The largest errors of few numbers are luck.
            assert!(other <= 3. * own + 1e-6, "{of}: candle is {own} from f64, and the replay {other}");
        }
    }
    Ok(())
}
