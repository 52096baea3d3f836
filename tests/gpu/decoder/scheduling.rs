//! Texts that join a batch on a GPU and leave it.

use std::sync::{mpsc, Arc};

use anyhow::Result;
use candle::DType;
use fastrand::Rng;
use opara_candle::OparaExecutor;
use opara_models::decoder::{Config, Decoder, Rotary};
use opara_models::engine::{End, Engine, Listener, Options, Request, Sampling, TextError};

use super::generation::configs;
use super::spoiled;
use crate::common::gpu;

struct Sent(mpsc::Sender<u32>, usize);

impl Listener for Sent {
    fn token(&mut self, token: u32) -> bool {
        self.1 -= 1;
        self.0.send(token).is_ok() && self.1 > 0
    }

    fn end(&mut self, end: End) {
        assert!(!matches!(end, End::Failed(_)), "{end:?}");
    }
}

/// Sends tokens with the number of their text.
pub(super) struct Told(pub mpsc::Sender<(usize, u32)>, pub usize);

impl Listener for Told {
    fn token(&mut self, token: u32) -> bool {
        self.0.send((self.1, token)).is_ok()
    }

    fn end(&mut self, end: End) {
        assert!(!matches!(end, End::Failed(_)), "{end:?}");
    }
}

fn request(rng: &mut Rng) -> Request {
    // Some begin alike, for more than a part.
    let same = (0..rng.usize(0..3) * 130 + 1).map(|at| at as u32 % 96);
    let prompt = same.chain((0..rng.usize(0..40)).map(|_| rng.u32(0..96)).collect::<Vec<_>>()).collect();
    let drawn = Sampling { temperature: 0.9, top_k: 40, seed: rng.u64(0..3), ..Sampling::default() };
    let sampling = [Sampling::default(), drawn, Sampling { repetition_penalty: 1.3, ..drawn }][rng.usize(0..3)];
    Request { prompt, most: rng.usize(1..60), ends: vec![rng.u32(0..96)], sampling, ..Request::default() }
}

/// By executors or eagerly.
fn engine(model: &Arc<Decoder>, slots: usize, is_replayed: bool) -> Result<Engine<Decoder>> {
    let builder = is_replayed.then(OparaExecutor::builder);
    Ok(Engine::new(model.clone(), Options { slots, builder, ..Options::default() })?)
}

#[test]
fn each_sequence_writes_what_it_writes_alone() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // The heads of the last but one are none that kernels take, nor are any sizes of the last one.
    let odd = Config { hidden: 100, intermediate: 36, ..with_heads(&configs()[0].1, 20) };
    let kinds = [configs().swap_remove(2), configs().swap_remove(3), configs().swap_remove(6), ("odd", odd)];
    for (name, config) in kinds {
        let config = Config { max_positions: 512, ..config };
        let weights = opara_weights::seeded(5, DType::F16, &device);
        let model = Arc::new(Decoder::load(weights, &config, 400)?);
        // Of as many slots: one slot has kernels of its own.
        let (mut alone, mut engine) = (engine(&model, 8, false)?, engine(&model, 8, true)?);
        engine.build()?;
        assert_eq!(engine.eager(), [""; 0], "{name}");
        let mut rng = Rng::with_seed(1);
        let (mut waiting, mut texts) = (40, Vec::new());
        while waiting > 0 || engine.live() > 0 {
            while waiting > 0 && engine.free() > 0 && rng.bool() {
                let wanted = if rng.u32(0..4) == 0 { rng.usize(1..30) } else { usize::MAX };
                let (request, (told, text)) = (request(&mut rng), mpsc::channel());
                engine.add(request.clone(), Box::new(Sent(told, wanted)))?;
                texts.push((request, wanted, text));
                waiting -= 1;
            }
            engine.step(|_| rng.u32(0..4) == 0)?;
        }
        for (request, wanted, text) in texts {
            let (told, expected) = mpsc::channel();
            alone.add(request.clone(), Box::new(Sent(told, wanted)))?;
            while alone.live() > 0 {
                alone.step(|_| false)?;
            }
            let (text, expected): (Vec<u32>, Vec<u32>) = (text.into_iter().collect(), expected.into_iter().collect());
            assert_eq!(text, expected, "{name}: {request:?}");
        }
    }
    Ok(())
}

/// The same model with heads of another size.
fn with_heads(config: &Config, head_dim: usize) -> Config {
    let rotaries = config.rotaries.iter().map(|rotary| Rotary { dim: head_dim, ..rotary.clone() });
    Config { head_dim, rotaries: rotaries.collect(), ..config.clone() }
}

/// The tokens of a request that has the engine for itself.
fn alone(engine: &mut Engine<Decoder>, request: &Request) -> Result<Vec<u32>> {
    Ok(engine.generate(std::slice::from_ref(request), |_, _| ())?.swap_remove(0))
}

/// A token has no number for its embedding, so what a text with it leaves in its slot is NaN.
#[test]
fn a_text_leaves_nothing_to_the_next_one_in_its_slot() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // Kinds with windows and without, with heads for each kernel and for none.
    let kinds = [(0, 64), (0, 48), (0, 20), (4, 256), (4, 64), (3, 128)];
    for ((kind, head_dim), dtype) in
        kinds.iter().flat_map(|&kind| [DType::F32, DType::F16, DType::BF16].map(|dtype| (kind, dtype)))
    {
        let (name, config) = configs().swap_remove(kind);
        let (config, of) = (with_heads(&config, head_dim), format!("{name}, heads of {head_dim}, {dtype:?}"));
        let whole = Arc::new(spoiled::model(&config, 400, &[], dtype, &device));
        let texts = [150, 1, 260].map(|n| {
            let prompt: Vec<u32> = (0..n).map(|i| i * 7 % 90).collect();
            Request { prompt, most: 20, ..Request::default() }
        });
        let mut fresh = engine(&whole, 2, false)?;
        let expected = texts.iter().map(|text| alone(&mut fresh, text)).collect::<Result<Vec<_>>>()?;
        // One row has kernels of its own.
        let text = Request { prompt: vec![7; 140], most: 20, ..Request::default() };
        let of_one = alone(&mut engine(&whole, 1, false)?, &text)?;
        let is_free = |token: &u32| *token >= 90 && !expected.concat().contains(token) && !of_one.contains(token);
        let token = (0..config.vocab as u32).find(is_free).expect("a token that no text reads or writes");
        let model = Arc::new(spoiled::model(&config, 400, &[token], dtype, &device));
        let strange = Request { prompt: vec![token; 200], most: 40, ..Request::default() };
        for (slots, texts, expected) in [(2, &texts[..], &expected[..]), (1, &[text][..], &[of_one][..])] {
            for is_replayed in [true, false] {
                let mut engine = engine(&model, slots, is_replayed)?;
                // Both slots are used in turns.
                for (text, expected) in texts.iter().zip(expected).flat_map(|text| [text; 2]) {
                    let failed =
                        engine.generate(std::slice::from_ref(&strange), |_, token| panic!("token {token} of NaN"));
                    assert!(matches!(failed, Err(TextError::NotFinite)), "{of}, {slots} slots: {failed:?}");
                    assert_eq!(alone(&mut engine, text)?, *expected, "{of}, {slots} slots");
                }
            }
        }
    }
    Ok(())
}

/// Parts of prompts are filled up with token 0, which no prompt has here.
#[test]
fn what_a_part_is_filled_up_with_is_not_seen() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for ((kind, head_dim), dtype) in [((0, 64), DType::F16), ((0, 64), DType::F32), ((4, 256), DType::BF16)] {
        let (name, config) = configs().swap_remove(kind);
        let config = with_heads(&config, head_dim);
        let model = |tokens: &[u32]| Arc::new(spoiled::model(&config, 400, tokens, dtype, &device));
        let (whole, strange) = (model(&[]), model(&[0]));
        for n in [1, 100, 130] {
            let prompt: Vec<u32> = (0..n).map(|i| 1 + i * 7 % 90).collect();
            let text = Request { prompt, most: 1, ..Request::default() };
            let of = |model: &Arc<Decoder>| alone(&mut engine(model, 2, false)?, &text);
            assert_eq!(of(&strange)?, of(&whole)?, "{name}, heads of {head_dim}, {dtype:?}, behind {n} tokens");
        }
    }
    Ok(())
}
