//! Arguments of calls that are written as in Python.

use serde_json::Value;

use super::literal::literal;

/// Reads arguments by name, behind the parenthesis, as an object of JSON.
#[derive(Debug, Default)]
pub(super) struct Python {
    stage: Stage,
    /// Whether there is an argument already.
    has_some: bool,
}

/// Bytes that a name has at most.
const LONGEST: usize = 1_024;

#[derive(Debug, Default)]
enum Stage {
    /// At the name of an argument, or at the end.
    #[default]
    Name,
    /// Within a value.
    Literal(End),
}

/// Looks for the end of a literal in a text that grows.
#[derive(Debug, Default)]
struct End {
    /// Bytes that were looked at.
    at: usize,
    /// Of parentheses, lists and objects.
    depth: usize,
    quote: Option<char>,
    is_escaped: bool,
}

impl End {
    /// Where the comma or the parenthesis behind the literal stands.
    fn find(&mut self, held: &str) -> Option<usize> {
        for letter in held[self.at..].chars() {
            match self.quote {
                _ if self.is_escaped => self.is_escaped = false,
                Some(_) if letter == '\\' => self.is_escaped = true,
                Some(quote) if letter == quote => self.quote = None,
                Some(_) => {}
                None => match letter {
                    '"' | '\'' => self.quote = Some(letter),
                    '(' | '[' | '{' => self.depth += 1,
                    ',' | ')' if self.depth == 0 => return Some(self.at),
                    ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                },
            }
            self.at += letter.len_utf8();
        }
        None
    }
}

impl Python {
    /// Takes what is certain of a text, and says whether the arguments end there. An argument without a name ends them, too.
    pub fn read(&mut self, held: &mut String, told: &mut String) -> bool {
        loop {
            match &mut self.stage {
                Stage::Name => {
                    let start = held.len() - held.trim_start_matches(|of: char| of == ',' || of.is_whitespace()).len();
                    held.drain(..start);
                    let is_name = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
                    let Some(end) = held.find(|letter| !is_name(letter)).or((held.len() > LONGEST).then_some(0)) else {
                        return false;
                    };
                    let behind = held[end..].trim_start();
                    if behind.is_empty() && end > 0 {
                        return false;
                    }
                    if end == 0 || !behind.starts_with('=') {
                        if held.starts_with(')') {
                            held.drain(..1);
                        }
                        *told += if self.has_some { "}" } else { "{}" };
                        return true;
                    }
                    let length = held.len() - behind.len() + 1;
                    told.push(if self.has_some { ',' } else { '{' });
                    *told += &format!("{}:", Value::from(&held[..end]));
                    held.drain(..length);
                    self.has_some = true;
                    self.stage = Stage::Literal(End::default());
                }
                Stage::Literal(end) => {
                    let Some(at) = end.find(held) else { return false };
                    let text = held[..at].trim();
                    *told += &literal(text).unwrap_or_else(|| Value::from(text)).to_string();
                    held.drain(..at);
                    self.stage = Stage::Name;
                }
            }
        }
    }
}
