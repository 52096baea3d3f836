#![no_main]
//! A chat template: parsed and rendered with two messages.

use opara_models::decoder::{Message, Text};

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("template"), |bytes: &[u8]| {
    let tokenizer = opara_fuzz::file("tokenizer.json", include_bytes!("../tokenizer.json"));
    opara_fuzz::file("chat_template.jinja", bytes);
    let Ok(text) = Text::beside(&tokenizer) else { return };
    let _ = text.encode_chat(&["system", "user"].map(|role| Message { role: role.into(), content: "hello".into() }));
});
