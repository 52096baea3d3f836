//! A folder of sentence-transformers: parts of an input take the place of its files. A model that is read must embed.

use std::cell::RefCell;

use candle::{DType, Device};
use opara_serve::batch::Buckets;
use opara_serve::embed::{EmbedError, TextModel};

use crate::folder::Folder;
use crate::parts::{part, split};
use crate::seeds::sentences::files;

/// The files by the letters of their parts.
pub const FILES: [(u8, &str); 12] = [
    (b'm', "modules.json"),
    (b'c', "config.json"),
    (b't', "tokenizer.json"),
    (b'k', "tokenizer_config.json"),
    (b'b', "sentence_bert_config.json"),
    (b's', "config_sentence_transformers.json"),
    (b'p', "1_Pooling/config.json"),
    (b'd', "2_Dense/config.json"),
    (b'w', "2_Dense/model.safetensors"),
    (b'l', "3_LayerNorm/config.json"),
    (b'v', "3_LayerNorm/model.safetensors"),
    (b'n', "4_Normalize/config.json"),
];

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::new(whole());
}

/// A sound folder.
pub fn whole() -> Folder {
    let mut folder = Folder::new();
    for (name, bytes) in files() {
        folder.put(name, bytes);
    }
    folder
}

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let parts = split(bytes);
    FOLDER.with_borrow_mut(|folder| {
        let sound = files();
        for (letter, name) in FILES {
            let own = sound.iter().find(|(of, _)| *of == name).map(|(_, bytes)| bytes.as_slice());
            // A part that is empty stands for a file that is missing.
            let given = part(&parts, letter).map(|part| Some(part).filter(|part| !part.is_empty()));
            folder.set(name, given.unwrap_or(own));
        }
        embed(folder, bytes.len().is_multiple_of(2)).is_ok()
    })
}

fn embed(folder: &Folder, allow_unread: bool) -> Result<(), EmbedError> {
    let model = TextModel::open_with(folder.path(), allow_unread)?.cut(true);
    let texts = ["the cat sat", "", "a \u{e9}\u{301}\u{4e16} [MASK] bird under", "dog ".repeat(40).trim_end()]
        .map(String::from);
    let _ = model.tokenizer().encode(&texts);
    let Ok(buckets) = Buckets::new([1, 2], [model.limit().min(8)], 16) else { return Ok(()) };
    let embedder = model.embedder(&Device::Cpu, DType::F32, &buckets)?;
    for text in &texts {
        if let Ok(vectors) = embedder.embed(&[text]) {
            assert_eq!(vectors[0].len(), model.width());
        }
    }
    Ok(())
}
