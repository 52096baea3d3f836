//! A short run of every target without coverage: its sound inputs, inputs of earlier findings, and changes of both. Each is answered or
//! refused; a panic of any thread, or more memory than [`opara_fuzz`] allows, fails.

use std::panic::set_hook;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use opara_fuzz::mutation::Mutator;
use opara_fuzz::seeds::{self, words};
use opara_fuzz::TARGETS;

/// Changed inputs of each target: `OPARA_CASES` says how many, where more are wanted.
fn cases() -> usize {
    std::env::var("OPARA_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
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
        let mut inputs = seeds::of(name);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(name);
        for file in std::fs::read_dir(folder).into_iter().flatten() {
            inputs.push(std::fs::read(file?.path())?);
        }
        assert!(!inputs.is_empty(), "{name} has no sound inputs");
        let words = words::of(name, &inputs);
        let mut mutator = Mutator::new(inputs.clone(), words, 54);
        let changed = std::iter::repeat_with(|| mutator.input()).take(cases());
        for input in inputs.into_iter().chain(changed) {
            run(&input);
            assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{name}: {}", input.escape_ascii());
        }
    }
    Ok(())
}
