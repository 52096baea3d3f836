//! Sentencepiece's pairs, merged as llama.cpp merges them: that pair first whose token has the highest score.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use tokenizers::{NormalizerWrapper, OffsetReferential, OffsetType, Tokenizer};

/// What stands for a space in tokens.
const SPACE: &str = "▁";

/// A vocabulary with scores. `tokenizers` ranks pairs, and tokens of one score are no ranks: the leftmost comes first.
pub(super) struct Sentencepiece {
    ids: HashMap<String, u32>,
    /// One for each token.
    scores: Vec<f32>,
    /// Tokens of single bytes, for characters that are no token.
    bytes: Vec<Option<u32>>,
    /// Whether a space comes before a text, and before what follows a token that the text is searched for.
    adds_space: bool,
}

/// A part of a text that is a token, or a character.
struct Symbol {
    start: usize,
    /// In bytes; nothing of a part that another one has taken.
    len: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two parts that are a token together.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Sentencepiece {
    /// Of tokens with their scores. The error is the byte that some texts need and that is no token.
    pub fn new(tokens: &[String], scores: Vec<f32>, adds_space: bool) -> Result<Self, u8> {
        let ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
        let of_byte = |byte: u8| ids.get(&format!("<0x{byte:02X}>")).copied();
        let bytes: Vec<_> = (0..=255).map(of_byte).collect();
        // A letter that is a token needs no byte.
        let is_token = |byte: u8| byte.is_ascii() && ids.contains_key(char::from(byte).encode_utf8(&mut [0; 4]));
        match (0..=255u8).find(|byte| bytes[usize::from(*byte)].is_none() && !is_token(*byte)) {
            Some(byte) => Err(byte),
            // Zero has one sign here.
            None => Ok(Self { ids, scores: scores.into_iter().map(|score| score + 0.).collect(), bytes, adds_space }),
        }
    }

    /// The tokens of a text, in which `tokenizer` finds those that texts are searched for.
    pub fn encode(&self, text: &str, tokenizer: &Tokenizer) -> Vec<u32> {
        let found = tokenizer.get_added_vocabulary().extract_and_normalize(None::<&NormalizerWrapper>, text);
        let (mut ids, mut is_start) = (Vec::new(), true);
        for (part, _, tokens) in found.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None if part.is_empty() => continue,
                None => {
                    let space = if is_start && self.adds_space { SPACE } else { "" };
                    self.merge(&format!("{space}{}", part.replace(' ', SPACE)), &mut ids);
                }
            }
            is_start = tokens.is_some();
        }
        ids
    }

    /// Adds the tokens of a text to `ids`.
    fn merge(&self, text: &str, ids: &mut Vec<u32>) {
        let characters = text.char_indices().enumerate();
        let mut symbols: Vec<Symbol> = characters
            .map(|(at, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                before: at.checked_sub(1),
                after: (start + c.len_utf8() < text.len()).then_some(at + 1),
            })
            .collect();
        let mut pairs: BinaryHeap<Pair> =
            (1..symbols.len()).filter_map(|right| self.pair(text, &symbols, Some(right - 1), Some(right))).collect();
        while let Some(Pair { left, right, len, .. }) = pairs.pop() {
            let (start, taken) = (symbols[left].len, symbols[right].len);
            if start == 0 || taken == 0 || start + taken != len {
                continue;
            }
            let after = symbols[right].after;
            (symbols[left].len, symbols[left].after) = (len, after);
            symbols[right].len = 0;
            if let Some(after) = after {
                symbols[after].before = Some(left);
            }
            pairs.extend(self.pair(text, &symbols, symbols[left].before, Some(left)));
            pairs.extend(self.pair(text, &symbols, Some(left), after));
        }
        for Symbol { start, len, .. } in symbols.iter().filter(|symbol| symbol.len > 0) {
            let part = &text[*start..start + len];
            match self.ids.get(part) {
                Some(id) => ids.push(*id),
                None => ids.extend(part.bytes().filter_map(|byte| self.bytes[usize::from(byte)])),
            }
        }
    }

    /// Two parts side by side, if they are a token.
    fn pair(&self, text: &str, symbols: &[Symbol], left: Option<usize>, right: Option<usize>) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
        let id = *self.ids.get(&text[start..start + len])?;
        Some(Pair { score: *self.scores.get(id as usize)?, left, right, len })
    }
}
