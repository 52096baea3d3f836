//! Slots of an engine: texts leave nothing behind that others would read, and memory stays level.

use std::sync::Arc;

use candle::{DType, Tensor};
use fastrand::Rng;
use opara_candle::ops::Sampling;
use opara_candle::OparaExecutor;
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{End, Memory, Options, Part, Request, TextError, TextModel};

use super::{alone, eager, engine, model, replayed, request, spoiled, Kept, CONTEXT, CPU};

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells it");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("resident pages") * 4_096
}

#[test]
fn memory_stays_level() {
    let model = model();
    let mut engine = replayed(&model, 4);
    let mut rng = Rng::with_seed(1);
    let (mut tokens, mut level) = (0, 0);
    for round in 0..24 {
        while engine.free() > 0 {
            let (kept, _) = Kept::new(if rng.bool() { usize::MAX } else { 9 });
            engine.add(request(&mut rng), kept).expect("a slot is free");
        }
        for _ in 0..40 {
            engine.step(|_| true).expect("it runs");
            tokens += engine.live();
        }
        if round == 8 {
            level = resident();
        }
    }
    let grown = resident().saturating_sub(level);
    assert!(tokens > 1000 && grown < 8 << 20, "memory grew by {} KiB over some {tokens} tokens", grown >> 10);
}

#[test]
fn parts_of_a_prompt_that_are_read_together_are_what_they_are_one_by_one() {
    let model = model();
    // Four parts, the last one short; one that is whole; and two short ones.
    let texts = [385, 128, 3, 130].map(|length| {
        let prompt = (0..length).map(|at| at * 7 % 90).collect();
        Request { prompt, most: 9, tenant: length.into(), ..Request::default() }
    });
    let expected = texts.clone().map(|text| alone(&mut eager(&model, 1), &text).tokens);
    // In the first step: one part of each text, but for the second one of 130 tokens; all of the first text, if it is alone.
    for (parts, together, read) in [(1, 1, 0), (4, 1, 1), (4, 4, 2)] {
        for builder in [None, Some(OparaExecutor::builder())] {
            let mut engine = engine(&model, Options { slots: 4, parts, builder, ..Options::default() });
            let kept = texts.clone().map(|text| {
                let (kept, text_of) = Kept::new(usize::MAX);
                (text, kept, text_of)
            });
            let mut told = Vec::new();
            for (text, kept, text_of) in kept.into_iter().take(together) {
                engine.add(text, kept).expect("a slot is free");
                told.push(text_of);
            }
            engine.step(|_| true).expect("it runs");
            let begun = told.iter().filter(|text| !text.lock().expect("no panic").tokens.is_empty()).count();
            assert_eq!(begun, read, "{parts} parts of {together} texts");
            while engine.live() > 0 {
                engine.step(|_| true).expect("it runs");
            }
            for (text, expected) in told.iter().zip(&expected) {
                assert_eq!(text.lock().expect("no panic").tokens, *expected, "{parts} parts of {together} texts");
            }
        }
    }
}

/// A token has no number for its embedding, so what a text with it leaves in its slot is NaN.
#[test]
fn a_text_leaves_nothing_to_the_next_one_in_its_slot() {
    let config = Config { max_positions: 512, ..Config::tiny() };
    let sampling = Sampling { repetition_penalty: 1.2, ..Sampling::default() };
    let whole = Arc::new(spoiled::model(&config, CONTEXT, &[], DType::F32, CPU));
    let texts = [150, 1, 260].map(|n| {
        let prompt = (0..n).map(|i| i * 7 % 90).collect();
        let request = Request { prompt, most: 20, sampling, ..Request::default() };
        let mut fresh = eager(&whole, 2);
        let expected = alone(&mut fresh, &request).tokens;
        assert!(expected.len() == 20 && expected.iter().any(|token| *token != expected[0]), "{expected:?}");
        (request, expected)
    });
    let is_free =
        |token: &u32| texts.iter().all(|(text, written)| ![&text.prompt, written].iter().any(|of| of.contains(token)));
    let token = (0..config.vocab as u32).find(is_free).expect("a token that no text reads or writes");
    let model = Arc::new(spoiled::model(&config, CONTEXT, &[token], DType::F32, CPU));
    let strange = Request { prompt: vec![token; 200], most: 40, ..Request::default() };
    for builder in [None, Some(OparaExecutor::builder())] {
        let mut engine = engine(&model, Options { slots: 2, builder: builder.clone(), ..Options::default() });
        for (text, expected) in &texts {
            // Both slots are used in turns.
            for _ in 0..2 {
                let failed = alone(&mut engine, &strange);
                assert!(matches!(&failed.end, Some(End::Failed(why)) if why.contains("not finite")), "{failed:?}");
                assert!(failed.tokens.is_empty());
                assert_eq!(alone(&mut engine, text).tokens, *expected);
            }
        }
    }
    // Beside it, where both prompts are read together.
    let mut engine =
        engine(&model, Options { slots: 2, parts: 2, builder: Some(OparaExecutor::builder()), ..Options::default() });
    for (text, expected) in &texts {
        let mut told = Vec::new();
        let both = [strange.clone(), text.clone()];
        let failed = engine.generate(&both, |index, token| told.push((index, token)));
        assert!(matches!(failed, Err(TextError::NotFinite)), "{failed:?}");
        assert_eq!(told, expected.iter().map(|token| (1, *token)).collect::<Vec<_>>());
        let got = engine.generate(&[text.clone(), text.clone()], |_, _| ()).expect("texts");
        assert_eq!(got, [expected.clone(), expected.clone()]);
    }
}

/// A text whose logits are no numbers fails alone, however tokens are drawn, at its beginning or later.
#[test]
fn a_text_without_tokens_fails_and_others_beside_it_do_not() {
    let config = Config { max_positions: 512, ..Config::tiny() };
    let whole = Request { prompt: vec![3, 1, 4], most: 30, ..Request::default() };
    let greedy = Sampling::default();
    let drawn = Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 4, ..greedy };
    let penalised = Sampling { repetition_penalty: 1.3, ..drawn };
    let seeded = Arc::new(spoiled::model(&config, CONTEXT, &[], DType::F32, CPU));
    for sampling in [greedy, drawn, penalised] {
        let text = Request { sampling, ..whole.clone() };
        let expected = alone(&mut eager(&seeded, 2), &text).tokens;
        // The first token that it did not write before: what it writes behind that is spoiled.
        let is_new = |at: &usize| *at > 0 && !expected[..*at].contains(&expected[*at]);
        let at = (4..expected.len()).find(is_new).expect("a new token");
        let model = Arc::new(spoiled::model(&config, CONTEXT, &expected[at..=at], DType::F32, CPU));
        let end = (0..96).find(|token| !expected.contains(token)).expect("a token that it did not write");
        let (later, beside) = (text.clone(), Request { most: at, ..text.clone() });
        let first = Request { prompt: vec![3, expected[at]], ..text };
        for builder in [None, Some(OparaExecutor::builder())] {
            let mut engine = engine(&model, Options { slots: 3, builder: builder.clone(), ..Options::default() });
            for least in [0, 20] {
                let texts = [&later, &first, &beside].map(|request| {
                    let (kept, text) = Kept::new(usize::MAX);
                    let request = Request { ends: vec![end], ..request.clone() };
                    let request = Request { least: least.min(request.most), ..request };
                    engine.add(request, kept).expect("a slot is free");
                    text
                });
                while engine.live() > 0 {
                    engine.step(|_| false).expect("it runs");
                }
                let [later, first, beside] = texts.map(|text| std::mem::take(&mut *text.lock().expect("no panic")));
                for failed in [&later, &first] {
                    assert!(matches!(failed.end, Some(End::Failed(_))), "{sampling:?}: {failed:?}");
                }
                assert_eq!((&later.tokens[..], first.tokens.len()), (&expected[..=at], 0), "{sampling:?}");
                assert_eq!((&beside.tokens[..], beside.end), (&expected[..at], Some(End::Length)), "{sampling:?}");
            }
        }
        let mut told = Vec::new();
        let failed = eager(&model, 1).generate(std::slice::from_ref(&later), |_, token| told.push(token));
        assert!(matches!(failed, Err(TextError::NotFinite)), "{failed:?}");
        assert_eq!(told, expected[..=at]);
    }
}

/// Parts of prompts are filled up with token 0, which no text has here.
#[test]
fn what_a_part_is_filled_up_with_is_not_seen() {
    let config = Config { max_positions: 512, ..Config::tiny() };
    let [whole, strange] =
        [&[][..], &[0]].map(|spoiled| Arc::new(spoiled::model(&config, CONTEXT, spoiled, DType::F32, CPU)));
    for n in [1, 100, 130] {
        let prompt: Vec<u32> = (0..n).map(|i| 1 + i * 7 % 90).collect();
        let text = Request { prompt: prompt.clone(), most: 20, ..Request::default() };
        let of = |model: &Arc<Decoder>| alone(&mut eager(model, 2), &text).tokens;
        let expected = of(&whole);
        assert!(!expected.contains(&0), "{expected:?}");
        assert_eq!(of(&strange), expected, "behind {n} tokens");
        let of = |model: &Arc<Decoder>| {
            let mut engine = engine(model, Options { slots: 2, parts: 2, ..Options::default() });
            let beside = Request { prompt: vec![3; 129], ..text.clone() };
            engine.generate(&[text.clone(), beside], |_, _| ()).expect("texts").swap_remove(0)
        };
        assert_eq!(of(&strange), of(&whole), "behind {n} tokens, beside another text");
    }
}

/// What a text remembers in some pages, as numbers: of each place, all layers.
fn places(memory: &Memory, pages: &[u32]) -> Vec<Vec<f32>> {
    let by_place = |layer: &Tensor| {
        let own = layer.index_select(&Tensor::new(pages, CPU)?, 0)?.permute((0, 3, 1, 2, 4))?;
        own.flatten_from(2)?.flatten(0, 1)
    };
    let by_place = memory.tensors.iter().map(by_place);
    let by_place = by_place.collect::<candle::Result<Vec<_>>>().expect("layers");
    Tensor::cat(&by_place, 1).and_then(|t| t.to_vec2()).expect("numbers")
}

#[test]
fn reading_and_writing_touch_nothing_of_other_texts() {
    let (model, part) = (model(), TextModel::part(&*model()));
    let memory = model.empty(3, 1, 15).expect("memory");
    let tables = [[4u32, 9, 3, 16, 12], [10, 2, 5, 11, 15], [7, 6, 8, 13, 14]];
    memory.set_pages(tables.iter().map(|table| &table[..])).expect("tables");
    let numbers = |of: &[usize]| Tensor::from_iter(of.iter().map(|n| *n as u32), CPU).expect("numbers");
    let all = || tables.map(|table| places(&memory, &table));
    // So many tokens of each text, behind those that it has; then one more of each.
    let ids = |count| Tensor::full(5u32, (3, count), CPU).expect("tokens");
    let mut starts = [0; 3];
    for counts in [[part; 3], [0, part, 0], [9, 0, 3]] {
        let before = all();
        let last: Vec<usize> = (0..3).map(|text| text * part + counts[text].saturating_sub(1)).collect();
        let [at, counted, last] = [&starts[..], &counts, &last].map(numbers);
        model.read(&Part { ids: &ids(part), starts: &at, counts: &counted, last: &last }, &memory).expect("logits");
        for (text, (after, before)) in all().iter().zip(&before).enumerate() {
            let (start, end) = (starts[text], starts[text] + counts[text]);
            assert!(after[..start] == before[..start], "reading touched what text {text} had");
            assert_eq!(after[start..end] == before[start..end], counts[text] == 0, "text {text} has {counts:?}");
            starts[text] = end;
        }
    }
    let before = all();
    model.step(&ids(1), &numbers(&starts), &memory).expect("logits");
    for (text, (after, before)) in all().iter().zip(&before).enumerate() {
        let changed: Vec<usize> = (0..after.len()).filter(|at| after[*at] != before[*at]).collect();
        assert_eq!(changed, [starts[text]], "a step of text {text}");
    }
}
