//! The fuzz targets as one program of libFuzzer: `FUZZ_TARGET` says which of them it runs.
#![no_main]

use std::sync::LazyLock;

use opara_fuzz::{start, Target, TARGETS};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|(known, _)| *known == name);
    let (name, run) =
        found.unwrap_or_else(|| panic!("FUZZ_TARGET is `{name}`: known are {:?}", TARGETS.map(|(known, _)| known)));
    start(name);
    run
});

libfuzzer_sys::fuzz_target!(
    init: {
        LazyLock::force(&TARGET);
    },
    |bytes: &[u8]| {
        TARGET(bytes);
    }
);
