//! Marks in a text that comes in pieces.

use serde_json::Value;

/// Whether a text begins with something.
pub(super) enum Beginning<T> {
    /// It does, with these bytes.
    Is(T, usize),
    /// Perhaps, when there is more of the text.
    May,
    No,
}

impl<T> Beginning<T> {
    /// Goes on with what was found, and its bytes.
    pub fn then<U>(self, next: impl FnOnce(T, usize) -> Beginning<U>) -> Beginning<U> {
        match self {
            Self::Is(found, length) => next(found, length),
            Self::May => Beginning::May,
            Self::No => Beginning::No,
        }
    }

    /// The same of a text with these bytes before it.
    pub fn behind(self, bytes: usize) -> Self {
        self.then(|found, length| Self::Is(found, bytes + length))
    }
}

/// Does a text begin with a mark, whatever the spaces before and within the mark?
pub(super) fn beginning(text: &str, mark: &str) -> Beginning<()> {
    let mut rest = text.char_indices().filter(|(_, letter)| !letter.is_whitespace());
    let mut end = 0;
    for expected in mark.chars().filter(|letter| !letter.is_whitespace()) {
        match rest.next() {
            None => return Beginning::May,
            Some((at, letter)) if letter == expected => end = at + letter.len_utf8(),
            Some(_) => return Beginning::No,
        }
    }
    Beginning::Is((), end)
}

/// The beginning that two marks share, up to the end of its first tag. A value ends where it stands.
pub(crate) fn common(next: &str, close: &str) -> String {
    let (next, close) = (next.trim_start(), close.trim_start());
    let same: String = next.chars().zip(close.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    let same = same.trim_end();
    match same.rfind('>') {
        Some(end) => same[..=end].to_owned(),
        None => same.to_owned(),
    }
}

/// The bytes of a text that are no part of a mark, nor spaces before one, whatever follows.
pub(super) fn certain(text: &str, mark: &str) -> usize {
    let starts = text.char_indices().map(|(at, _)| at);
    let mut starts = starts.filter(|at| text.len() - at <= mark.len().max(64));
    starts.find(|at| mark.starts_with(text[*at..].trim_start())).unwrap_or(text.len())
}

/// A text within quotes of JSON.
pub(super) fn escape(text: &str, told: &mut String) {
    let quoted = Value::from(text).to_string();
    *told += &quoted[1..quoted.len() - 1];
}
