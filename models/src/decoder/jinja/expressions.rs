//! Expressions of tags, with filters for the operators that Python knows otherwise, and for those that minijinja does without a bound.
//!
//! - `a + b`, `a * b`, `a[b:c]`, lists, tuples and dictionaries that are written out: what they make is paid for.
//! - Operands of `==`, `<`, `in` and the like, what has a `[place]`, and what loops run over: reading them is paid for.
//! - `{% set a.b = c %}`: a namespace is put into nothing else, or circles could be made.

use super::operators::{
    COMPARED, FORMAT, KEPT, MACRO, PRODUCT, QUOTIENT, READ, REMAINDER, SEARCHED, SLICE, SUM, TEXT, WRITTEN,
};
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
        "for" => {
            split(tokens, "in").map_or_else(|| plain(tokens), |(target, of)| format!("{}{}", plain(target), over(of)))
        }
        "set" => split(tokens, "=").map_or_else(|| block(tokens), |(target, value)| assigned(target, value)),
        "macro" => named(tokens, 2),
        "call" if rest.first().and_then(Token::sign) == Some("(") => named(tokens, 1),
        _ => name.told() + &expressions(&Item::list(rest).0),
    };
    match name.text {
        // A statement of its own pays.
        "macro" | "call" => format!("{open} set {MACRO} = 0|{MACRO} %}}{open}{told}{close}"),
        _ => format!("{open}{told}{close}"),
    }
}

/// `macro name(arguments)`, or `call(arguments) something`: the bracket at this place names arguments, and calls nothing.
fn named(tokens: &[Token], open: usize) -> String {
    let inner = open + 1;
    if tokens.len() <= inner {
        return plain(tokens);
    }
    let (arguments, taken) = Item::list(&tokens[inner..]);
    let behind = (inner + taken + 1).min(tokens.len());
    let told = plain(&tokens[..inner]) + &expressions(&arguments) + &plain(&tokens[inner + taken..behind]);
    told + &expressions(&Item::list(&tokens[behind..]).0)
}

fn plain(tokens: &[Token]) -> String {
    tokens.iter().map(Token::told).collect()
}

/// What stands up to a token between no brackets, and behind it.
fn split<'t, 'a>(tokens: &'t [Token<'a>], by: &str) -> Option<(&'t [Token<'a>], &'t [Token<'a>])> {
    let mut depth = 0usize;
    let at = tokens.iter().position(|token| {
        match token.sign() {
            Some("(" | "[" | "{") => depth += 1,
            Some(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.kind != Kind::Text && token.text == by
    })?;
    Some(tokens.split_at(at + 1))
}

/// What a loop runs over, and what follows it.
fn over(tokens: &[Token]) -> String {
    let items = Item::list(tokens).0;
    let is_end = |at: &usize| {
        matches!(items[*at].name(), Some("if" | "recursive"))
            && !at.checked_sub(1).is_some_and(|at| items[at].takes_name())
    };
    let end = (0..items.len()).find(is_end).unwrap_or(items.len());
    filtered(&expressions(&items[..end]), READ) + &expressions(&items[end..])
}

/// `{% set a = b %}`.
fn assigned(target: &[Token], value: &[Token]) -> String {
    let items = Item::list(value).0;
    let mut told = expressions(&items);
    if items.iter().any(|item| item.sign() == Some(",")) {
        told = filtered(&told, WRITTEN);
    }
    if target.iter().any(|token| token.sign() == Some(".")) {
        told = filtered(&told, KEPT);
    }
    plain(target) + &told
}

/// `{% set a %}` or `{% set a | filter %}` before a text.
fn block(tokens: &[Token]) -> String {
    let Some((target, filters)) = split(tokens, "|") else { return plain(tokens) };
    let kept = if target.iter().any(|token| token.sign() == Some(".")) { format!("|{KEPT}") } else { String::new() };
    plain(target) + &expressions(&Item::list(filters).0) + &kept
}

/// A token, or brackets and what is between them.
enum Item<'a> {
    Token(Token<'a>),
    Group {
        open: Token<'a>,
        inner: String,
        has_comma: bool,
        close: Token<'a>,
        role: Role,
        is_constant: bool,
    },
    /// Something with a place in it.
    Place(String),
}

/// What brackets are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A call's arguments, or a place.
    Follows,
    /// A list, a tuple or a dictionary.
    Values,
    /// What is between them alone.
    Encloses,
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
                    let is_constant = tokens[at + 1..at + 1 + taken].iter().all(Token::is_constant);
                    let item = Self::group(&mut items, *token, &inner, *close, is_constant);
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

    fn group(before: &mut Vec<Self>, open: Token<'a>, inner: &[Self], close: Token<'a>, is_constant: bool) -> Self {
        let has_comma = inner.iter().any(|item| item.sign() == Some(","));
        let role = match open.text {
            "{" => Role::Values,
            _ if is_operand(before, open.text) => Role::Follows,
            "(" if !has_comma && !inner.is_empty() => Role::Encloses,
            _ => Role::Values,
        };
        // Dictionaries and objects have texts for places; of a text, those are undefined.
        let is_text = matches!(inner, [Self::Token(Token { kind: Kind::Text, .. })]);
        if open.text == "[" && role == Role::Follows && !is_text {
            return Self::Place(placed(&primary(before), inner, is_constant));
        }
        let inner = match before.last().and_then(Self::name) {
            // They are not ours, and compare with, or run over, what they are given.
            Some("changed") if role == Role::Follows => arguments(inner, COMPARED),
            // A loop of any name runs over it.
            Some(_) if role == Role::Follows && open.text == "(" && is_named(before) => arguments(inner, READ),
            _ => expressions(inner),
        };
        Self::Group { open, inner, has_comma, close, role, is_constant }
    }

    fn told(&self) -> String {
        match self {
            Self::Token(token) => token.told(),
            Self::Place(told) => told.clone(),
            Self::Group { open, inner, close, role, is_constant, .. } => {
                let told = format!("{}{}{inner}{}{}", open.space, open.text, close.space, close.text);
                match *role == Role::Values && !is_constant {
                    true => filtered(&told, WRITTEN),
                    false => told,
                }
            }
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

    fn is_constant(&self) -> bool {
        match self {
            Self::Token(token) => token.is_constant(),
            Self::Group { is_constant, role, .. } => *is_constant && *role != Role::Follows,
            Self::Place(_) => false,
        }
    }

    /// Is a word behind it a name, whatever it means elsewhere?
    fn takes_name(&self) -> bool {
        matches!(self.sign(), Some("." | "|"))
    }
}

/// Does the name at the end follow a `|`, or `is`?
fn is_filter(items: &[Item]) -> bool {
    let before = |places: usize| items.len().checked_sub(places).map(|at| &items[at]);
    let is_test = |item: &Item| matches!(item.name(), Some("is" | "not"));
    before(2).is_some_and(|item| item.sign() == Some("|") || is_test(item))
}

/// Is the name at the end that of a value?
fn is_named(items: &[Item]) -> bool {
    !is_filter(items) && !items.len().checked_sub(2).is_some_and(|at| items[at].takes_name())
}

/// Do items end with something that can be called, or that has places?
fn is_operand(items: &[Item], open: &str) -> bool {
    let takes_name = items.len().checked_sub(2).is_some_and(|at| items[at].takes_name());
    match items.last() {
        None => false,
        Some(Item::Token(token)) => match token.kind {
            Kind::Sign => false,
            Kind::Text | Kind::Number => true,
            Kind::Name if open == "[" && is_filter(items) => false,
            Kind::Name => {
                takes_name || !matches!(token.text, "and" | "or" | "not" | "in" | "is" | "if" | "else" | "recursive")
            }
        },
        Some(_) => true,
    }
}

/// Takes what a place is in from the end of items.
fn primary(items: &mut Vec<Item>) -> String {
    let mut start = items.len();
    while let Some(at) = start.checked_sub(1) {
        start = at;
        match &items[at] {
            Item::Group { role: Role::Follows, .. } => {}
            Item::Token(_) if at > 1 && items[at - 1].sign() == Some(".") => start = at - 1,
            _ => break,
        }
    }
    items.drain(start..).map(|item| item.told()).collect()
}

/// `a[b]`, or `a[b:c]`.
fn placed(of: &str, inner: &[Item], is_constant: bool) -> String {
    let parts: Vec<&[Item]> = inner.split(|item| item.sign() == Some(":")).collect();
    match parts.as_slice() {
        [_] if is_constant => format!("{}[{}]", filtered(of, READ), expressions(inner)),
        [_] => format!("{}[{}]", filtered(of, READ), filtered(&expressions(inner), COMPARED)),
        parts => {
            let told = |part: &&[Item]| if part.is_empty() { "none".to_owned() } else { expressions(part) };
            format!(" (({})|{SLICE}({}))", of.trim(), parts.iter().map(told).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Arguments of a call, each through a filter.
fn arguments(items: &[Item], filter: &str) -> String {
    let told = |argument: &[Item]| {
        let (before, value) = match argument {
            [Item::Token(name), Item::Token(sign), value @ ..] if sign.text == "=" => (name.told() + "=", value),
            [Item::Token(sign), value @ ..] if matches!(sign.sign(), Some("*" | "**")) => (sign.told(), value),
            value => (String::new(), value),
        };
        match value.iter().all(Item::is_constant) {
            true => before + &expressions(value),
            false => before + &filtered(&expressions(value), filter),
        }
    };
    items.split(|item| item.sign() == Some(",")).map(told).collect::<Vec<_>>().join(",")
}

/// An operand between what stands between operands.
struct Operand {
    told: String,
    is_constant: bool,
    /// Does it end with `is`? Then a test follows.
    is_test: bool,
}

impl Operand {
    fn is_empty(&self) -> bool {
        self.told.trim().is_empty()
    }
}

/// Expressions with what is between them.
fn expressions(items: &[Item]) -> String {
    let (mut operands, mut marks) = (Vec::new(), Vec::new());
    let (mut sum, mut operator, mut start, mut first) = (String::new(), "", 0, 0);
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
            let of = &items[first..at];
            operands.push(Operand {
                told: std::mem::take(&mut sum),
                is_constant: of.iter().all(Item::is_constant),
                is_test: matches!(of.last().and_then(Item::name), Some("is"))
                    || matches!(of, [.., is, not] if is.name() == Some("is") && not.name() == Some("not")),
            });
            marks.extend(items.get(at));
            first = at + 1;
        }
    }
    let mut told = String::new();
    for (at, operand) in operands.iter().enumerate() {
        told += &compared(&operands, &marks, at).map_or_else(|| operand.told.clone(), |by| filtered(&operand.told, by));
        told += &marks.get(at).map(|mark| mark.told()).unwrap_or_default();
    }
    told
}

/// The filter of an operand that is compared.
fn compared(operands: &[Operand], marks: &[&Item], at: usize) -> Option<&'static str> {
    let operand = &operands[at];
    if operand.is_empty() || operand.is_constant || operand.is_test {
        return None;
    }
    let is_in = |mark: usize| marks.get(mark).is_some_and(|mark| mark.name() == Some("in"));
    let is_sign = |mark: usize| {
        let sign = marks.get(mark).and_then(|mark| mark.sign());
        matches!(sign, Some("==" | "!=" | "<" | ">" | "<=" | ">="))
    };
    let is_not_in = |mark: usize| {
        let is_not = marks.get(mark).is_some_and(|mark| mark.name() == Some("not"));
        is_not && operands.get(mark + 1).is_some_and(Operand::is_empty) && is_in(mark + 1)
    };
    let varies = |at: usize| operands.get(at).is_some_and(|other| !other.is_constant);
    let before = at.checked_sub(1);
    if before.is_some_and(|mark| is_in(mark) && !operands[mark].is_test) {
        return Some(SEARCHED);
    }
    let is_compared = before.is_some_and(|mark| is_sign(mark) && varies(mark))
        || (is_in(at) || is_sign(at)) && varies(at + 1)
        || is_not_in(at) && varies(at + 2);
    is_compared.then_some(COMPARED)
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

/// An expression through a filter.
fn filtered(expression: &str, filter: &str) -> String {
    format!(" ({}|{filter})", bracketed(expression))
}
