#![no_main]
//! A weights file of safetensors.

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("safetensors"), |bytes: &[u8]| opara_fuzz::read_weights(&opara_fuzz::file("model.safetensors", bytes)));
