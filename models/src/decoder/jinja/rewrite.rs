//! What templates say that minijinja reads otherwise: it is rewritten before a template is parsed.
//!
//! - Texts between `{% raw %}` and `{% endraw %}` keep the line break that they begin with.
//! - `{% generation %}` marks what an assistant wrote. It has names of its own, as `{% with %}` has.
//! - `a ~ b` joins texts as Python writes them, `a % b` fills in patterns, and `a // b` rounds down: they become filters.
//! - `a + b` makes texts and lists longer, and becomes a filter that bounds their size.

use std::collections::BTreeSet;

/// The filter of `~`: the texts of values.
pub(super) const TEXT: &str = "opara_text";
/// The filter of `+`.
pub(super) const SUM: &str = "opara_sum";
/// The filter of `%`.
pub(super) const REMAINDER: &str = "opara_remainder";
/// The filter of `%` before a tuple.
pub(super) const FORMAT: &str = "opara_format";
/// The filter of `//`.
pub(super) const QUOTIENT: &str = "opara_quotient";

/// A template as minijinja reads it, and the names in it.
pub(super) fn rewrite(source: &str) -> (String, BTreeSet<&str>) {
    let (mut told, mut names, mut rest) = (String::with_capacity(source.len()), BTreeSet::new(), source);
    while let Some(at) = rest.find("{").filter(|_| !rest.is_empty()) {
        let (text, tag) = rest.split_at(at);
        told.push_str(text);
        let length = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|end| end + 2),
            Some(b'%') if is_tag(tag, "raw") => {
                if let Some((end, length)) = tag.find("%}").zip(end_of_raw(tag)) {
                    // A line break behind the tag belongs to the text.
                    let mark = if tag[..end].ends_with(['-', '+']) { "" } else { "+" };
                    told.extend([&tag[..end], mark, &tag[end..length]]);
                    rest = &tag[length..];
                    continue;
                }
                None
            }
            Some(b'{' | b'%') => {
                let tokens = tokens(tag);
                if let Some((tokens, length)) = &tokens {
                    names.extend(tokens.iter().filter_map(Token::named));
                    told.push_str(&rewritten(tag, tokens, *length));
                    rest = &tag[*length..];
                    continue;
                }
                None
            }
            _ => Some(1),
        };
        // What does not end is the parser's to refuse.
        let length = length.unwrap_or(tag.len());
        told.push_str(&tag[..length]);
        rest = &tag[length..];
    }
    told.push_str(rest);
    (told, names)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Text,
    Number,
    Sign,
}

/// A token in a tag, and the white space before it.
#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    space: &'a str,
    text: &'a str,
}

impl<'a> Token<'a> {
    /// The name that it is, or that it may be the key of.
    fn named(&self) -> Option<&'a str> {
        match self.kind {
            Kind::Name => Some(self.text),
            Kind::Text => Some(&self.text[1..self.text.len() - 1]),
            Kind::Number | Kind::Sign => None,
        }
    }
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

/// The tokens between the marks of a tag, and the tag's length.
fn tokens(tag: &str) -> Option<(Vec<Token<'_>>, usize)> {
    let close = if tag.starts_with("{{") { "}}" } else { "%}" };
    let mut at = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let (mut tokens, mut depth) = (Vec::new(), 0usize);
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
                    '(' | '[' | '{' => depth + 1,
                    ')' | ']' | '}' => depth.checked_sub(1)?,
                    _ => depth,
                };
                let is_double = ["**", "//", "==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign));
                (Kind::Sign, if is_double { 2 } else { c.len_utf8() })
            }
        };
        tokens.push(Token { kind, space, text: &rest[..length] });
        at = start + length;
    }
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

/// A tag with its operators as filters.
fn rewritten(tag: &str, tokens: &[Token], length: usize) -> String {
    let renamed = match tokens.first().map(|token| token.text) {
        Some("generation") if tag.starts_with("{%") => Some("with"),
        Some("endgeneration") if tag.starts_with("{%") => Some("endwith"),
        _ => None,
    };
    let is_changed = |token: &Token| token.kind == Kind::Sign && matches!(token.text, "~" | "+" | "%" | "//");
    if renamed.is_none() && !tokens.iter().any(is_changed) {
        return tag[..length].to_owned();
    }
    let bytes: usize = tokens.iter().map(|token| token.space.len() + token.text.len()).sum();
    let start = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let (open, close) = (&tag[..start], &tag[start + bytes..length]);
    if let Some(name) = renamed {
        return format!("{open} {name}{close}");
    }
    let (items, _) = Item::list(tokens);
    let statement = usize::from(tag.starts_with("{%")).min(items.len());
    let name: String = items[..statement].iter().map(Item::told).collect();
    format!("{open}{name}{}{close}", expressions(&items[statement..]))
}

/// A token, or brackets and what is between them.
enum Item<'a> {
    Token(Token<'a>),
    Group { open: Token<'a>, inner: String, has_comma: bool, close: Token<'a> },
}

impl<'a> Item<'a> {
    /// The items up to a bracket that closes, and how many tokens they are.
    fn list(tokens: &[Token<'a>]) -> (Vec<Self>, usize) {
        let (mut items, mut at) = (Vec::new(), 0);
        while let Some(token) = tokens.get(at) {
            match (token.kind, token.text) {
                (Kind::Sign, ")" | "]" | "}") => break,
                (Kind::Sign, "(" | "[" | "{") => {
                    let (inner, taken) = Self::list(&tokens[at + 1..]);
                    let Some(close) = tokens.get(at + 1 + taken) else { break };
                    let has_comma = inner.iter().any(|item| item.sign() == Some(","));
                    items.push(Self::Group { open: *token, inner: expressions(&inner), has_comma, close: *close });
                    at += taken + 2;
                }
                _ => {
                    items.push(Self::Token(*token));
                    at += 1;
                }
            }
        }
        (items, at)
    }

    fn told(&self) -> String {
        match self {
            Self::Token(token) => format!("{}{}", token.space, token.text),
            Self::Group { open, inner, close, .. } => {
                format!("{}{}{inner}{}{}", open.space, open.text, close.space, close.text)
            }
        }
    }

    fn sign(&self) -> Option<&str> {
        match self {
            Self::Token(token) if token.kind == Kind::Sign => Some(token.text),
            _ => None,
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Token(token) if token.kind == Kind::Name => Some(token.text),
            _ => None,
        }
    }
}

/// Expressions with what is between them.
fn expressions(items: &[Item]) -> String {
    let (mut told, mut sum, mut operator, mut start) = (String::new(), String::new(), "", 0);
    for at in 0..=items.len() {
        if at < items.len() && !is_between(items, start, at) {
            continue;
        }
        let operand = joined(&items[start..at]);
        sum = match operator {
            "" => operand,
            "+" if !sum.trim().is_empty() && !operand.trim().is_empty() => {
                format!(" ({}|{SUM}({}))", bracketed(&sum), operand.trim())
            }
            operator => format!("{sum} {operator}{operand}"),
        };
        start = at + 1;
        operator = items.get(at).and_then(Item::sign).filter(|sign| matches!(*sign, "+" | "-")).unwrap_or_default();
        if operator.is_empty() {
            told += &std::mem::take(&mut sum);
            told += &items.get(at).map(Item::told).unwrap_or_default();
        }
    }
    told
}

/// Does this item stand between operands of `~`, `%` and `//`, or those of one of them?
fn is_between(items: &[Item], start: usize, at: usize) -> bool {
    let before = items[start..at].last();
    match (items[at].sign(), items[at].name()) {
        (Some("," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">="), _) => true,
        (Some("+" | "-"), _) => before
            .is_some_and(|item| !matches!(item.sign(), Some("~" | "*" | "/" | "//" | "%" | "**" | "|" | "+" | "-"))),
        (_, Some("and" | "or" | "if" | "else" | "in" | "recursive")) => {
            !before.is_some_and(|item| matches!(item.sign(), Some("." | "|")))
        }
        (_, Some("not")) => before.and_then(Item::name) != Some("is"),
        _ => false,
    }
}

/// Operands of `~`.
fn joined(items: &[Item]) -> String {
    let parts: Vec<&[Item]> = items.split(|item| item.sign() == Some("~")).collect();
    match parts.as_slice() {
        [part] => product(part),
        // The parser refuses it.
        parts if parts.iter().any(|part| part.is_empty()) => items.iter().map(Item::told).collect(),
        parts => {
            let texts: Vec<String> = parts.iter().map(|part| product(part).trim().to_owned()).collect();
            format!(" ({}|{TEXT}({}))", bracketed(&texts[0]), texts[1..].join(", "))
        }
    }
}

/// Operands of `*`, `/`, `//` and `%`, from the left.
fn product(items: &[Item]) -> String {
    let (mut told, mut start) = (String::new(), 0);
    let mut operator = "";
    for at in 0..=items.len() {
        let next =
            items.get(at).and_then(Item::sign).filter(|sign| at > start && matches!(*sign, "*" | "/" | "//" | "%"));
        if next.is_none() && at < items.len() {
            continue;
        }
        let operand = &items[start..at];
        let plain: String = operand.iter().map(Item::told).collect();
        told = match (operator, operand) {
            ("", _) => plain,
            (operator, []) => format!("{told} {operator}"),
            ("%", [Item::Group { open, inner, has_comma: true, .. }]) if open.text == "(" => {
                format!(" ({}|{FORMAT}({}))", bracketed(&told), inner.trim_end().trim_end_matches(','))
            }
            ("%", _) => format!(" ({}|{REMAINDER}({plain}))", bracketed(&told)),
            ("//", _) => format!(" ({}|{QUOTIENT}({plain}))", bracketed(&told)),
            (operator, _) => format!("{told} {operator}{plain}"),
        };
        operator = next.unwrap_or_default();
        start = at + 1;
    }
    told
}

fn bracketed(expression: &str) -> String {
    format!("({})", expression.trim())
}
