#![no_main]
//! A decoder's `config.json`.

use opara_models::decoder::Config;

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("config"), |bytes: &[u8]| {
    let Ok(json) = serde_json::from_slice(bytes) else { return };
    let _ = Config::from_json(&json);
});
