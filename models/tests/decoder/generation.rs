//! Texts of an engine and of transformers, their ends, and their room.

use std::sync::Arc;

use opara_models::decoder::DecoderError;
use opara_models::engine::{Engine, Options, Request};

use super::*;

fn requests(prompts: &[Vec<u32>], most: usize) -> Vec<Request> {
    prompts.iter().map(|prompt| Request { prompt: prompt.clone(), most, ..Request::default() }).collect()
}

#[test]
fn greedy_texts_are_those_of_transformers() -> Result<()> {
    // If a text outgrows the context of LongRoPE's short factors, transformers encodes it again with the long ones.
    for name in MODELS.into_iter().filter(|name| *name != "phi3-long") {
        let reference = Reference::of(name);
        let prompts = reference.ids().narrow(1, 0, 10)?.to_vec2::<u32>()?;
        let expected = reference.tensors["generated"].to_dtype(DType::U32)?.to_vec2::<u32>()?;
        let requests = requests(&prompts, expected[0].len());
        let model = Arc::new(reference.model());
        for (slots, parts) in [(1, 1), (2, 2)] {
            let mut eager =
                Engine::new(model.clone(), Options { slots, parts, ..Options::default() }).expect("an engine");
            assert_eq!(eager.generate(&requests, |_, _| ()).expect("texts"), expected, "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_text_ends_where_an_end_token_comes() {
    let model = Arc::new(load(&Config::tiny(), 200));
    let mut engine = Engine::new(model, Options { slots: 2, ..Options::default() }).expect("an engine");
    let mut requests = requests(&[vec![3, 4], vec![50, 60, 70]], 30);
    let whole = engine.generate(&requests, |_, _| ()).expect("texts");
    let end = whole[0][7];
    requests.iter_mut().for_each(|request| request.ends = vec![end]);
    let cut = engine.generate(&requests, |_, _| ()).expect("texts");
    for (cut, whole) in cut.iter().zip(&whole) {
        let expected = whole.iter().position(|&token| token == end).unwrap_or(whole.len());
        assert_eq!(cut[..], whole[..expected]);
    }
    assert!(cut[0].len() < 8);
}

#[test]
fn texts_for_which_there_is_no_room_are_refused() {
    let cache = Config::tiny().fits(1 << 30, 256, DType::F32, CPU).expect_err("no room");
    assert!(matches!(cache, DecoderError::NoRoom { .. }), "{cache}");
    let context = Config::tiny().fits(1, 257, DType::F32, CPU).expect_err("too long");
    assert!(matches!(context, DecoderError::ContextTooLong { context: 257, most: 256 }), "{context}");
}
