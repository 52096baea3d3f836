//! How a process of a target starts.

use std::panic::{set_hook, take_hook};
use std::path::Path;

use crate::seeds;

/// Ends the process on a panic of any thread. Writes the sound inputs into the folder `FUZZ_SEEDS`, if that is set, and a dictionary
/// beside it, with `.dict` behind its name.
pub fn start(target: &str) {
    // libFuzzer's own hook would take panics for findings that the library catches: those of `tokenizers`, whose damaged files it
    // refuses so.
    drop(take_hook());
    let report = take_hook();
    set_hook(Box::new(move |panic| {
        let is_caught = panic.location().is_some_and(|location| location.file().contains("/tokenizers-"));
        if !is_caught {
            report(panic);
            std::process::abort();
        }
    }));
    let Some(folder) = std::env::var_os("FUZZ_SEEDS") else { return };
    let (folder, seeds) = (Path::new(&folder), seeds::of(target));
    let words = seeds::words::dictionary(&seeds::words::of(target, &seeds));
    std::fs::write(folder.with_extension("dict"), words).expect("the folder takes a dictionary");
    for (number, seed) in seeds.into_iter().enumerate() {
        std::fs::write(folder.join(format!("{number:03}")), seed).expect("the folder takes seeds");
    }
}
