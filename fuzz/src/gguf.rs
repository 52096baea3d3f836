//! A GGUF file (`a`), and the second of a model that is split (`b`): configuration, tokenizer, chat template, weights. A model that loads
//! must run.

use std::cell::RefCell;
use std::path::Path;

use candle::{DType, Device, Tensor};
use opara_models::decoder::{Config, Decoder, GgufFile, Result, Text};

use crate::folder::Folder;
use crate::parts::{part, split};
use crate::{template, tokenizer};

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::default();
}

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    // A file that has no marks is the first part.
    let parts = split(bytes);
    let path = FOLDER.with_borrow_mut(|folder| {
        folder.set("m-00002-of-00002.gguf", part(&parts, b'b'));
        folder.put("m-00001-of-00002.gguf", part(&parts, b'a').unwrap_or_default())
    });
    let is_allowed = bytes.len().is_multiple_of(2);
    let file = || GgufFile::from(&path).allow_unread(is_allowed);
    let _ = Config::of_gguf(file());
    if let Ok(text) = Text::of_gguf(&path) {
        tokenizer::use_text(&text);
        template::render(&text, None);
    }
    write(&path, is_allowed).is_ok()
}

fn write(path: &Path, is_allowed: bool) -> Result<()> {
    let model = Decoder::load_gguf(GgufFile::from(path).allow_unread(is_allowed), DType::F32, &Device::Cpu, 1, 4)?;
    let last = model.config().vocab as u32 - 1;
    let hidden = model.forward(&Tensor::new(&[[0, last, 0]], &Device::Cpu)?, &model.cache(1)?)?;
    model.logits(&hidden)?;
    Ok(())
}
