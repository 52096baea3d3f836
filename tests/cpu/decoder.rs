//! Decoders that cannot be cloned: a function makes a model for each text. On the CPU they run eagerly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use candle::{DType, Result, Tensor};
use candle_transformers::models::{bigcode, stable_lm};
use opara_candle::{DecoderError, DecoderExecutor, Error, OparaExecutor};

use super::common::{assert_same, CPU};

fn tokens(n: u32) -> Result<Tensor> {
    Tensor::from_iter((0..n).map(|i| i * 7 % 50), CPU)?.unsqueeze(0)
}

/// Compares two texts with models of their own.
fn assert_alike<M: Send + 'static>(
    fast: &mut DecoderExecutor<M>,
    make: impl Fn() -> Result<M>,
    forward: impl Fn(&mut M, &Tensor, usize) -> Result<Tensor>,
) -> anyhow::Result<()> {
    for prompt in [5, 3] {
        let (mut own, prompt) = (make()?, tokens(prompt)?);
        assert_same(&[fast.forward(&prompt, 0)?], &[forward(&mut own, &prompt, 0)?], "a prompt");
        for at in prompt.dim(1)?..12 {
            let token = tokens(1)?;
            assert_same(&[fast.forward(&token, at)?], &[forward(&mut own, &token, at)?], format_args!("token {at}"));
        }
        let wrong = fast.forward(&tokens(1)?, 20);
        assert!(matches!(wrong, Err(Error::Decoder(DecoderError::Position { expected: 12, got: 20 }))));
    }
    Ok(())
}

#[test]
fn models_of_candle_transformers_that_are_not_clone() -> anyhow::Result<()> {
    let weights = || opara_weights::seeded(3, DType::F32, CPU);
    let config: stable_lm::Config = serde_json::from_value(serde_json::json!({
        "vocab_size": 50, "intermediate_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "hidden_act": "silu", "partial_rotary_factor": 0.25, "rope_theta": 10000.0,
        "max_position_embeddings": 64, "layer_norm_eps": 1e-5, "use_cache": true
    }))?;
    let make = move || stable_lm::Model::new(&config, weights());
    let builder = OparaExecutor::builder();
    let mut fast = builder.build_decoder_from(make.clone(), stable_lm::Model::forward, &tokens(4)?, 32)?;
    assert!(fast.refused().is_some());
    assert_alike(&mut fast, make, stable_lm::Model::forward)?;

    let make = move || {
        let config = bigcode::Config {
            vocab_size: 50,
            max_position_embeddings: 64,
            num_hidden_layers: 2,
            hidden_size: 16,
            layer_norm_epsilon: 1e-5,
            n_inner: Some(24),
            num_attention_heads: 2,
            multi_query: true,
            use_cache: true,
        };
        bigcode::GPTBigCode::load(weights(), config)
    };
    let mut fast = OparaExecutor::builder().build_decoder_from(make, bigcode::GPTBigCode::forward, &tokens(4)?, 32)?;
    assert_alike(&mut fast, make, bigcode::GPTBigCode::forward)
}

/// Stands for a model that is not `Clone`: the sum of its tokens.
struct Sum(u32);

fn add(sum: &mut Sum, tokens: &Tensor, _: usize) -> Result<Tensor> {
    sum.0 += tokens.sum_all()?.to_scalar::<u32>()?;
    Tensor::new(&[sum.0], tokens.device())
}

#[test]
fn a_model_that_cannot_be_made_is_an_error_and_its_text_is_begun_anew() -> anyhow::Result<()> {
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    let make = move || match count.fetch_add(1, Ordering::Relaxed) {
        1 => candle::bail!("no memory today"),
        2 => panic!("no model today"),
        _ => Ok(Sum(0)),
    };
    let prompt = Tensor::new(&[[1u32, 2, 3]], CPU)?;
    let mut fast = OparaExecutor::builder().build_decoder_from(make, add, &prompt, 64)?;
    assert_eq!(made.load(Ordering::Relaxed), 0, "on the CPU building makes no model");
    assert_eq!(fast.forward(&prompt, 0)?.to_vec1::<u32>()?, [6]);
    assert!(fast.forward(&prompt, 0).is_err_and(|error| error.to_string().contains("no memory today")));
    let token = Tensor::new(&[[4u32]], CPU)?;
    assert!(matches!(fast.forward(&token, 3), Err(Error::Decoder(DecoderError::Broken))), "no text is left");
    assert!(matches!(fast.forward(&prompt, 0), Err(Error::Panicked { .. })));
    assert_eq!(fast.forward(&prompt, 0)?.to_vec1::<u32>()?, [6]);
    assert_eq!(fast.forward(&token, 3)?.to_vec1::<u32>()?, [10]);
    Ok(())
}

#[test]
fn a_decoder_is_told_which_tokens_count() -> anyhow::Result<()> {
    // The sum of the tokens that count, and how many there are.
    let forward = |all: &mut Option<Tensor>, tokens: &Tensor, at: usize, mask: &Tensor| {
        let earlier = all.take().map_or_else(|| tokens.narrow(1, 0, 0), Ok)?;
        let all = all.insert(Tensor::cat(&[&earlier, tokens], 1)?);
        assert_eq!((mask.dims(), mask.dim(1)?), (all.dims(), at + tokens.dim(1)?));
        Tensor::stack(&[(&*all * mask)?.sum(1)?, mask.sum(1)?], 1)
    };
    let prompts = Tensor::new(&[[9u32, 2, 3], [1, 2, 3]], CPU)?;
    let mask = Tensor::new(&[[0u32, 1, 1], [1, 1, 1]], CPU)?;
    let builder = OparaExecutor::builder;
    let mut of_clones = builder().build_padded_decoder(None, forward, &prompts, &mask, 16)?;
    let mut of_made = builder().build_padded_decoder_from(|| Ok(None), forward, &prompts, &mask, 16)?;
    let token = Tensor::new(&[[4u32], [5]], CPU)?;
    let pause = Tensor::new(&[[1u8], [0]], CPU)?;
    for _ in 0..4 {
        std::mem::swap(&mut of_clones, &mut of_made);
        let decoder = &mut of_clones;
        assert_eq!(decoder.forward_padded(&prompts, &mask, 0)?.to_vec2::<u32>()?, [[5, 2], [6, 3]]);
        assert_eq!(decoder.forward(&token, 3)?.to_vec2::<u32>()?, [[9, 3], [11, 4]]);
        assert_eq!(decoder.forward_padded(&token, &pause, 4)?.to_vec2::<u32>()?, [[13, 4], [11, 4]]);
        assert_eq!(decoder.forward(&token, 5)?.to_vec2::<u32>()?, [[17, 5], [16, 5]]);
    }
    let wrong = of_made.forward_padded(&token, &mask, 6);
    assert!(matches!(wrong, Err(Error::Decoder(DecoderError::Mask { .. }))), "{wrong:?}");
    let sum = |_: &mut (), tokens: &Tensor, _: usize| tokens.sum(1);
    let wrong = OparaExecutor::builder().build_decoder((), sum, &prompts, 16)?.forward_padded(&prompts, &mask, 0);
    assert!(matches!(wrong, Err(Error::Decoder(DecoderError::NoMask))), "{wrong:?}");
    Ok(())
}
