#![no_main]
//! A GGUF file: configuration, tokenizer, weights.

use candle::{DType, Device};
use opara_models::decoder::{Config, Decoder, Text};

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("gguf"), |bytes: &[u8]| {
    let path = opara_fuzz::file("model.gguf", bytes);
    let _ = Config::of_gguf(&path);
    if let Ok(text) = Text::of_gguf(&path) {
        let _ = text.encode("ab ab");
    }
    let _ = Decoder::load_gguf(&path, DType::F32, &Device::Cpu, 1, 8);
});
