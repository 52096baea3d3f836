//! Texts that join a batch and leave it: each is what it is alone.

mod pages;
mod slots;
#[path = "../spoiled/mod.rs"]
mod spoiled;
mod weighed;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use candle::{DType, Device};
use fastrand::Rng;
use opara_candle::ops::Sampling;
use opara_candle::OparaExecutor;
use opara_models::decoder::{Config, Decoder};
use opara_models::engine::{End, Engine, Guidance, Likelihoods, Listener, Options, Request, TextError, TextModel};

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
    likelihoods: Vec<Likelihoods>,
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

    fn likelihoods(&mut self, of: Likelihoods) {
        self.text().likelihoods.push(of);
    }

    fn guide(&mut self) -> Guidance {
        guidance(&self.text().tokens)
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

/// What may come behind these tokens in texts that are guided: a third of all tokens, then another third, and at some point nothing.
fn guidance(tokens: &[u32]) -> Guidance {
    let mut allowed = vec![0u32; 3];
    (0..96).filter(|token| (token + tokens.len() as u32).is_multiple_of(3)).for_each(|token| {
        allowed[token as usize / 32] |= 1 << (token % 32);
    });
    match tokens.len() {
        17 => Guidance::Any,
        23 => Guidance::End,
        _ => Guidance::Of(allowed),
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
    let few = |rng: &mut Rng| if rng.u32(0..6) == 0 { rng.f32() * 4. - 2. } else { 0. };
    Request {
        prompt,
        most: rng.usize(1..40),
        ends: vec![rng.u32(0..96)],
        sampling,
        bias: if rng.u32(0..6) == 0 { vec![(rng.u32(0..96), 2.), (3, -9.)] } else { Vec::new() },
        frequency_penalty: few(rng),
        presence_penalty: few(rng),
        alternatives: if rng.u32(0..6) == 0 { Some(3) } else { None },
        is_guided: rng.u32(0..6) == 0,
        ..Request::default()
    }
}

/// Requests join, are cancelled before, while and after their prompts are read, and end; the rest is what each is alone. After how many
/// steps texts waited on the host.
fn random(
    engine: &mut Engine<Decoder>,
    expected: &mut Engine<Decoder>,
    seed: u64,
    request: fn(&mut Rng) -> Request,
) -> usize {
    let (mut rng, requests) = (Rng::with_seed(seed), 12);
    let mut waiting: VecDeque<Request> = (0..requests).map(|_| request(&mut rng)).collect();
    let (mut texts, mut aside) = (Vec::new(), 0);
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
        aside += usize::from(engine.aside() > 0);
    }
    for (index, (request, hears, text)) in texts.iter().enumerate() {
        let text = text.lock().expect("no test panicked");
        let alone = alone(expected, request);
        let heard = &alone.tokens[..alone.tokens.len().min(*hears)];
        if !text.is_gone || !text.tokens.is_empty() {
            assert_eq!(text.tokens, heard, "request {index} of seed {seed}: {request:?}");
            assert_eq!(text.likelihoods.len(), request.alternatives.map_or(0, |_| heard.len()));
        }
        // What was cancelled does not end.
        let is_whole = !text.is_gone && alone.tokens.len() < *hears;
        assert_eq!(text.end, alone.end.filter(|_| is_whole), "request {index} of seed {seed}");
    }
    assert_eq!(texts.len(), requests);
    assert_eq!(engine.pages().map(|(held, _)| held), Some(0), "a page is lost, seed {seed}");
    aside
}

#[test]
fn each_sequence_writes_what_it_writes_alone() {
    let model = model();
    let mut expected = eager(&model, 1);
    for (slots, seeds) in [(1, 0..1), (2, 1..3), (3, 3..7), (5, 7..12), (8, 12..16)] {
        let mut engine = eager(&model, slots);
        seeds.for_each(|seed| {
            assert_eq!(random(&mut engine, &mut expected, seed, request), 0, "there are pages for all")
        });
    }
}

#[test]
fn executors_write_the_same() {
    let model = model();
    let mut expected = eager(&model, 1);
    let mut engine = replayed(&model, 4);
    assert_eq!(engine.eager(), [""; 0]);
    (100..103).for_each(|seed| assert_eq!(random(&mut engine, &mut expected, seed, request), 0));
}

/// Texts of several lengths, all of which do not fit into the slots at once.
#[test]
fn prompts_that_are_read_together_give_the_same_texts() {
    let model = model();
    let mut rng = Rng::with_seed(5);
    // Lists have nobody who would guide.
    let requests: Vec<Request> = (0..20).map(|_| Request { is_guided: false, ..request(&mut rng) }).collect();
    let mut one = eager(&model, 1);
    let expected: Vec<Vec<u32>> = requests.iter().map(|request| alone(&mut one, request).tokens).collect();
    for (slots, parts, is_replayed) in [(4, 1, false), (4, 2, true), (5, 3, false), (8, 8, true)] {
        let builder = is_replayed.then(OparaExecutor::builder);
        let mut engine = engine(&model, Options { slots, parts, builder, ..Options::default() });
        let mut told = vec![Vec::new(); requests.len()];
        let texts = engine.generate(&requests, |index, token| told[index].push(token)).expect("texts");
        assert_eq!(texts, expected, "{parts} of {slots}");
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

#[test]
fn prompts_that_came_together_are_read_before_their_texts_write() {
    let mut engine = engine(&model(), Options { slots: 64, parts: 16, ..Options::default() });
    let add = |engine: &mut Engine<Decoder>, prompt: Vec<u32>| {
        let (kept, text) = Kept::new(usize::MAX);
        engine.add(Request { prompt, most: 5, ..Request::default() }, kept).expect("a slot is free");
        text
    };
    let count = |text: &Arc<Mutex<Text>>| text.lock().expect("no panic").tokens.len();
    let texts: Vec<_> = (0..64).map(|text| add(&mut engine, vec![3, 1 + text])).collect();
    let together = |_| {
        let counts = || texts.iter().map(count);
        assert!(counts().max() < Some(2) || counts().min() > Some(0), "{:?}", counts().collect::<Vec<_>>());
        false
    };
    engine.step(together).expect("it runs");
    assert!(texts.iter().all(|text| count(text) > 1), "sixteen were read four times");
    while engine.live() > 0 {
        engine.step(together).expect("it runs");
    }
    // A few do not keep others waiting.
    let texts: Vec<_> = (0..20).map(|text| add(&mut engine, vec![4, 1 + text])).collect();
    engine.step(|_| true).expect("it runs");
    let counts: Vec<usize> = texts.iter().map(count).collect();
    assert!(counts[..16].iter().all(|count| *count > 1) && counts[16..] == [0; 4], "{counts:?}");
}
