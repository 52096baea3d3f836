//! Texts by executors, by eager execution, and by transformers.

use std::sync::Arc;

use opara_candle::{Mode, OparaExecutor};
use opara_models::decoder::DecoderError;
use opara_models::engine::{Engine, Options, Request, Sampling, TextError};

use super::*;

/// Requests for texts behind prompts, drawn in these ways.
fn requests(prompts: &[Vec<u32>], sampling: &[Sampling], most: usize) -> Vec<Request> {
    let texts = prompts.iter().zip(sampling);
    texts.map(|(prompt, &sampling)| Request { prompt: prompt.clone(), most, sampling, ..Request::default() }).collect()
}

#[test]
fn greedy_texts_are_those_of_transformers() -> Result<()> {
    // If a text outgrows the context of LongRoPE's short factors, transformers encodes it again with the long ones.
    for name in MODELS.into_iter().filter(|name| *name != "phi3-long") {
        let reference = Reference::of(name);
        let prompts = reference.ids().narrow(1, 0, 10)?.to_vec2::<u32>()?;
        let expected = reference.tensors["generated"].to_dtype(DType::U32)?.to_vec2::<u32>()?;
        let requests = requests(&prompts, &[Sampling::default(); 2], expected[0].len());
        let model = Arc::new(reference.model());
        for (slots, prompts) in [(1, 1), (2, 2)] {
            let mut eager = Engine::new(model.clone(), Options { slots, prompts, builder: None }).expect("an engine");
            assert_eq!(eager.generate(&requests, |_, _| ()).expect("texts"), expected, "{name}");
        }
    }
    Ok(())
}

/// So many texts of a small model, by executors and by eager execution.
fn both(texts: usize) -> [Engine<Decoder>; 2] {
    let model = Arc::new(load(&Config::tiny(), 200));
    [Some(OparaExecutor::builder()), None].map(|builder| {
        let options = Options { slots: texts, prompts: texts, builder };
        Engine::new(model.clone(), options).expect("an engine")
    })
}

#[test]
fn executors_write_what_eager_execution_writes_at_every_length() {
    let drawn = Sampling { temperature: 0.8, top_k: 20, seed: 4, ..Sampling::default() };
    let sampling = [Sampling::default(), drawn, Sampling { seed: 5, ..drawn }];
    let [mut fast, mut eager] = both(3);
    for lengths in [[1usize, 5, 3], [130, 20, 128], [2, 1, 150]] {
        let prompts: Vec<Vec<u32>> =
            lengths.iter().map(|&n| (0..n).map(|i| (i * 41 + n) as u32 % 96).collect()).collect();
        let requests = requests(&prompts, &sampling, 12);
        let expected = eager.generate(&requests, |_, _| ()).expect("texts");
        let mut seen: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let got = fast.generate(&requests, |index, token| seen[index].push(token)).expect("texts");
        assert_eq!(got, expected, "behind {lengths:?}");
        assert_eq!(seen, expected, "as they come");
    }
    assert!(fast.reports().iter().all(|report| report.mode() != Mode::Eager), "{:?}", fast.eager());
}

#[test]
fn a_text_does_not_depend_on_those_beside_it() {
    let drawn = Sampling { temperature: 0.8, seed: 9, ..Sampling::default() };
    let prompts = [vec![1; 50], vec![7, 8, 9]];
    let [[_, mut several], [_, mut alone]] = [2, 1].map(both);
    let requests = requests(&prompts, &[Sampling::default(), drawn], 20);
    let expected = alone.generate(&requests[1..], |_, _| ()).expect("a text");
    assert_eq!(several.generate(&requests, |_, _| ()).expect("texts")[1], expected[0]);
}

#[test]
fn a_text_ends_where_an_end_token_comes() {
    let [_, mut eager] = both(2);
    let mut requests = requests(&[vec![3, 4], vec![50, 60, 70]], &[Sampling::default(); 2], 30);
    let whole = eager.generate(&requests, |_, _| ()).expect("texts");
    let end = whole[0][7];
    requests.iter_mut().for_each(|request| request.ends = vec![end]);
    let cut = eager.generate(&requests, |_, _| ()).expect("texts");
    for (cut, whole) in cut.iter().zip(&whole) {
        let expected = whole.iter().position(|&token| token == end).unwrap_or(whole.len());
        assert_eq!(cut[..], whole[..expected]);
    }
    assert!(cut[0].len() < 8);
}

#[test]
fn bad_prompts_are_errors_that_say_why() {
    let [mut fast, _] = both(1);
    let mut fails = |prompt: Vec<u32>, most| {
        let request = Request { prompt, most, ..Request::default() };
        fast.generate(&[request], |_, _| ()).expect_err("an error")
    };
    let long = fails(vec![1; 190], 11);
    assert!(matches!(long, TextError::TooLong { prompt: 190, answer: 11, context: 200, .. }), "{long}");
    assert!(long.to_string().contains("190 tokens") && long.to_string().contains("at most 256"), "{long}");
    assert!(matches!(fails(vec![], 1), TextError::EmptyPrompt));
    assert!(matches!(fails(vec![96], 1), TextError::UnknownToken { token: 96, vocab: 96 }));
    let cache = Config::tiny().fits(1 << 30, 256, DType::F32, CPU).expect_err("no room");
    assert!(matches!(cache, DecoderError::NoRoom { .. }), "{cache}");
    let context = Config::tiny().fits(1, 257, DType::F32, CPU).expect_err("too long");
    assert!(matches!(context, DecoderError::ContextTooLong { context: 257, most: 256 }), "{context}");
}
