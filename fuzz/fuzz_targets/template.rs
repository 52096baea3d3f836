#![no_main]
//! A chat template: parsed and rendered with two messages.

use opara_models::decoder::{Conversation, Message, Text};

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("template"), |bytes: &[u8]| {
    let tokenizer = opara_fuzz::file("tokenizer.json", include_bytes!("../tokenizer.json"));
    opara_fuzz::file("chat_template.jinja", bytes);
    let Ok(text) = Text::beside(&tokenizer) else { return };
    let messages = ["system", "user"].map(|role| Message::new(role, "hello")).to_vec();
    let _ = text.encode_chat(&Conversation { messages, ..Conversation::default() });
});
