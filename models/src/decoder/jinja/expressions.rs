//! Expressions of tags, with filters for the operators that Python knows otherwise, and for those that minijinja does without a bound.
//!
//! - `a + b`, `a * b`, `a ~ b`, `a % b`, `a // b` and `a[b:c]`: what they make is paid for.
//! - `{% set a = b %}`: nothing is kept that is too deep, and a namespace keeps nothing that could hold it.

use super::operators::{FORMAT, HELD, KEPT, PRODUCT, QUOTIENT, REMAINDER, SLICE, SUM, TEXT};
use super::tokens::{Kind, Token};

/// A tag with its operators as filters.
pub(super) fn rewritten(tag: &str, tokens: &[Token], length: usize) -> String {
    let bytes: usize = tokens.iter().map(|token| token.space.len() + token.text.len()).sum();
    let start = 2 + usize::from(tag[2..].starts_with(['-', '+']));
    let (open, close) = (&tag[..start], &tag[start + bytes..length]);
    if tag.starts_with("{{") {
        return format!("{open}{}{close}", expressions(&Item::list(tokens).0));
    }
    let Some((name, rest)) = tokens.split_first() else { return tag[..length].to_owned() };
    let told = match name.text {
        "generation" => " with".to_owned(),
        "endgeneration" => " endwith".to_owned(),
        "set" => name.told() + &set(rest),
        _ => name.told() + &expressions(&Item::list(rest).0),
    };
    format!("{open}{told}{close}")
}

/// What follows `set`: `a = b`, or `a | filter` before a text.
fn set(tokens: &[Token]) -> String {
    let plain = |tokens: &[Token]| tokens.iter().map(Token::told).collect::<String>();
    let Some(at) = tokens.iter().position(|token| matches!(token.sign(), Some("=" | "|"))) else {
        return plain(tokens);
    };
    let (target, sign, value) = (&tokens[..at], &tokens[at], expressions(&Item::list(&tokens[at + 1..]).0));
    let filter = if target.iter().any(|token| token.sign() == Some(".")) { HELD } else { KEPT };
    match sign.text {
        "=" if !value.trim().is_empty() => format!("{}{} ({}|{filter})", plain(target), sign.told(), bracketed(&value)),
        "|" => format!("{}{}{value}|{filter}", plain(target), sign.told()),
        // The parser refuses it.
        _ => plain(tokens),
    }
}

/// A token, or brackets and what is between them.
enum Item<'a> {
    Token(Token<'a>),
    Group {
        open: Token<'a>,
        inner: String,
        has_comma: bool,
        close: Token<'a>,
    },
    /// A slice of something.
    Slice(String),
}

impl<'a> Item<'a> {
    /// The items up to a bracket that closes, and how many tokens they are.
    fn list(tokens: &[Token<'a>]) -> (Vec<Self>, usize) {
        let (mut items, mut at) = (Vec::new(), 0);
        while let Some(token) = tokens.get(at) {
            match token.sign() {
                Some(")" | "]" | "}") => break,
                Some("(" | "[" | "{") => {
                    let (inner, taken) = Self::list(&tokens[at + 1..]);
                    let Some(close) = tokens.get(at + 1 + taken) else { break };
                    let has = |sign: &str| inner.iter().any(|item| item.sign() == Some(sign));
                    // No list has a colon.
                    let item = match token.text == "[" && has(":") && ends_with_operand(&items) {
                        true => Self::Slice(sliced(&operand(&mut items), &inner)),
                        false => {
                            let has_comma = has(",");
                            Self::Group { open: *token, inner: expressions(&inner), has_comma, close: *close }
                        }
                    };
                    items.push(item);
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
            Self::Token(token) => token.told(),
            Self::Slice(told) => told.clone(),
            Self::Group { open, inner, close, .. } => format!("{}{inner}{}", open.told(), close.told()),
        }
    }

    fn sign(&self) -> Option<&'a str> {
        match self {
            Self::Token(token) => token.sign(),
            _ => None,
        }
    }

    fn name(&self) -> Option<&'a str> {
        match self {
            Self::Token(token) => token.name(),
            _ => None,
        }
    }
}

/// Does the last item end something that brackets behind it belong to?
fn ends_with_operand(items: &[Item]) -> bool {
    let is_attribute = items.len().checked_sub(2).is_some_and(|at| items[at].sign() == Some("."));
    match items.last() {
        None => false,
        Some(Item::Token(token)) => match token.kind {
            Kind::Sign => false,
            Kind::Text | Kind::Number => true,
            Kind::Name => is_attribute || !matches!(token.text, "and" | "or" | "not" | "in" | "is" | "if" | "else"),
        },
        Some(_) => true,
    }
}

/// Takes the operand at the end of items: a name or brackets, with attributes, calls and places behind it.
fn operand(items: &mut Vec<Item>) -> String {
    let mut start = items.len();
    while let Some(at) = start.checked_sub(1) {
        start = at;
        let is_attribute = at > 1 && items[at - 1].sign() == Some(".");
        match &items[at] {
            Item::Group { .. } if ends_with_operand(&items[..at]) => {}
            Item::Token(_) if is_attribute => start = at - 1,
            _ => break,
        }
    }
    items.drain(start..).map(|item| item.told()).collect()
}

/// `a[b:c:d]`.
fn sliced(of: &str, inner: &[Item]) -> String {
    let told = |part: &[Item]| if part.is_empty() { " none".to_owned() } else { expressions(part) };
    let parts: Vec<String> = inner.split(|item| item.sign() == Some(":")).map(told).collect();
    format!(" ({}|{SLICE}({}))", bracketed(of), parts.join(",").trim())
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
            ("*", _) => format!(" ({}|{PRODUCT}({plain}))", bracketed(&told)),
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
