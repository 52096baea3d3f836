//! Safetensors files as they are (`a`, `b`) or as a line of JSON with the tensors behind it (`A`, `B`), whose lengths are set right; the
//! index of the two (`i`); the `config.json`, for its quantization (`c`).

use std::cell::RefCell;

use opara_weights::Checkpoint;

use crate::folder::Folder;
use crate::parts::{part, split};
use crate::weights::read_weights;

/// The most bytes of tensors that are made for a header.
const MOST: u64 = 1 << 16;

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::default();
}

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let parts = split(bytes);
    let file = |whole: u8| {
        let made = part(&parts, whole.to_ascii_uppercase()).map(made);
        made.or_else(|| part(&parts, whole).map(<[u8]>::to_vec))
    };
    let (one, two, index) = (file(b'a').unwrap_or_default(), file(b'b'), part(&parts, b'i'));
    let found = FOLDER.with_borrow_mut(|folder| {
        folder.put("config.json", part(&parts, b'c').unwrap_or(b"{}"));
        // A single file comes before an index.
        folder.set("model.safetensors", index.is_none().then_some(&*one));
        folder.set("model.safetensors.index.json", index);
        folder.set("one.safetensors", index.map(|_| &*one));
        folder.set("two.safetensors", two.as_deref());
        Checkpoint::find(&folder.path().display().to_string())
    });
    let Ok(checkpoint) = found else { return false };
    read_weights(&checkpoint.allow_unread(bytes.len().is_multiple_of(2)))
}

/// A file with this header. The tensors' bytes are repeated up to the end that the header declares.
fn made(part: &[u8]) -> Vec<u8> {
    let at = part.iter().position(|byte| *byte == b'\n').unwrap_or(part.len());
    let (header, data) = (&part[..at], part.get(at + 1..).filter(|data| !data.is_empty()).unwrap_or(&[0x3c]));
    let json = serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(header).unwrap_or_default();
    let ends = json.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    let length = ends.max().unwrap_or(0).min(MOST) as usize;
    let data = data.iter().cycle().take(length).copied();
    (header.len() as u64).to_le_bytes().into_iter().chain(header.iter().copied()).chain(data).collect()
}
