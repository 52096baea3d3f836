//! Sequences that join a batch and leave it: each writes what it writes alone.

mod spoiled;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use candle::{DType, Device};
use fastrand::Rng;
use opara_candle::ops::Sampling;
use opara_candle::OparaExecutor;
use opara_models::decoder::{Config, Decoder, DecoderError, End, Generator, Listener, Request, Scheduler, Terms};

const CPU: &Device = &Device::Cpu;
const CONTEXT: usize = 420;

fn model() -> Arc<Decoder> {
    let config = Config { max_positions: 512, ..Config::tiny() };
    Arc::new(Decoder::load(opara_weights::seeded(11, DType::F32, CPU), &config, CONTEXT).expect("seeded weights fit"))
}

/// What came of a request.
#[derive(Debug, Default)]
struct Text {
    tokens: Vec<u32>,
    end: Option<End>,
    cached: usize,
    is_gone: bool,
}

/// Keeps what comes; hears no more than so many tokens.
struct Kept {
    text: Arc<Mutex<Text>>,
    hears: usize,
}

impl Kept {
    fn new(hears: usize) -> (Box<Self>, Arc<Mutex<Text>>) {
        let text = Arc::new(Mutex::new(Text::default()));
        (Box::new(Self { text: text.clone(), hears }), text)
    }

    fn text(&self) -> std::sync::MutexGuard<'_, Text> {
        self.text.lock().expect("no test panicked")
    }
}

impl Listener for Kept {
    fn begin(&mut self, cached: usize) {
        self.text().cached = cached;
    }

    fn token(&mut self, token: u32) -> bool {
        let mut text = self.text();
        assert!(text.end.is_none() && text.tokens.len() < self.hears, "a token behind the end");
        text.tokens.push(token);
        text.tokens.len() < self.hears
    }

    fn end(&mut self, end: End) {
        let before = self.text().end.replace(end);
        assert_eq!(before, None, "ended twice");
    }

    fn is_gone(&self) -> bool {
        self.text().is_gone
    }
}

/// The text of a request that has the scheduler for itself.
fn alone(scheduler: &mut Scheduler, request: &Request) -> Text {
    let (kept, text) = Kept::new(usize::MAX);
    scheduler.join(request.clone(), kept).expect("a slot is free");
    while scheduler.live() > 0 {
        scheduler.turn(|| false).expect("it runs");
    }
    let mut text = text.lock().expect("no test panicked");
    std::mem::take(&mut text)
}

/// Prompts, some of which begin alike, of less than a part and of several.
fn request(rng: &mut Rng) -> Request {
    let (same, own) = (rng.u32(0..3), rng.usize(0..3) * rng.usize(0..70));
    let beginning = (0..rng.usize(0..3) * 64 + 1).map(|at| (at as u32 * 7 + same) % 96);
    let prompt = beginning.chain((0..own).map(|_| rng.u32(0..96)).collect::<Vec<_>>()).collect();
    let drawn = Sampling { temperature: 0.5 + rng.f32(), seed: rng.u64(0..4), ..Sampling::default() };
    let sampling = match rng.u32(0..5) {
        0 => Sampling::default(),
        1 => drawn,
        2 => Sampling { top_k: 1 + rng.u32(0..40), ..drawn },
        3 => Sampling { top_p: 0.5, min_p: 0.01, ..drawn },
        _ => Sampling { repetition_penalty: 1.3, ..drawn },
    };
    Request { prompt, most: rng.usize(1..40), ends: vec![rng.u32(0..96)], sampling }
}

/// Requests join, are cancelled before, while and after their prompts are read, and end; the rest is what each is alone.
fn random(scheduler: &mut Scheduler, expected: &mut Scheduler, seed: u64, requests: usize) {
    let mut rng = Rng::with_seed(seed);
    let mut waiting: VecDeque<Request> = (0..requests).map(|_| request(&mut rng)).collect();
    let mut texts = Vec::new();
    while !waiting.is_empty() || scheduler.live() > 0 {
        while scheduler.free() > 0 && rng.bool() {
            let Some(request) = waiting.pop_front() else { break };
            let hears = if rng.u32(0..4) == 0 { rng.usize(1..20) } else { usize::MAX };
            let (kept, text) = Kept::new(hears);
            text.lock().expect("no test panicked").is_gone = rng.u32(0..8) == 0;
            scheduler.join(request.clone(), kept).expect("a slot is free");
            texts.push((request, hears, text));
        }
        let interrupts = rng.u32(0..4);
        scheduler.turn(|| rng.u32(0..4) < interrupts).expect("it runs");
    }
    for (index, (request, hears, text)) in texts.iter().enumerate() {
        let text = text.lock().expect("no test panicked");
        let alone = alone(expected, request);
        let heard = &alone.tokens[..alone.tokens.len().min(*hears)];
        if !text.is_gone || !text.tokens.is_empty() {
            assert_eq!(text.tokens, heard, "request {index} of seed {seed}: {request:?}");
        }
        // What was cancelled does not end.
        let is_whole = !text.is_gone && alone.tokens.len() < *hears;
        assert_eq!(text.end, alone.end.filter(|_| is_whole), "request {index} of seed {seed}");
    }
    assert_eq!(texts.len(), requests);
}

#[test]
fn each_sequence_writes_what_it_writes_alone() {
    let model = model();
    let mut expected = Scheduler::new(model.clone(), 1, None).expect("a scheduler");
    for (slots, seeds) in [(1, 0..1), (2, 1..3), (3, 3..7), (5, 7..12), (8, 12..16)] {
        let mut scheduler = Scheduler::new(model.clone(), slots, None).expect("a scheduler");
        seeds.for_each(|seed| random(&mut scheduler, &mut expected, seed, 12));
    }
}

#[test]
fn executors_write_the_same() {
    let model = model();
    let mut expected = Scheduler::new(model.clone(), 1, None).expect("a scheduler");
    let mut scheduler = Scheduler::new(model, 4, Some(&OparaExecutor::builder())).expect("executors");
    assert_eq!(scheduler.eager(), [""; 0]);
    (100..103).for_each(|seed| random(&mut scheduler, &mut expected, seed, 12));
}

#[test]
fn a_scheduler_writes_what_a_generator_writes() {
    let model = model();
    let mut rng = Rng::with_seed(5);
    let mut scheduler = Scheduler::new(model.clone(), 4, None).expect("a scheduler");
    for _ in 0..20 {
        let mut request = request(&mut rng);
        request.sampling.repetition_penalty = 1.;
        let mut generator = Generator::eager(model.clone(), &[request.sampling]).expect("a generator");
        let prompt = std::slice::from_ref(&request.prompt);
        let written = generator.generate(prompt, request.most, &request.ends, |_| ()).expect("a text");
        let text = alone(&mut scheduler, &request);
        assert_eq!(text.tokens, written.tokens[0], "{request:?}");
        let end = if text.tokens.len() < request.most { End::Stop } else { End::Length };
        assert_eq!(text.end, Some(end));
    }
}

#[test]
fn a_penalty_is_for_the_tokens_of_the_prompt_and_of_the_text() {
    let mut scheduler = Scheduler::new(model(), 2, None).expect("a scheduler");
    let mut text = |penalty: f32| {
        let sampling = Sampling { repetition_penalty: penalty, ..Sampling::default() };
        alone(&mut scheduler, &Request { prompt: (40..60).collect(), most: 20, ends: vec![], sampling }).tokens
    };
    let plain = text(1.);
    // Tokens that were not seen come first, as long as one of them has a logit above 0.
    let mut tokens = text(1e6);
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "a token came again: {tokens:?}");
    assert!(tokens.iter().all(|token| !(40..60).contains(token)), "a token of the prompt came again: {tokens:?}");
    assert_eq!(text(1.), plain, "another sequence's penalty is still there");
}

#[test]
fn parts_that_were_read_are_not_read_again() {
    let model = model();
    let mut fresh = Scheduler::new(model.clone(), 1, None).expect("a scheduler");
    let mut scheduler = Scheduler::new(model, 4, None).expect("a scheduler");
    let long: Vec<u32> = (0..300).map(|at| at * 5 % 96).collect();
    let of = |prompt: &[u32], most| Request { prompt: prompt.to_vec(), most, ..Request::default() };
    assert_eq!(alone(&mut scheduler, &of(&long, 5)).cached, 0);
    // In the slot that has them.
    let other = [&long[..270], &[1, 2, 3]].concat();
    for (prompt, cached) in [(&long[..], 256), (&other, 256), (&long[..256], 128), (&long[..257], 256), (&long[1..], 0)]
    {
        let (request, length) = (of(prompt, 9), prompt.len());
        let text = alone(&mut scheduler, &request);
        assert_eq!(text.cached, cached, "of {length} tokens");
        assert_eq!(text.tokens, alone(&mut fresh, &request).tokens, "{length} tokens");
    }
    // Beside one that still writes, and that keeps its own.
    let (kept, writing) = Kept::new(usize::MAX);
    let first = of(&long, 60);
    scheduler.join(first.clone(), kept).expect("a slot is free");
    (0..4).for_each(|_| scheduler.turn(|| true).expect("it runs"));
    let (kept, beside) = Kept::new(usize::MAX);
    scheduler.join(of(&other, 9), kept).expect("a slot is free");
    assert_eq!(scheduler.live(), 2);
    while scheduler.live() > 0 {
        scheduler.turn(|| false).expect("it runs");
    }
    let (writing, beside) = (writing.lock().expect("a text"), beside.lock().expect("a text"));
    assert_eq!(beside.cached, 256);
    assert_eq!(beside.tokens, alone(&mut fresh, &of(&other, 9)).tokens);
    assert_eq!(writing.tokens, alone(&mut fresh, &first).tokens);
}

#[test]
fn bad_requests_leave_the_others_alone() {
    let mut scheduler = Scheduler::new(model(), 1, None).expect("a scheduler");
    let fails = |scheduler: &mut Scheduler, request: Request| {
        let (kept, _) = Kept::new(usize::MAX);
        scheduler.join(request, kept).expect_err("an error")
    };
    let good = Request { prompt: vec![1, 2], most: 30, ..Request::default() };
    let (kept, text) = Kept::new(usize::MAX);
    scheduler.join(good.clone(), kept).expect("a slot is free");
    assert!(matches!(fails(&mut scheduler, good.clone()), DecoderError::NoSlot { slots: 1 }));
    let bad = Request { prompt: vec![], ..good.clone() };
    assert!(matches!(fails(&mut scheduler, bad), DecoderError::EmptyPrompt { .. }));
    let bad = Request { prompt: vec![96], ..good.clone() };
    assert!(matches!(fails(&mut scheduler, bad), DecoderError::UnknownToken { token: 96, .. }));
    let bad = Request { most: CONTEXT, ..good.clone() };
    assert!(matches!(fails(&mut scheduler, bad), DecoderError::TooLong { prompt: 2, answer: CONTEXT, .. }));
    let bad = Request { sampling: Sampling { top_p: 0., ..Sampling::default() }, ..good.clone() };
    assert!(fails(&mut scheduler, bad).to_string().contains("top-p above 0"));
    while scheduler.live() > 0 {
        scheduler.turn(|| false).expect("it runs");
    }
    assert_eq!(text.lock().expect("a text").tokens.len(), 30);
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells it");
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("resident pages") * 4_096
}

#[test]
fn memory_stays_level() {
    let model = model();
    let mut scheduler = Scheduler::new(model, 4, Some(&OparaExecutor::builder())).expect("executors");
    let mut rng = Rng::with_seed(1);
    let (mut tokens, mut level) = (0, 0);
    for round in 0..24 {
        while scheduler.free() > 0 {
            let (kept, _) = Kept::new(if rng.bool() { usize::MAX } else { 9 });
            scheduler.join(request(&mut rng), kept).expect("a slot is free");
        }
        for _ in 0..40 {
            scheduler.turn(|| true).expect("it runs");
            tokens += scheduler.live();
        }
        if round == 8 {
            level = resident();
        }
    }
    let grown = resident().saturating_sub(level);
    assert!(tokens > 1000 && grown < 8 << 20, "memory grew by {} KiB over some {tokens} tokens", grown >> 10);
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
        let mut fresh = Scheduler::new(whole.clone(), 2, None).expect("a scheduler");
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
        let mut scheduler = Scheduler::new(model.clone(), 2, builder.as_ref()).expect("a scheduler");
        for (text, expected) in &texts {
            // Both slots are used in turns.
            for _ in 0..2 {
                let failed = alone(&mut scheduler, &strange);
                assert!(matches!(&failed.end, Some(End::Failed(why)) if why.contains("not finite")), "{failed:?}");
                assert!(failed.tokens.is_empty());
                assert_eq!(alone(&mut scheduler, text).tokens, *expected);
            }
        }
    }
    let mut generator = Generator::new(model.clone(), &[sampling], &OparaExecutor::builder()).expect("executors");
    for (text, _) in &texts {
        let mut fresh = Generator::eager(whole.clone(), &[sampling]).expect("a generator");
        let expected = fresh.generate(std::slice::from_ref(&text.prompt), 20, &[], |_| ()).expect("a text").tokens;
        let failed = generator.generate(std::slice::from_ref(&strange.prompt), 40, &[], |_| ());
        assert!(matches!(failed, Err(DecoderError::NotFinite)), "{failed:?}");
        let got = generator.generate(std::slice::from_ref(&text.prompt), 20, &[], |_| ()).expect("a text").tokens;
        assert_eq!(got, expected);
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
        let expected = alone(&mut Scheduler::new(seeded.clone(), 2, None).expect("a scheduler"), &text).tokens;
        // The first token that it did not write before: what it writes behind that is spoiled.
        let is_new = |at: &usize| *at > 0 && !expected[..*at].contains(&expected[*at]);
        let at = (4..expected.len()).find(is_new).expect("a new token");
        let model = Arc::new(spoiled::model(&config, CONTEXT, &expected[at..=at], DType::F32, CPU));
        let end = (0..96).find(|token| !expected.contains(token)).expect("a token that it did not write");
        let (later, beside) = (text.clone(), Request { most: at, ..text.clone() });
        let first = Request { prompt: vec![3, expected[at]], ..text };
        for builder in [None, Some(OparaExecutor::builder())] {
            let mut scheduler = Scheduler::new(model.clone(), 3, builder.as_ref()).expect("a scheduler");
            for least in [0, 20] {
                let texts = [&later, &first, &beside].map(|request| {
                    let (kept, text) = Kept::new(usize::MAX);
                    let request = Request { ends: vec![end], ..request.clone() };
                    let terms = Terms { least: least.min(request.most), ..Terms::default() };
                    scheduler.join_on(terms, request, kept).expect("a slot is free");
                    text
                });
                while scheduler.live() > 0 {
                    scheduler.turn(|| false).expect("it runs");
                }
                let [later, first, beside] = texts.map(|text| std::mem::take(&mut *text.lock().expect("no panic")));
                for failed in [&later, &first] {
                    assert!(matches!(failed.end, Some(End::Failed(_))), "{sampling:?}: {failed:?}");
                }
                assert_eq!((&later.tokens[..], first.tokens.len()), (&expected[..=at], 0), "{sampling:?}");
                assert_eq!((&beside.tokens[..], beside.end), (&expected[..at], Some(End::Length)), "{sampling:?}");
            }
        }
        // It has no penalties.
        if sampling.repetition_penalty == 1. {
            let mut generator = Generator::eager(model.clone(), &[sampling]).expect("a generator");
            let mut told = Vec::new();
            let failed =
                generator.generate(std::slice::from_ref(&later.prompt), 30, &[], |tokens| told.extend(tokens[0]));
            assert!(matches!(failed, Err(DecoderError::NotFinite)), "{failed:?}");
            assert_eq!(told, expected[..=at]);
        }
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
        let of = |model: &Arc<Decoder>| {
            alone(&mut Scheduler::new(model.clone(), 2, None).expect("a scheduler"), &text).tokens
        };
        let expected = of(&whole);
        assert!(!expected.contains(&0), "{expected:?}");
        assert_eq!(of(&strange), expected, "behind {n} tokens");
        let of = |model: &Arc<Decoder>| {
            let mut generator = Generator::eager(model.clone(), &[Sampling::default(); 2]).expect("a generator");
            let prompts = [prompt.clone(), vec![3; 129]];
            generator.generate(&prompts, 20, &[], |_| ()).expect("texts").tokens.swap_remove(0)
        };
        assert_eq!(of(&strange), of(&whole), "behind {n} tokens, beside another text");
    }
}
