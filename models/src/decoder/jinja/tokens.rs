//! The tokens of a template's tags.

/// Brackets inside of each other. The parser reads fewer.
const MOST_BRACKETS: usize = 150;

/// Tokens without a comma between them: the parser takes the square of their number.
const MOST_CHAIN: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    Text,
    Number,
    Sign,
}

/// A token in a tag, and the white space before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    pub space: &'a str,
    pub text: &'a str,
}

impl<'a> Token<'a> {
    /// The name that it is, or that it may be the key of.
    pub fn named(&self) -> Option<&'a str> {
        match self.kind {
            Kind::Name => Some(self.text),
            Kind::Text => Some(&self.text[1..self.text.len() - 1]),
            Kind::Number | Kind::Sign => None,
        }
    }

    pub fn sign(&self) -> Option<&'a str> {
        (self.kind == Kind::Sign).then_some(self.text)
    }

    pub fn name(&self) -> Option<&'a str> {
        (self.kind == Kind::Name).then_some(self.text)
    }

    pub fn told(&self) -> String {
        [self.space, self.text].concat()
    }
}

/// The tokens between the marks of a tag, and the tag's length.
///
/// Nothing that does not end, that is too deep or too long.
pub(super) fn tokens(tag: &str) -> Option<(Vec<Token<'_>>, usize)> {
    let close = if tag.starts_with("{{") { "}}" } else { "%}" };
    let mut at = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let (mut tokens, mut depth, mut chain) = (Vec::new(), 0usize, 0);
    loop {
        let space = tag[at..].len() - tag[at..].trim_start().len();
        let (space, rest) = tag[at..].split_at(space);
        let start = at + space.len();
        if depth == 0 {
            let marks = [close.to_owned(), format!("-{close}"), format!("+{close}")];
            if let Some(mark) = marks.iter().find(|mark| rest.starts_with(mark.as_str())) {
                return Some((tokens, start + mark.len()));
            }
        }
        let first = rest.chars().next()?;
        let word = |is: fn(char) -> bool| rest.find(|c: char| !is(c)).unwrap_or(rest.len());
        let (kind, length) = match first {
            '\'' | '"' => (Kind::Text, end_of_text(rest)?),
            c if c.is_ascii_digit() => (Kind::Number, number(rest)),
            c if c == '_' || c.is_alphabetic() => (Kind::Name, word(|c| c == '_' || c.is_alphanumeric())),
            c => {
                depth = match c {
                    '(' | '[' | '{' if depth < MOST_BRACKETS => depth + 1,
                    '(' | '[' | '{' => return None,
                    ')' | ']' | '}' => depth.checked_sub(1)?,
                    _ => depth,
                };
                let is_double = ["**", "//", "==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign));
                (Kind::Sign, if is_double { 2 } else { c.len_utf8() })
            }
        };
        let token = Token { kind, space, text: &rest[..length] };
        chain = if token.sign() == Some(",") { 0 } else { chain + 1 };
        if chain > MOST_CHAIN {
            return None;
        }
        tokens.push(token);
        at = start + length;
    }
}

/// The most brackets inside of each other.
pub(super) fn depth(tokens: &[Token]) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for token in tokens {
        match token.sign() {
            Some("(" | "[" | "{") => depth += 1,
            Some(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

fn end_of_text(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut letters = text.char_indices().skip(1);
    while let Some((at, c)) = letters.next() {
        match c {
            '\\' => drop(letters.next()),
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Bytes of a number: a point belongs to it if a digit follows.
fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        let follows = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        let is_exponent =
            matches!(bytes[at - 1], b'e' | b'E') && !text.starts_with("0x") && matches!(byte, b'+' | b'-');
        if !(byte.is_ascii_alphanumeric() || *byte == b'_' || (*byte == b'.' || is_exponent) && follows) {
            break;
        }
        at += 1;
    }
    at
}
