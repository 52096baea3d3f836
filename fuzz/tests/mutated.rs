//! A short run of every target without coverage: its sound inputs, which are read, inputs of earlier findings, and changes of both. Each
//! is answered or refused; a panic of any thread, or more memory than [`opara_fuzz`] allows, fails.

use std::panic::set_hook;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use opara_fuzz::mutation::Mutator;
use opara_fuzz::seeds::{self, words};
use opara_fuzz::TARGETS;

/// Changed inputs of each target: `OPARA_CASES` says how many, where more are wanted.
fn cases() -> usize {
    std::env::var("OPARA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1_000)
}

/// Panics that nobody is to see.
static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn every_input_is_answered_or_refused() -> std::io::Result<()> {
    set_hook(Box::new(|panic| {
        // The library catches those of `tokenizers`, on damaged files.
        if !panic.location().is_some_and(|location| location.file().contains("/tokenizers-")) {
            eprintln!("{panic}");
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
    }));
    for (name, run) in TARGETS {
        let seeds = seeds::of(name);
        let is_read = |input: &[u8]| {
            let is_read = run(input);
            assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{name}: {}", input.escape_ascii());
            is_read
        };
        let refused: Vec<_> =
            seeds.iter().filter(|seed| !is_read(seed)).map(|seed| seed.escape_ascii().to_string()).collect();
        assert!(refused.is_empty() && !seeds.is_empty(), "{name}: {} of {}: {refused:#?}", refused.len(), seeds.len());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(name);
        let mut inputs = seeds;
        for file in std::fs::read_dir(folder).into_iter().flatten() {
            let input = std::fs::read(file?.path())?;
            is_read(&input);
            inputs.push(input);
        }
        let words = words::of(name, &inputs);
        let mut mutator = Mutator::new(inputs, words, 54);
        for _ in 0..cases() {
            is_read(&mutator.input());
        }
    }
    Ok(())
}
