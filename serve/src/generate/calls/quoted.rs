//! Arguments of calls whose texts stand between marks of their own.

use serde_json::Value;

use super::super::marks::{escape, Beginning};
use super::json::string;
use super::literal::literal;

/// Reads arguments, behind their brace, as an object of JSON: names may have no quotes, and texts are what stands between two marks.
#[derive(Debug)]
pub(super) struct Quoted {
    /// Before a text and behind it.
    quote: String,
    /// The ends of the objects and lists that are open, and whether they have something in them.
    open: Vec<(char, bool)>,
    stage: Stage,
}

/// Bytes that a name has at most.
const LONGEST: usize = 1_024;
/// Objects and lists within others that are read.
const DEEPEST: usize = 64;

#[derive(Debug)]
enum Stage {
    /// At a name, or at the end of an object.
    Name,
    /// Behind a name.
    Assign,
    /// At a value, or at the end of a list.
    Value,
    /// Within a text, which is told as it comes: a name or a value.
    Text { is_name: bool },
    /// Behind a value.
    Behind,
}

impl Quoted {
    /// Of texts between these marks.
    pub fn new(quote: String) -> Self {
        Self { quote, open: Vec::new(), stage: Stage::Name }
    }

    /// Takes what is certain of a text, and says whether the arguments end there. A letter that does not belong there ends
    /// them, too.
    pub fn read(&mut self, held: &mut String, is_last: bool, told: &mut String) -> bool {
        if self.open.is_empty() {
            self.enter('}', told);
        }
        loop {
            if !matches!(self.stage, Stage::Text { .. }) {
                held.drain(..held.len() - held.trim_start().len());
            }
            let Some(first) = held.chars().next() else { return false };
            let is_quote = held.starts_with(&self.quote);
            let may_be_quote = !is_last && !is_quote && self.quote.starts_with(held.as_str());
            match self.stage {
                Stage::Name | Stage::Value if may_be_quote => return false,
                Stage::Name | Stage::Value if Some(first) == self.open.last().map(|(end, _)| *end) => {
                    held.drain(..1);
                    if self.leave(told) {
                        return true;
                    }
                }
                Stage::Name | Stage::Value if is_quote => {
                    let is_name = matches!(self.stage, Stage::Name);
                    held.drain(..self.quote.len());
                    self.separate(is_name, told);
                    told.push('"');
                    self.stage = Stage::Text { is_name };
                }
                Stage::Name => {
                    let (name, length) = match string(held) {
                        Beginning::Is(name, length) => (name, length),
                        Beginning::May => return false,
                        Beginning::No => match held.find([':', '}', '\n']) {
                            Some(end) if held[end..].starts_with(':') => (held[..end].trim().to_owned(), end),
                            None if held.len() <= LONGEST => return false,
                            _ => return self.close(told),
                        },
                    };
                    held.drain(..length);
                    self.separate(true, told);
                    *told += &Value::from(name).to_string();
                    self.stage = Stage::Assign;
                }
                Stage::Assign => {
                    if first != ':' {
                        return self.close(told);
                    }
                    held.drain(..1);
                    told.push(':');
                    self.stage = Stage::Value;
                }
                Stage::Value if matches!(first, '{' | '[') => {
                    if self.open.len() == DEEPEST {
                        return self.close(told);
                    }
                    held.drain(..1);
                    self.separate(false, told);
                    self.enter(if first == '{' { '}' } else { ']' }, told);
                }
                Stage::Value => {
                    let length = match string(held) {
                        Beginning::Is(_, length) => length,
                        Beginning::May => return false,
                        Beginning::No => match held.find([',', '}', ']']) {
                            Some(end) => end,
                            None => return false,
                        },
                    };
                    let word = held[..length].trim();
                    let value = serde_json::from_str(word).ok().or_else(|| literal(word));
                    let value = value.unwrap_or_else(|| Value::from(word)).to_string();
                    held.drain(..length);
                    self.separate(false, told);
                    *told += &value;
                    self.stage = Stage::Behind;
                }
                Stage::Text { is_name } => {
                    let Some(at) = held.find(&self.quote) else {
                        // Letters that may be the mark's are held back.
                        let mut starts = held.char_indices().map(|(at, _)| at);
                        let certain = starts.find(|at| !is_last && self.quote.starts_with(&held[*at..]));
                        let certain = certain.unwrap_or(held.len());
                        escape(&held[..certain], told);
                        held.drain(..certain);
                        return false;
                    };
                    escape(&held[..at], told);
                    told.push('"');
                    held.drain(..at + self.quote.len());
                    self.stage = if is_name { Stage::Assign } else { Stage::Behind };
                }
                Stage::Behind => match self.open.last() {
                    Some((end, _)) if first == *end => {
                        held.drain(..1);
                        if self.leave(told) {
                            return true;
                        }
                    }
                    Some((end, _)) if first == ',' => {
                        self.stage = if *end == '}' { Stage::Name } else { Stage::Value };
                        held.drain(..1);
                    }
                    _ => return self.close(told),
                },
            }
        }
    }

    /// Tells the comma before a name, or before a value in a list.
    fn separate(&mut self, is_name: bool, told: &mut String) {
        let Some((end, has_some)) = self.open.last_mut() else { return };
        if is_name || *end == ']' {
            if *has_some {
                told.push(',');
            }
            *has_some = true;
        }
    }

    /// Begins an object or a list.
    fn enter(&mut self, end: char, told: &mut String) {
        let is_object = end == '}';
        told.push(if is_object { '{' } else { '[' });
        self.open.push((end, false));
        self.stage = if is_object { Stage::Name } else { Stage::Value };
    }

    /// Ends one, and says whether it was all arguments. A name may have no value.
    fn leave(&mut self, told: &mut String) -> bool {
        if matches!((&self.stage, self.open.last()), (Stage::Value, Some(('}', _)))) {
            *told += "null";
        }
        told.extend(self.open.pop().map(|(end, _)| end));
        self.stage = Stage::Behind;
        self.open.is_empty()
    }

    /// Ends all that is open.
    fn close(&mut self, told: &mut String) -> bool {
        if matches!(self.stage, Stage::Assign) {
            told.push(':');
            self.stage = Stage::Value;
        }
        while !self.leave(told) {}
        true
    }
}
