//! Texts that the server's `tiny-decoder` writes, by an engine in this process, as JSON: what a server's answers are compared with.
//!
//!     cargo run --release -p opara-serve --example texts
//!
//! Each is written alone, without the server's batch and its graphs.

use std::sync::Arc;

use anyhow::Result;
use candle::{DType, Device};
use opara_models::decoder::{Decoder, Message};
use opara_models::engine::{Engine, Options, Request, Sampling};
use opara_serve::generate::TextDecoder;
use serde_json::{json, Value};

/// Tokens of each text at most.
const TOKENS: usize = 48;

fn main() -> Result<()> {
    let source = TextDecoder::random(0)?;
    let (config, text) = (source.config(), source.text());
    let model = Decoder::load(opara_weights::seeded(0, DType::F32, &Device::Cpu), config, 512)?;
    let model = Arc::new(model);
    let written = |prompt: Vec<u32>, sampling: Sampling| -> Result<(String, usize)> {
        let mut engine = Engine::new(model.clone(), Options::default())?;
        let request = Request { prompt, most: TOKENS, ends: config.eos.clone(), sampling, ..Request::default() };
        let tokens = engine.generate(&[request], |_, _| ())?.remove(0);
        Ok((text.decode(&tokens)?, tokens.len()))
    };
    let long = "She bakes bread on Sundays. ".repeat(6);
    let prompts = ["A cat sleeps on the warm windowsill.", "Ünïcödé, 日本語, ✓", "a", long.trim()];
    let mut expected = Vec::new();
    for (seed, prompt) in (1u64..).zip(prompts) {
        for temperature in [0., 0.8] {
            let sampling = Sampling { temperature, seed, top_p: 0.95, ..Sampling::default() };
            let (plain, tokens) = written(text.encode(prompt)?, sampling)?;
            let message = Message::new("user", prompt);
            let (chat, chat_tokens) = written(text.encode_chat(&vec![message].into())?, sampling)?;
            let of: Value = json!({
                "prompt": prompt, "temperature": temperature, "top_p": 0.95, "seed": seed, "max_tokens": TOKENS,
                "text": plain, "tokens": tokens, "chat": chat, "chat_tokens": chat_tokens,
            });
            expected.push(of);
        }
    }
    println!("{}", json!(expected));
    Ok(())
}
