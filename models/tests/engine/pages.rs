//! Pages of an engine: few are enough, texts that begin alike share them, and none is lost.

use std::sync::Arc;

use candle::DType;
use fastrand::Rng;
use opara_candle::OparaExecutor;
use opara_models::decoder::Config;
use opara_models::engine::{End, Engine, Options, Request, TextError};

use super::{alone, eager, engine, model, random, request, spoiled, Kept, CONTEXT, CPU};

/// Pages that the longest text takes.
const LONGEST: usize = CONTEXT.div_ceil(64);

/// Texts that grow by several pages.
fn long(rng: &mut Rng) -> Request {
    let mut request = request(rng);
    if rng.bool() {
        request.prompt.truncate(60);
    }
    Request { most: 3 * request.most, ..request }
}

#[test]
fn texts_that_wait_on_the_host_write_what_they_write_alone() {
    let model = model();
    let mut expected = eager(&model, 1);
    let mut aside = 0;
    for (slots, parts, pages, seeds) in
        [(3, 1, 7, 200..206), (4, 2, 8, 206..212), (8, 1, 10, 212..218), (5, 5, 9, 218..222)]
    {
        let mut engine = engine(&model, Options { slots, parts, pages: Some(pages), ..Options::default() });
        seeds.for_each(|seed| aside += random(&mut engine, &mut expected, seed, long));
    }
    assert!(aside > 20, "after {aside} steps texts waited");
}

#[test]
fn the_text_that_came_last_waits_and_the_first_one_does_not() {
    let model = model();
    // Each text grows from one page to five, and there are seven.
    let texts = [1, 2, 3].map(|first| Request { prompt: vec![first; 60], most: 250, ..Request::default() });
    let expected = texts.clone().map(|text| alone(&mut eager(&model, 1), &text).tokens);
    for builder in [None, Some(OparaExecutor::builder())] {
        let mut engine = engine(&model, Options { slots: 3, pages: Some(LONGEST), builder, ..Options::default() });
        let kept = texts.clone().map(|text| {
            let (kept, text_of) = Kept::new(usize::MAX);
            engine.add(text, kept).expect("a slot is free");
            text_of
        });
        let (mut ended, mut waited) = (Vec::new(), 0);
        while engine.live() > 0 {
            engine.step(|_| false).expect("it runs");
            waited = waited.max(engine.aside());
            assert_eq!(engine.free(), 3 - engine.live(), "a text that waits has a slot to come back to");
            for (at, text) in kept.iter().enumerate() {
                if text.lock().expect("no panic").end.is_some() && !ended.contains(&at) {
                    ended.push(at);
                }
            }
        }
        assert!(waited > 0 && engine.eager().is_empty(), "{waited} waited, {:?}", engine.eager());
        assert_eq!(ended, [0, 1, 2]);
        for (text, expected) in kept.iter().zip(&expected) {
            let text = text.lock().expect("no panic");
            assert_eq!((&text.tokens, &text.end), (expected, &Some(End::Length)));
        }
        assert_eq!(engine.pages(), Some((0, LONGEST)));
    }
}

#[test]
fn a_text_that_waits_can_be_cancelled() {
    let model = model();
    let mut engine = engine(&model, Options { slots: 2, pages: Some(LONGEST), ..Options::default() });
    let text = |first| Request { prompt: vec![first; 60], most: 300, ..Request::default() };
    let add = |engine: &mut Engine<_>, first| {
        let (kept, of) = Kept::new(usize::MAX);
        (engine.add(text(first), kept).expect("a slot is free"), of)
    };
    let ((first, _), (last, of_last)) = (add(&mut engine, 1), add(&mut engine, 2));
    while engine.aside() == 0 {
        engine.step(|_| true).expect("it runs");
    }
    assert!(engine.cancel(last) && !engine.cancel(last));
    assert_eq!((engine.live(), engine.aside()), (1, 0));
    let (again, of_again) = add(&mut engine, 2);
    while engine.aside() == 0 {
        engine.step(|_| true).expect("it runs");
    }
    engine.fail("a reason");
    assert_eq!((engine.live(), engine.aside(), engine.pages()), (0, 0, Some((0, LONGEST))));
    assert!(!engine.cancel(first) && !engine.cancel(again));
    assert_eq!(of_last.lock().expect("no panic").end, None);
    assert_eq!(of_again.lock().expect("no panic").end, Some(End::Failed("a reason".to_owned())));
    assert_eq!(alone(&mut engine, &text(3)).tokens, alone(&mut eager(&model, 1), &text(3)).tokens);
}

/// One that comes while the first one's prompt is read does not read the same parts again.
#[test]
fn prompts_that_come_together_share_what_the_first_one_reads() {
    let model = model();
    let long: Vec<u32> = (0..300).map(|at| at * 5 % 96).collect();
    let of = |own: &[u32], tenant| Request { prompt: [&long, own].concat(), most: 40, tenant, ..Request::default() };
    let texts = [of(&[1], 0), of(&[2, 3], 0), of(&[], 0), of(&[1], 1)];
    let expected = texts.clone().map(|text| alone(&mut eager(&model, 1), &text).tokens);
    let mut engine = engine(&model, Options { slots: 4, ..Options::default() });
    let kept = texts.map(|text| {
        let (kept, of) = Kept::new(usize::MAX);
        engine.add(text, kept).expect("a slot is free");
        of
    });
    let mut most = 0;
    while engine.live() > 0 {
        engine.step(|_| true).expect("it runs");
        most = most.max(engine.pages().expect("pages").0);
    }
    let got = kept.map(|text| std::mem::take(&mut *text.lock().expect("no panic")));
    assert_eq!([0, 1, 2, 3].map(|at| got[at].cached), [0, 256, 256, 0]);
    assert_eq!(got.map(|text| text.tokens), expected);
    // Two tenants' four pages, and two or less of each text's own.
    assert!(most <= 2 * 4 + 4 * 2, "{most} pages");
}

#[test]
fn a_page_that_was_anothers_is_not_seen() {
    let config = Config { max_positions: 512, ..Config::tiny() };
    let text = Request { prompt: (0..150).map(|at| at * 7 % 90).collect(), most: 60, ..Request::default() };
    let whole = Arc::new(spoiled::model(&config, CONTEXT, &[], DType::F32, CPU));
    let expected = alone(&mut eager(&whole, 2), &text).tokens;
    let token = (0..96).find(|token| !expected.contains(token) && !text.prompt.contains(token)).expect("a token");
    let model = Arc::new(spoiled::model(&config, CONTEXT, &[token], DType::F32, CPU));
    let strange = Request { prompt: vec![token; 200], most: 40, ..Request::default() };
    for builder in [None, Some(OparaExecutor::builder())] {
        let mut engine = engine(&model, Options { slots: 2, pages: Some(LONGEST), builder, ..Options::default() });
        for _ in 0..3 {
            assert!(matches!(alone(&mut engine, &strange).end, Some(End::Failed(_))));
            assert_eq!(alone(&mut engine, &text).tokens, expected);
        }
    }
}

#[test]
fn too_few_pages_are_refused_with_the_numbers() {
    let error = Engine::new(model(), Options { pages: Some(LONGEST - 1), ..Options::default() }).err();
    assert!(matches!(error, Some(TextError::FewPages { pages: 6, needed: 7 })), "{error:?}");
    assert!(Engine::new(model(), Options { pages: Some(LONGEST), ..Options::default() }).is_ok());
}
