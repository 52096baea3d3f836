//! Texts that join a batch and leave it: each is what it is alone.

mod spoiled;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use candle::{DType, Device, Tensor};
use fastrand::Rng;
use opara_candle::ops::Sampling;
use opara_candle::OparaExecutor;
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{End, Engine, Listener, Options, Part, Request, TextError, TextModel};

const CPU: &Device = &Device::Cpu;
const CONTEXT: usize = 420;

fn engine(model: &Arc<Decoder>, options: Options) -> Engine<Decoder> {
    Engine::new(model.clone(), options).expect("there is memory")
}

fn eager(model: &Arc<Decoder>, slots: usize) -> Engine<Decoder> {
    engine(model, Options { slots, ..Options::default() })
}

fn replayed(model: &Arc<Decoder>, slots: usize) -> Engine<Decoder> {
    engine(model, Options { slots, builder: Some(OparaExecutor::builder()), ..Options::default() })
}

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

/// The text of a request that has the engine for itself.
fn alone<M: TextModel>(engine: &mut Engine<M>, request: &Request) -> Text {
    let (kept, text) = Kept::new(usize::MAX);
    engine.add(request.clone(), kept).expect("a slot is free");
    while engine.live() > 0 {
        engine.step(|_| false).expect("it runs");
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
    Request { prompt, most: rng.usize(1..40), ends: vec![rng.u32(0..96)], sampling, ..Request::default() }
}

/// Requests join, are cancelled before, while and after their prompts are read, and end; the rest is what each is alone.
fn random(engine: &mut Engine<Decoder>, expected: &mut Engine<Decoder>, seed: u64, requests: usize) {
    let mut rng = Rng::with_seed(seed);
    let mut waiting: VecDeque<Request> = (0..requests).map(|_| request(&mut rng)).collect();
    let mut texts = Vec::new();
    while !waiting.is_empty() || engine.live() > 0 {
        while engine.free() > 0 && rng.bool() {
            let Some(request) = waiting.pop_front() else { break };
            let hears = if rng.u32(0..4) == 0 { rng.usize(1..20) } else { usize::MAX };
            let (kept, text) = Kept::new(hears);
            text.lock().expect("no test panicked").is_gone = rng.u32(0..8) == 0;
            engine.add(request.clone(), kept).expect("a slot is free");
            texts.push((request, hears, text));
        }
        let interrupts = rng.u32(0..4);
        engine.step(|_| rng.u32(0..4) < interrupts).expect("it runs");
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
    let mut expected = eager(&model, 1);
    for (slots, seeds) in [(1, 0..1), (2, 1..3), (3, 3..7), (5, 7..12), (8, 12..16)] {
        let mut engine = eager(&model, slots);
        seeds.for_each(|seed| random(&mut engine, &mut expected, seed, 12));
    }
}

#[test]
fn executors_write_the_same() {
    let model = model();
    let mut expected = eager(&model, 1);
    let mut engine = replayed(&model, 4);
    assert_eq!(engine.eager(), [""; 0]);
    (100..103).for_each(|seed| random(&mut engine, &mut expected, seed, 12));
}

/// Texts of several lengths, all of which do not fit into the slots at once.
#[test]
fn prompts_that_are_read_together_give_the_same_texts() {
    let model = model();
    let mut rng = Rng::with_seed(5);
    let requests: Vec<Request> = (0..20).map(|_| request(&mut rng)).collect();
    let mut one = eager(&model, 1);
    let expected: Vec<Vec<u32>> = requests.iter().map(|request| alone(&mut one, request).tokens).collect();
    for (slots, prompts, is_replayed) in [(4, 1, false), (4, 2, true), (5, 3, false), (8, 8, true)] {
        let builder = is_replayed.then(OparaExecutor::builder);
        let mut engine = engine(&model, Options { slots, prompts, builder });
        let mut told = vec![Vec::new(); requests.len()];
        let texts = engine.generate(&requests, |index, token| told[index].push(token)).expect("texts");
        assert_eq!(texts, expected, "{prompts} of {slots}");
        assert_eq!(told, expected, "as they come");
        assert_eq!((engine.live(), engine.free(), engine.eager()), (0, slots, Vec::new()));
    }
}

#[test]
fn tokens_are_marked_only_by_steps_of_texts_that_ask_for_it() {
    let mut engine = replayed(&model(), 1);
    let plain = Request { prompt: vec![3, 1, 4], most: 9, ends: vec![95], ..Request::default() };
    let penalised = Sampling { repetition_penalty: 1.3, ..Sampling::default() };
    let penalised = Request { sampling: penalised, ..plain.clone() };
    let later = Request { least: 3, ..plain.clone() };
    let mut graphs = |request: &Request| {
        alone(&mut engine, request);
        engine.reports().len()
    };
    // One that reads, and a step; then one more step.
    assert_eq!([&plain, &plain, &later, &penalised].map(&mut graphs), [2, 2, 3, 3]);
    let mut built = replayed(&model(), 4);
    built.build().expect("graphs");
    assert_eq!(built.reports().len(), 1 + 2 * 2);
}

#[test]
fn a_text_that_is_cancelled_hears_no_more() {
    let mut engine = eager(&model(), 2);
    let whole = Request { prompt: vec![1; 200], most: 20, ..Request::default() };
    let expected = alone(&mut engine, &whole).tokens;
    for turns in 0..6 {
        let (kept, gone) = Kept::new(usize::MAX);
        let id = engine.add(whole.clone(), kept).expect("a slot is free");
        let (kept, stays) = Kept::new(usize::MAX);
        let other = engine.add(Request { tenant: 1, ..whole.clone() }, kept).expect("a slot is free");
        (0..turns).for_each(|_| engine.step(|_| true).expect("it runs"));
        let heard = gone.lock().expect("no panic").tokens.len();
        assert!(engine.cancel(id) && !engine.cancel(id));
        while engine.live() > 0 {
            engine.step(|_| true).expect("it runs");
        }
        assert!(!engine.cancel(other), "it has ended");
        let (gone, stays) = (gone.lock().expect("a text"), stays.lock().expect("a text"));
        assert_eq!((gone.tokens.len(), &gone.end), (heard, &None), "after {turns}");
        assert_eq!((&stays.tokens, &stays.end), (&expected, &Some(End::Length)), "after {turns}");
    }
}

#[test]
fn a_penalty_is_for_the_tokens_of_the_prompt_and_of_the_text() {
    let mut engine = eager(&model(), 2);
    let mut text = |penalty: f32| {
        let sampling = Sampling { repetition_penalty: penalty, ..Sampling::default() };
        alone(&mut engine, &Request { prompt: (40..60).collect(), most: 20, sampling, ..Request::default() }).tokens
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
    let mut fresh = eager(&model, 1);
    let mut engine = eager(&model, 4);
    let long: Vec<u32> = (0..300).map(|at| at * 5 % 96).collect();
    let of = |prompt: &[u32], most| Request { prompt: prompt.to_vec(), most, ..Request::default() };
    assert_eq!(alone(&mut engine, &of(&long, 5)).cached, 0);
    // In the slot that has them.
    let other = [&long[..270], &[1, 2, 3]].concat();
    for (prompt, cached) in [(&long[..], 256), (&other, 256), (&long[..256], 128), (&long[..257], 256), (&long[1..], 0)]
    {
        let (request, length) = (of(prompt, 9), prompt.len());
        let text = alone(&mut engine, &request);
        assert_eq!(text.cached, cached, "of {length} tokens");
        assert_eq!(text.tokens, alone(&mut fresh, &request).tokens, "{length} tokens");
    }
    // Beside one that still writes, and that keeps its own.
    let (kept, writing) = Kept::new(usize::MAX);
    let first = of(&long, 60);
    engine.add(first.clone(), kept).expect("a slot is free");
    (0..4).for_each(|_| engine.step(|_| true).expect("it runs"));
    let (kept, beside) = Kept::new(usize::MAX);
    engine.add(of(&other, 9), kept).expect("a slot is free");
    assert_eq!(engine.live(), 2);
    while engine.live() > 0 {
        engine.step(|_| false).expect("it runs");
    }
    let (writing, beside) = (writing.lock().expect("a text"), beside.lock().expect("a text"));
    assert_eq!(beside.cached, 256);
    assert_eq!(beside.tokens, alone(&mut fresh, &of(&other, 9)).tokens);
    assert_eq!(writing.tokens, alone(&mut fresh, &first).tokens);
}

#[test]
fn bad_requests_leave_the_others_alone() {
    let mut engine = eager(&model(), 1);
    let fails = |engine: &mut Engine<Decoder>, request: Request| {
        let (kept, _) = Kept::new(usize::MAX);
        engine.add(request, kept).expect_err("an error")
    };
    let good = Request { prompt: vec![1, 2], most: 30, ..Request::default() };
    let (kept, text) = Kept::new(usize::MAX);
    engine.add(good.clone(), kept).expect("a slot is free");
    assert!(matches!(fails(&mut engine, good.clone()), TextError::NoSlot { slots: 1 }));
    let bad = Request { prompt: vec![], ..good.clone() };
    assert!(matches!(fails(&mut engine, bad), TextError::EmptyPrompt));
    let bad = Request { prompt: vec![96], ..good.clone() };
    assert!(matches!(fails(&mut engine, bad), TextError::UnknownToken { token: 96, .. }));
    let long = fails(&mut engine, Request { most: CONTEXT, ..good.clone() });
    assert!(matches!(long, TextError::TooLong { prompt: 2, answer: CONTEXT, context: CONTEXT, most: 512 }), "{long}");
    assert!(long.to_string().contains("2 tokens") && long.to_string().contains("at most 512"), "{long}");
    let bad = Request { sampling: Sampling { top_p: 0., ..Sampling::default() }, ..good.clone() };
    assert!(fails(&mut engine, bad).to_string().contains("top-p above 0"));
    while engine.live() > 0 {
        engine.step(|_| false).expect("it runs");
    }
    assert_eq!(text.lock().expect("a text").tokens.len(), 30);
}

#[test]
fn steps_tell_how_many_slots_are_free() {
    for is_replayed in [false, true] {
        let builder = is_replayed.then(OparaExecutor::builder);
        let mut engine = engine(&model(), Options { slots: 3, builder, ..Options::default() });
        let texts = [4, 9, 9].map(|most| {
            let (kept, text) = Kept::new(usize::MAX);
            engine.add(Request { prompt: vec![3, 1, 4], most, ..Request::default() }, kept).expect("a slot is free");
            text
        });
        let ended = || texts.iter().filter(|text| text.lock().expect("no panic").end.is_some()).count();
        let mut told = Vec::new();
        while engine.live() > 0 {
            let tell = |free| {
                assert_eq!(free, ended());
                told.push(free);
                false
            };
            engine.step(tell).expect("it runs");
        }
        told.dedup();
        assert_eq!(told[..2], [0, 1]);
        assert_eq!(told.last(), Some(&3));
    }
}

/// A decoder with a memory more, which is not contiguous: it cannot be copied.
struct Uncopied(Arc<Decoder>);

impl TextModel for Uncopied {
    const IS_CAUSAL: bool = true;

    fn device(&self) -> &Device {
        CPU
    }

    fn vocab(&self) -> usize {
        self.0.vocab()
    }

    fn part(&self) -> usize {
        self.0.part()
    }

    fn first_position(&self, prompt: usize) -> usize {
        self.0.first_position(prompt)
    }

    fn fits(&self, prompt: usize, answer: usize) -> Result<(), TextError> {
        self.0.fits(prompt, answer)
    }

    fn memory(&self, texts: usize) -> candle::Result<Vec<Tensor>> {
        Ok([self.0.memory(texts)?, vec![Tensor::zeros((2, texts), DType::F32, CPU)?.t()?]].concat())
    }

    fn read(&self, part: &Part, memory: &[Tensor]) -> candle::Result<Tensor> {
        self.0.read(part, &memory[..memory.len() - 1])
    }

    fn step(&self, tokens: &Tensor, positions: &Tensor, memory: &[Tensor]) -> candle::Result<Tensor> {
        TextModel::step(&*self.0, tokens, positions, &memory[..memory.len() - 1])
    }
}

#[test]
fn a_slot_into_which_half_a_text_was_copied_is_read_anew() {
    let mut engine =
        Engine::new(Arc::new(Uncopied(model())), Options { slots: 2, ..Options::default() }).expect("memory");
    let [first, other] = [1, 2].map(|start| {
        let prompt = (0..140).map(|at| (at * 7 + start) % 96).collect();
        Request { prompt, most: 20, ..Request::default() }
    });
    let expected = alone(&mut engine, &first).tokens;
    assert_eq!(alone(&mut engine, &first).cached, 128);
    // In the other slot, so that what was read has to be copied for the next one.
    let (kept, _) = Kept::new(usize::MAX);
    engine.add(other.clone(), kept).expect("a slot is free");
    engine.step(|_| true).expect("it runs");
    let (kept, _) = Kept::new(usize::MAX);
    assert!(matches!(engine.add(other, kept), Err(TextError::Candle(_))));
    assert_eq!((engine.live(), engine.free()), (1, 1));
    let again = alone(&mut engine, &first);
    assert_eq!((again.tokens, again.cached), (expected, 0));
}

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
    let mut engine = engine(&model, Options { slots: 2, prompts: 2, builder: Some(OparaExecutor::builder()) });
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
            let mut engine = engine(model, Options { slots: 2, prompts: 2, builder: None });
            let beside = Request { prompt: vec![3; 129], ..text.clone() };
            engine.generate(&[text.clone(), beside], |_, _| ()).expect("texts").swap_remove(0)
        };
        assert_eq!(of(&strange), of(&whole), "behind {n} tokens, beside another text");
    }
}

/// What a text remembers, as numbers: of each place, all layers.
fn places(memory: &[Tensor], text: usize) -> Vec<Vec<f32>> {
    let by_place = memory.iter().map(|layer| layer.narrow(0, text, 1)?.permute((3, 0, 1, 2, 4))?.flatten_from(1));
    let by_place = by_place.collect::<candle::Result<Vec<_>>>().expect("layers");
    Tensor::cat(&by_place, 1).and_then(|t| t.to_vec2()).expect("numbers")
}

#[test]
fn reading_and_writing_touch_nothing_of_other_texts() {
    let (model, part) = (model(), TextModel::part(&*model()));
    let memory = model.memory(3).expect("memory");
    let numbers = |of: &[usize]| Tensor::from_iter(of.iter().map(|n| *n as u32), CPU).expect("numbers");
    let all = || [0, 1, 2].map(|text| places(&memory, text));
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
