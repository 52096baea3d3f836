//! A weights file of PyTorch: the first byte says whether the rest is the file, the pickle in a sound zip file, or the pickles of a file
//! of the older format.

use std::cell::RefCell;
use std::io::{Cursor, Write};

use opara_weights::Checkpoint;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::folder::Folder;
use crate::weights::read_weights;

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::default();
}

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return false };
    let bytes = match first % 3 {
        0 => rest.to_vec(),
        1 => zipped(rest),
        _ => [b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", rest].concat(),
    };
    let path = FOLDER.with_borrow_mut(|folder| folder.put("model.pth", &bytes));
    let Ok(checkpoint) = Checkpoint::find(&path.display().to_string()) else { return false };
    read_weights(&checkpoint)
}

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
