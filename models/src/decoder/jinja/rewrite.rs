//! What templates say that minijinja reads otherwise, or does without a bound: it is rewritten before a template is parsed.
//!
//! - Texts between `{% raw %}` and `{% endraw %}` keep the line break that they begin with.
//! - `{% generation %}` marks what an assistant wrote. It has names of its own, as `{% with %}` has.
//! - Operators become filters: see `expressions`.
//! - Within long texts between tags stands an expression that writes nothing, and pays for the text.

use std::collections::BTreeSet;

use minijinja::{Error, ErrorKind};

use super::expressions::rewritten;
use super::operators::PLAIN;
use super::refusal::refused;
use super::tokens::{depth, tokens, Token};

/// Bytes of a text between tags that costs no more than a step.
pub(super) const SHORT: usize = 64;

/// A template as minijinja reads it.
pub(super) struct Rewritten<'a> {
    pub source: String,
    /// The names in it.
    pub names: BTreeSet<&'a str>,
    /// Bytes of the longest text between tags that is not paid for.
    pub longest: usize,
    /// The most brackets inside of each other.
    pub brackets: usize,
}

/// Rewrites a template.
pub(super) fn rewrite(source: &str) -> Result<Rewritten<'_>, Error> {
    let mut told =
        Rewritten { source: String::with_capacity(source.len()), names: BTreeSet::new(), longest: SHORT, brackets: 0 };
    let mut rest = source;
    while !rest.is_empty() {
        let is_open = |at: &usize| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
        let at = rest.match_indices('{').map(|(at, _)| at).find(is_open).unwrap_or(rest.len());
        let (text, tag) = rest.split_at(at);
        told.text(text);
        let taken = match tag.as_bytes().get(1) {
            None => 0,
            Some(b'#') => tag.find("#}").map(|end| end + 2).ok_or_else(unended)?,
            Some(b'%') if is_tag(tag, "raw") => {
                let end = tag.find("%}").ok_or_else(unended)?;
                let length = end_of_raw(tag).ok_or_else(unended)?;
                // A line break behind the tag belongs to the text.
                let mark = if tag[..end].ends_with(['-', '+']) { "" } else { "+" };
                told.source.extend([&tag[..end], mark, &tag[end..length]]);
                told.longest = told.longest.max(length);
                rest = &tag[length..];
                continue;
            }
            Some(_) => {
                let (tokens, length) = tokens(tag).ok_or_else(unended)?;
                if tokens.windows(2).any(is_unpacked) {
                    return Err(refused("`*` and `**` before an argument are not supported"));
                }
                told.brackets = told.brackets.max(depth(&tokens));
                told.names.extend(tokens.iter().filter_map(Token::named));
                told.source.push_str(&rewritten(tag, &tokens, length));
                rest = &tag[length..];
                continue;
            }
        };
        told.source.push_str(&tag[..taken]);
        rest = &tag[taken..];
    }
    Ok(told)
}

/// Nothing is left to the parser that has not been rewritten.
fn unended() -> Error {
    Error::new(
        ErrorKind::SyntaxError,
        "a tag of the template does not end, or has an expression that is too deep or too long",
    )
}

impl Rewritten<'_> {
    /// A text between tags. It is paid for between two of its letters, where no tag strips white space.
    fn text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let is_letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
        let place = (1..text.len()).find(|at| is_letter(at - 1) && is_letter(*at)).filter(|_| text.len() > SHORT);
        let (before, after) = text.split_at(place.unwrap_or(0));
        self.source.push_str(before);
        match place {
            Some(_) => self.source.push_str(&format!("{{{{ {}|{PLAIN} }}}}", text.len())),
            None => self.longest = self.longest.max(text.len()),
        }
        self.source.push_str(after);
    }
}

/// Does a list of any length become arguments here? No one would pay for it.
fn is_unpacked(tokens: &[Token]) -> bool {
    matches!(tokens[0].sign(), Some("(" | ",")) && matches!(tokens[1].sign(), Some("*" | "**"))
}

/// Is this a tag of that name?
fn is_tag(tag: &str, name: &str) -> bool {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    inner.strip_prefix(name).is_some_and(|rest| rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}"))
}

/// Bytes up to the end of `{% endraw %}`.
fn end_of_raw(tag: &str) -> Option<usize> {
    let starts = tag.match_indices("{%").map(|(at, _)| at);
    let end = starts.skip(1).find(|at| is_tag(&tag[*at..], "endraw"))?;
    Some(end + tag[end..].find("%}")? + 2)
}
