//! Texts by executors, by eager execution, and by transformers.

use std::sync::Arc;

use opara_candle::ops::Sampling;
use opara_candle::{Mode, OparaExecutor};
use opara_models::decoder::{DecoderError, Generator};

use super::*;

#[test]
fn greedy_texts_are_those_of_transformers() -> Result<()> {
    // If a text outgrows the context of LongRoPE's short factors, transformers encodes it again with the long ones.
    for name in MODELS.into_iter().filter(|name| *name != "phi3-long") {
        let reference = Reference::of(name);
        let prompts = reference.ids().narrow(1, 0, 10)?.to_vec2::<u32>()?;
        let expected = reference.tensors["generated"].to_dtype(DType::U32)?.to_vec2::<u32>()?;
        let model = Arc::new(reference.model());
        let mut eager = Generator::eager(model, &[Sampling::default(); 2]).expect("a generator");
        let got = eager.generate(&prompts, expected[0].len(), &[], |_| ()).expect("texts");
        assert_eq!(got.tokens, expected, "{name}");
    }
    Ok(())
}

/// Three texts of a small model, by executors and by eager execution.
fn both(sampling: &[Sampling]) -> [Generator; 2] {
    let model = Arc::new(load(&Config::tiny(), 200));
    let fast = Generator::new(model.clone(), sampling, &OparaExecutor::builder()).expect("executors");
    [fast, Generator::eager(model, sampling).expect("a generator")]
}

#[test]
fn executors_write_what_eager_execution_writes_at_every_length() {
    let drawn = Sampling { temperature: 0.8, top_k: 20, seed: 4, ..Sampling::default() };
    let [mut fast, mut eager] = both(&[Sampling::default(), drawn, Sampling { seed: 5, ..drawn }]);
    let (read, step) = fast.executors().expect("executors");
    assert!([read, step].iter().all(|executor| executor.report().mode() != Mode::Eager), "{}", step.report());
    for lengths in [[1usize, 5, 3], [130, 20, 128], [2, 1, 150]] {
        let prompts: Vec<Vec<u32>> =
            lengths.iter().map(|&n| (0..n).map(|i| (i * 41 + n) as u32 % 96).collect()).collect();
        let expected = eager.generate(&prompts, 12, &[], |_| ()).expect("texts");
        let mut seen: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let got = fast.generate(&prompts, 12, &[], |tokens| {
            seen.iter_mut().zip(tokens).for_each(|(seen, token)| seen.extend(token));
        });
        assert_eq!(got.expect("texts").tokens, expected.tokens, "behind {lengths:?}");
        assert_eq!(seen, expected.tokens, "as they come");
    }
}

#[test]
fn a_text_does_not_depend_on_those_beside_it() {
    let drawn = Sampling { temperature: 0.8, seed: 9, ..Sampling::default() };
    let prompt = vec![7, 8, 9];
    let beside = vec![1; 50];
    let [_, mut several] = both(&[Sampling::default(), drawn]);
    let [_, mut alone] = both(&[drawn]);
    let expected = alone.generate(std::slice::from_ref(&prompt), 20, &[], |_| ()).expect("a text").tokens;
    let got = several.generate(&[beside, prompt], 20, &[], |_| ()).expect("texts").tokens;
    assert_eq!(got[1], expected[0]);
}

#[test]
fn a_text_ends_where_an_end_token_comes() {
    let [_, mut eager] = both(&[Sampling::default(); 2]);
    let prompts = [vec![3, 4], vec![50, 60, 70]];
    let whole = eager.generate(&prompts, 30, &[], |_| ()).expect("texts").tokens;
    let end = whole[0][7];
    let cut = eager.generate(&prompts, 30, &[end], |_| ()).expect("texts").tokens;
    for (cut, whole) in cut.iter().zip(&whole) {
        let expected = whole.iter().position(|&token| token == end).unwrap_or(whole.len());
        assert_eq!(cut[..], whole[..expected]);
    }
    assert!(cut[0].len() < 8);
}

#[test]
fn bad_prompts_are_errors_that_say_why() {
    let [mut fast, _] = both(&[Sampling::default()]);
    let mut fails = |prompts: &[Vec<u32>], most| fast.generate(prompts, most, &[], |_| ()).expect_err("an error");
    let long = fails(&[vec![1; 190]], 11);
    assert!(matches!(long, DecoderError::TooLong { prompt: 190, answer: 11, context: 200, .. }), "{long}");
    assert!(long.to_string().contains("190 tokens") && long.to_string().contains("at most 256"), "{long}");
    assert!(matches!(fails(&[vec![]], 1), DecoderError::EmptyPrompt { index: 0 }));
    assert!(matches!(fails(&[vec![96]], 1), DecoderError::UnknownToken { token: 96, vocab: 96 }));
    assert!(matches!(fails(&[vec![1], vec![2]], 1), DecoderError::Batch { found: 2, batch: 1 }));
    let cache = Config::tiny().fits(1 << 30, 256, DType::F32, CPU).expect_err("no room");
    assert!(matches!(cache, DecoderError::NoRoom { .. }), "{cache}");
    let context = Config::tiny().fits(1, 257, DType::F32, CPU).expect_err("too long");
    assert!(matches!(context, DecoderError::ContextTooLong { context: 257, most: 256 }), "{context}");
}
