//! The bytes of a token by itself.

use super::byte_letters::byte;
use super::dependence::{is_byte, Dependence};
use super::text::Text;

impl Text {
    /// The bytes that a token adds to a text, where others stand before it; of a special token its name. Nothing for a token that there
    /// is not. They need not be whole characters.
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        let Some(name) = self.tokenizer.id_to_token(token) else { return Vec::new() };
        let is_added = self.tokenizer.get_added_vocabulary().is_special_token(&name);
        if is_added {
            return name.into_bytes();
        }
        if is_byte(&name) && !matches!(self.dependence, Dependence::Bytes) {
            let byte = u8::from_str_radix(&name[3..5], 16);
            return byte.map_or(Vec::new(), |byte| vec![byte]);
        }
        match &self.dependence {
            Dependence::Bytes => {
                let bytes: Option<Vec<u8>> = name.chars().map(byte).collect();
                bytes.unwrap_or_else(|| name.into_bytes())
            }
            Dependence::First { anchor: (id, before) } => {
                let both = self.decode(&[*id, token]).unwrap_or_default();
                both.strip_prefix(before.as_str()).unwrap_or(&name).as_bytes().to_vec()
            }
            Dependence::All => self.decode(&[token]).unwrap_or(name).into_bytes(),
        }
    }

    /// Whether a token is one of those that stand for something else than text.
    pub fn is_special(&self, token: u32) -> bool {
        let name = self.tokenizer.id_to_token(token);
        name.is_some_and(|name| self.tokenizer.get_added_vocabulary().is_special_token(&name))
    }

    /// A text as what stands between the names of special tokens in it, each with the token behind it.
    pub fn at_special<'a>(&self, text: &'a str) -> Vec<(&'a str, Option<u32>)> {
        let added = self.tokenizer.get_added_vocabulary();
        let special: Vec<(&String, u32)> = added
            .get_vocab()
            .iter()
            .filter(|(name, _)| !name.is_empty() && added.is_special_token(name))
            .map(|(name, id)| (name, *id))
            .collect();
        let (mut parts, mut rest) = (Vec::new(), text);
        loop {
            // The first one, and of those that begin there the longest.
            let found = special.iter().filter_map(|(name, id)| Some((rest.find(name.as_str())?, *name, *id)));
            match found.min_by_key(|(at, name, _)| (*at, std::cmp::Reverse(name.len()))) {
                Some((at, name, id)) => {
                    parts.push((&rest[..at], Some(id)));
                    rest = &rest[at + name.len()..];
                }
                None => {
                    parts.push((rest, None));
                    return parts;
                }
            }
        }
    }
}
