//! Values of JSON in a text, as it comes.

use super::super::marks::Beginning;

/// Where a text stands in a value of JSON. It says where the value ends, and not whether it is sound.
#[derive(Debug, Default)]
struct Scanner {
    /// Of objects and lists.
    depth: usize,
    is_string: bool,
    is_escaped: bool,
}

impl Scanner {
    /// Takes a letter. True if an object, a list or a string that nothing is around ends with it.
    fn take(&mut self, letter: char) -> bool {
        if self.is_string {
            let is_end = letter == '"' && !self.is_escaped;
            self.is_escaped = letter == '\\' && !self.is_escaped;
            self.is_string = !is_end;
            return is_end && self.depth == 0;
        }
        match letter {
            '"' => self.is_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// The string of JSON that a text begins with.
pub(super) fn string(text: &str) -> Beginning<String> {
    match text.chars().next() {
        None => return Beginning::May,
        Some('"') => {}
        Some(_) => return Beginning::No,
    }
    value(text).then(|(), length| match serde_json::from_str(&text[..length]) {
        Ok(string) => Beginning::Is(string, length),
        Err(_) => Beginning::No,
    })
}

/// The value of JSON that a text begins with, which is known to have ended.
pub(super) fn value(text: &str) -> Beginning<()> {
    if text.starts_with(['{', '[', '"']) {
        let mut scanner = Scanner::default();
        let end = text.char_indices().find(|(_, letter)| scanner.take(*letter));
        return end.map_or(Beginning::May, |(at, letter)| Beginning::Is((), at + letter.len_utf8()));
    }
    // A number or a word.
    match text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-.".contains(letter)) {
        Some(0) => Beginning::No,
        Some(end) => Beginning::Is((), end),
        None => Beginning::May,
    }
}

/// Reads arguments that are JSON.
#[derive(Debug)]
pub(super) struct Json {
    stage: Stage,
    scanner: Scanner,
    /// The object that the arguments are a field of.
    around: Option<Scanner>,
    has_told: bool,
}

#[derive(Debug)]
enum Stage {
    /// Within an object.
    Object,
    /// Within a string, whose letters are an object. `true`: its first quote came.
    Text(bool),
    /// Behind them, in the object around.
    Around,
}

impl Json {
    /// Arguments by themselves.
    pub fn value() -> Self {
        Self { stage: Stage::Object, scanner: Scanner::default(), around: None, has_told: false }
    }

    /// Arguments that are a field of an object, perhaps as a text.
    pub fn field(is_text: bool) -> Self {
        let stage = if is_text { Stage::Text(false) } else { Stage::Object };
        Self { stage, around: Some(Scanner { depth: 1, ..Scanner::default() }), ..Self::value() }
    }

    /// Takes what is certain of a text, and says whether the call ends there.
    pub fn read(&mut self, held: &mut String, told: &mut String) -> bool {
        let (mut taken, mut has_ended) = (0, false);
        while let (false, Some(letter)) = (has_ended, held[taken..].chars().next()) {
            match self.stage {
                Stage::Object => {
                    if self.scanner.is_string && letter.is_control() && !self.scanner.is_escaped {
                        // Models write lines within strings, which JSON does not have.
                        told.push_str(serde_json::Value::from(letter.to_string()).to_string().trim_matches('"'));
                    } else {
                        told.push(letter);
                    }
                    taken += letter.len_utf8();
                    if self.scanner.take(letter) {
                        has_ended = self.around.is_none();
                        self.stage = Stage::Around;
                    }
                }
                Stage::Text(false) => {
                    taken += letter.len_utf8();
                    self.stage = Stage::Text(true);
                }
                Stage::Text(true) => {
                    let (piece, length) = match unescaped(&held[taken..]) {
                        Unescaped::Letter(letter, length) => (Some(letter), length),
                        Unescaped::End => (None, 1),
                        Unescaped::May => break,
                    };
                    taken += length;
                    match piece {
                        Some(letter) => {
                            self.has_told |= !letter.is_whitespace();
                            told.push(letter);
                        }
                        None => {
                            if !self.has_told {
                                told.push_str("{}");
                            }
                            self.stage = Stage::Around;
                        }
                    }
                }
                Stage::Around => {
                    taken += letter.len_utf8();
                    has_ended = self.around.as_mut().is_none_or(|around| around.take(letter));
                }
            }
        }
        held.drain(..taken);
        has_ended
    }
}

enum Unescaped {
    /// With the bytes that it is written by.
    Letter(char, usize),
    /// The quote that ends the string.
    End,
    /// More is needed.
    May,
}

/// The first letter within a string of JSON.
fn unescaped(text: &str) -> Unescaped {
    let mut letters = text.chars();
    let letter = match letters.next() {
        None => return Unescaped::May,
        Some('"') => return Unescaped::End,
        Some('\\') => match letters.next() {
            None => return Unescaped::May,
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('u') => {
                let unit = |at: usize| u16::from_str_radix(text.get(at..at + 4)?, 16).ok();
                // A letter beyond the first plane has two parts.
                let Some(first) = unit(2) else { return wrong(text, 6) };
                if !(0xd800..0xdc00).contains(&first) {
                    return Unescaped::Letter(char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER), 6);
                }
                let rest = &text[6..];
                if "\\u".starts_with(rest) || rest.starts_with("\\u") && rest.len() < 6 {
                    return Unescaped::May;
                }
                let Some(second) = unit(8).filter(|_| rest.starts_with("\\u")) else {
                    return Unescaped::Letter(char::REPLACEMENT_CHARACTER, 6);
                };
                let letter = char::decode_utf16([first, second]).next().and_then(Result::ok);
                return Unescaped::Letter(letter.unwrap_or(char::REPLACEMENT_CHARACTER), 12);
            }
            Some(letter) => return Unescaped::Letter(letter, 1 + letter.len_utf8()),
        },
        Some(letter) => return Unescaped::Letter(letter, letter.len_utf8()),
    };
    Unescaped::Letter(letter, 2)
}

/// An escape that is not sound once all its bytes are there.
fn wrong(text: &str, bytes: usize) -> Unescaped {
    match text.len() < bytes {
        true => Unescaped::May,
        false => Unescaped::Letter(char::REPLACEMENT_CHARACTER, 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is told of a text in pieces of random sizes, and what is left of it.
    fn read(mut json: Json, text: &str, seed: u64) -> (String, Option<String>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut letters, mut held, mut told) = (text.chars().peekable(), String::new(), String::new());
        while letters.peek().is_some() {
            held.extend(letters.by_ref().take(rng.usize(1..5)));
            if json.read(&mut held, &mut told) {
                held.extend(letters);
                return (told, Some(held));
            }
        }
        (told, None)
    }

    #[test]
    fn values_end_where_they_do_however_they_come() {
        let of = |text: &str| serde_json::Value::from(text).to_string();
        let object = r#"{"a": [1, "}]\"", {"b": "\\"}], "c": null}"#;
        let letters = "{\"a\": \"é \u{1f600} \\n \"}";
        for seed in 0..100 {
            assert_eq!(read(Json::value(), &format!("{object} rest"), seed), (object.into(), Some(" rest".into())));
            let field = format!(r#"{object}, "id": "}}"}}]"#);
            assert_eq!(read(Json::field(false), &field, seed), (object.into(), Some("]".into())));
            let field = format!("{}}}]", of(letters));
            assert_eq!(read(Json::field(true), &field, seed), (letters.into(), Some("]".into())));
            assert_eq!(read(Json::field(true), r#"" "}]"#, seed).0.trim(), "{}");
            assert_eq!(read(Json::field(true), r#""\u00e9\ud83d\ude00\/\ud83dx"}"#, seed).0, "é😀/\u{fffd}x");
            assert_eq!(read(Json::value(), "{\"a\": \"two\nlines\"}", seed).0, r#"{"a": "two\nlines"}"#);
            assert_eq!(read(Json::value(), r#"{"a": "#, seed), (r#"{"a": "#.into(), None));
        }
    }
}
