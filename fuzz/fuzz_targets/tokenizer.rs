#![no_main]
//! A tokenizer: the first byte chooses which of its files the rest is.

use opara_models::decoder::Text;

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("tokenizer"), |bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let (tokenizer, settings): (&[u8], &[u8]) = match first % 2 {
        0 => (rest, b"{}"),
        _ => (include_bytes!("../tokenizer.json"), rest),
    };
    opara_fuzz::file("tokenizer_config.json", settings);
    let Ok(text) = Text::beside(&opara_fuzz::file("tokenizer.json", tokenizer)) else { return };
    let tokens = text.encode("hello, \u{1f600} w\u{f6}rld").unwrap_or_default();
    let _ = text.decode(&tokens);
    let _ = text.decode(&[0, 1, 5, u32::MAX]);
});
