#![no_main]
//! A weights file of PyTorch: the first byte chooses whether the rest is the file, or the pickle in a sound zip file.

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

libfuzzer_sys::fuzz_target!(init: opara_fuzz::seeds::write("pickle"), |bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let bytes = if first % 2 == 0 { rest.to_vec() } else { zipped(rest) };
    opara_fuzz::read_weights(&opara_fuzz::file("model.pth", &bytes));
});

/// A file as `torch.save` writes it: the pickle, and storages of 64 bytes.
fn zipped(pickle: &[u8]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("data.pkl", pickle), ("data/0", &[1; 64]), ("data/1", &[2; 64])] {
        zip.start_file(format!("archive/{name}"), stored).expect("a sound name");
        zip.write_all(bytes).expect("memory");
    }
    zip.finish().expect("a zip file").into_inner()
}
