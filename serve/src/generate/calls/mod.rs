//! Calls of tools in a text, as it comes.

mod head;
mod json;
mod kinds;
mod literal;
mod marked;
mod python;
mod quoted;
mod reader;
#[cfg(test)]
pub(crate) mod syntaxes;
#[cfg(test)]
mod tests;
mod tool;

use opara_models::decoder::CallSyntax;

use self::head::{Head, Heads, Then};
use self::reader::Reader;
pub use self::tool::{Call, Tool};
use super::marks::{beginning, certain, Beginning};

/// What stands in a text beside or instead of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Text(String),
    Call(Call),
    /// A piece of the latest call's arguments. All pieces are an object of JSON, if the model ends it.
    Arguments(String),
}

/// Finds calls. What turns out to be none before its arguments begin, or a call of another tool, is text.
#[derive(Debug)]
pub(super) struct Calls {
    heads: Heads,
    /// What is not certain.
    held: String,
    at: At,
    /// Whether there was anything but spaces.
    has_begun: bool,
    has_calls: bool,
}

/// Where in a text what is held stands.
#[derive(Debug)]
enum At {
    /// Outside calls.
    Text,
    /// At the mark before the first call, or before a further one.
    Mark { is_first: bool },
    /// Within the arguments of a call.
    Arguments(Reader),
    /// Behind a call.
    Behind,
}

impl Calls {
    pub fn new(syntax: CallSyntax, tools: Vec<Tool>) -> Self {
        Self { heads: Heads { syntax, tools }, held: String::new(), at: At::Text, has_begun: false, has_calls: false }
    }

    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        self.held += piece;
        self.find(false)
    }

    /// What is left when the text has ended.
    pub fn rest(&mut self) -> Vec<Found> {
        let mut found = self.find(true);
        let rest = std::mem::take(&mut self.held);
        if !matches!(self.at, At::Arguments(_)) {
            self.tell(rest, &mut found);
        }
        self.at = At::Text;
        found
    }

    /// Tells a text. Spaces around calls are none.
    fn tell(&mut self, text: String, found: &mut Vec<Found>) {
        let text = match self.has_calls && text.trim().is_empty() {
            true => String::new(),
            false => text,
        };
        self.has_begun |= !text.trim().is_empty();
        if !text.is_empty() {
            found.push(Found::Text(text));
        }
    }

    fn find(&mut self, is_last: bool) -> Vec<Found> {
        let mut found = Vec::new();
        while self.step(is_last, &mut found) {}
        found
    }

    /// Goes on with what is held; false if more is needed for that.
    fn step(&mut self, is_last: bool, found: &mut Vec<Found>) -> bool {
        match &mut self.at {
            At::Text => self.open(is_last, found),
            At::Mark { is_first } => {
                let is_first = *is_first;
                let mark = if is_first { Some(&self.heads.syntax.open) } else { self.heads.syntax.between.as_ref() };
                let mark = mark.map_or("", String::as_str);
                let head = beginning(&self.held, mark)
                    .then(|(), length| self.heads.head(&self.held[length..], is_last).behind(length));
                self.begin(head, is_first, is_last, found)
            }
            At::Arguments(reader) => {
                let mut told = String::new();
                let has_ended = reader.read(&mut self.held, is_last, &mut told);
                if has_ended {
                    self.at = At::Behind;
                }
                if !told.is_empty() {
                    found.push(Found::Arguments(told));
                }
                has_ended
            }
            At::Behind => self.behind(is_last),
        }
    }

    /// Begins a call, or goes on with text if there is none.
    fn begin(&mut self, head: Beginning<Head>, is_first: bool, is_last: bool, found: &mut Vec<Found>) -> bool {
        match head {
            Beginning::Is(head, length) => {
                self.held.drain(..length);
                (self.has_begun, self.has_calls) = (true, true);
                found.push(Found::Call(head.call));
                found.extend(head.arguments.map(Found::Arguments));
                self.at = match head.then {
                    Then::Arguments(reader) => At::Arguments(reader),
                    Then::Behind => At::Behind,
                    Then::Text => At::Text,
                };
                true
            }
            Beginning::May if !is_last => false,
            _ => {
                // None after all. There may be one behind this mark.
                self.at = At::Text;
                let close = beginning(&self.held, &self.heads.syntax.close);
                if let (false, Beginning::Is((), length)) = (is_first, close) {
                    self.held.drain(..length);
                    return true;
                }
                let word = if is_first { first_word(&self.heads.syntax.open) } else { "" };
                let end = self.held.find(word).map_or(0, |at| at + word.len());
                let rest = self.held.split_off(end);
                let before = std::mem::replace(&mut self.held, rest);
                self.tell(before, found);
                true
            }
        }
    }

    /// What follows a call: a further one, the mark behind the last one, or text.
    fn behind(&mut self, is_last: bool) -> bool {
        let is_blank = |mark: &str| mark.trim().is_empty();
        let (between, close) = (self.heads.syntax.between.as_deref(), self.heads.syntax.close.as_str());
        let marked = between.filter(|mark| !is_blank(mark));
        let next = marked.map_or(Beginning::No, |mark| beginning(&self.held, mark));
        match (next, beginning(&self.held, close)) {
            (Beginning::Is(..), _) => self.at = At::Mark { is_first: false },
            (Beginning::May, _) if !is_last => return false,
            (_, Beginning::Is((), length)) if !is_blank(close) => {
                self.held.drain(..length);
                self.at = At::Text;
            }
            (_, Beginning::May) if !is_last => return false,
            // Where spaces alone stand between calls, the next one begins as a call does.
            _ if between.is_some_and(is_blank) => self.at = At::Mark { is_first: false },
            // No mark that is known: what follows is text.
            _ => self.at = At::Text,
        }
        true
    }

    /// Tells what stands before the mark of the first call; false if nothing more can be said.
    fn open(&mut self, is_last: bool, found: &mut Vec<Found>) -> bool {
        let open = self.heads.syntax.open.trim();
        if open.is_empty() {
            // A call begins where the answer does.
            let may_call = !self.has_begun && !self.has_calls;
            let is_blank = self.held.trim().is_empty();
            if is_blank && (may_call || self.has_calls) && !is_last {
                return false;
            }
            if may_call && !is_blank {
                match self.heads.head(&self.held, is_last) {
                    Beginning::Is(..) => {
                        self.at = At::Mark { is_first: true };
                        return true;
                    }
                    Beginning::May if !is_last => return false,
                    _ => {}
                }
            }
            let text = std::mem::take(&mut self.held);
            self.tell(text, found);
            return false;
        }
        // The first letters of the mark, since spaces within it may be others.
        let mark = first_word(open);
        if let Some(at) = self.held.find(mark) {
            // Spaces before it are part of the text if no call follows.
            let spaces = self.held[..at].trim_end().len();
            let (is_open, until) = match beginning(&self.held[at..], open) {
                Beginning::Is((), _) => (true, spaces),
                Beginning::May if !is_last => (false, spaces),
                _ => (false, at + mark.len()),
            };
            let rest = self.held.split_off(until);
            let before = std::mem::replace(&mut self.held, rest);
            self.tell(before, found);
            if is_open {
                self.at = At::Mark { is_first: true };
            }
            return is_open || until > at;
        }
        // Spaces before a mark are not part of the text.
        let certain = if is_last { self.held.len() } else { certain(&self.held, mark) };
        let rest = self.held.split_off(certain);
        let before = std::mem::replace(&mut self.held, rest);
        self.tell(before, found);
        false
    }
}

/// The letters of a mark before its first space.
fn first_word(mark: &str) -> &str {
    mark.split_whitespace().next().unwrap_or("")
}
