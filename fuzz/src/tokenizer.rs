//! A tokenizer: `tokenizer.json` (`a`), `tokenizer_config.json` (`b`), `special_tokens_map.json` (`c`), and a text (`x`).

use std::cell::RefCell;

use opara_models::decoder::Text;

use crate::folder::Folder;
use crate::parts::{part, split};
use crate::template;

thread_local! {
    static FOLDER: RefCell<Folder> = RefCell::default();
}

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let parts = split(bytes);
    let path = FOLDER.with_borrow_mut(|folder| {
        let tokenizer = part(&parts, b'a').unwrap_or(include_bytes!("../seeds/tokenizer.json"));
        folder.set("tokenizer_config.json", part(&parts, b'b'));
        folder.set("special_tokens_map.json", part(&parts, b'c'));
        folder.put("tokenizer.json", tokenizer)
    });
    let used = || {
        let Ok(text) = Text::beside(&path) else { return false };
        use_text(&text);
        template::render(&text, None);
        if let Some(Ok(said)) = part(&parts, b'x').map(std::str::from_utf8) {
            let tokens = text.encode(said).unwrap_or_default();
            let _ = text.decode(&tokens);
        }
        true
    };
    // `tokenizers` keeps words of each tokenizer for as long as a thread lives.
    std::thread::scope(|scope| scope.spawn(used).join().is_ok_and(|is_read| is_read))
}

/// Texts to tokens and back, as a whole and piece by piece.
pub fn use_text(text: &Text) {
    let _ = text.check_vocabulary(100);
    for said in ["", "ab ab", "hello, \u{1f600} w\u{f6}rld\n\t 12345 <s> \u{0} \u{300}"] {
        let Ok(tokens) = text.encode(said) else { continue };
        let Ok(whole) = text.decode(&tokens) else { continue };
        let mut piece = text.pieces();
        let pieces: opara_models::decoder::Result<Vec<_>> = tokens.iter().map(|token| piece(*token)).collect();
        drop((whole, pieces));
    }
    let _ = text.decode(&[0, 1, 5, u32::MAX]);
}
