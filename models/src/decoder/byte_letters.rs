//! Bytes as the letters of a vocabulary.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The letter that a byte has in vocabularies of bytes, as in GPT-2's: itself if it can be printed.
pub(super) fn letter(byte: u8) -> char {
    let is_printed = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match is_printed(byte) {
        true => char::from(byte),
        false => {
            let others = (0..byte).filter(|byte| !is_printed(*byte)).count() as u32;
            char::from_u32(256 + others).unwrap_or_default()
        }
    }
}

/// The byte of a letter, if it stands for one.
pub(super) fn byte(letter: char) -> Option<u8> {
    static BYTES: LazyLock<BTreeMap<char, u8>> =
        LazyLock::new(|| (0..=255).map(|byte| (self::letter(byte), byte)).collect());
    BYTES.get(&letter).copied()
}
