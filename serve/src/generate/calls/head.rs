//! The head of a call: the text up to its arguments.

use opara_models::decoder::{CallForm, CallId, CallSyntax};

use super::super::marks::{beginning, Beginning};
use super::json::{string, value, Json};
use super::marked::Marked;
use super::python::Python;
use super::quoted::Quoted;
use super::reader::Reader;
use super::tool::{Call, Tool};

/// Finds the beginnings of calls of these tools.
#[derive(Debug)]
pub(super) struct Heads {
    pub syntax: CallSyntax,
    pub tools: Vec<Tool>,
}

/// A call up to its arguments.
pub(super) struct Head {
    pub call: Call,
    /// The arguments, where they are known with the name.
    pub arguments: Option<String>,
    /// The part of the text behind the head.
    pub then: Then,
}

/// The part of a text behind the head of a call.
pub(super) enum Then {
    /// Its arguments.
    Arguments(Reader),
    /// The end of a call, or the next call.
    Behind,
    /// Any text.
    Text,
}

/// Arguments of calls that have none.
const NONE: &str = "{}";

impl Head {
    /// Of a call of this name, whose id the model did not write or nothing needs.
    fn new(name: &str, arguments: Option<String>, then: Then) -> Self {
        Self { call: Call { name: name.to_owned(), id: None }, arguments, then }
    }

    /// The same, with arguments to come.
    fn before(name: &str, arguments: Reader) -> Self {
        Self::new(name, None, Then::Arguments(arguments))
    }
}

impl Heads {
    /// The call that a text begins with, behind the mark.
    pub fn head(&self, text: &str, is_last: bool) -> Beginning<Head> {
        let start = text.len() - text.trim_start().len();
        let text = &text[start..];
        let head = match &self.syntax.form {
            CallForm::Object { name, arguments, .. } => self.object(text, name, arguments),
            CallForm::Named { id: CallId::None, middle } => self.named(text, middle, named_arguments),
            CallForm::Named { id: CallId::Behind(before) | CallId::Number(before), middle } => {
                self.named(text, before, |name, rest| {
                    let id = past_id(rest, middle);
                    id.then(|_, length| named_arguments(name, &rest[length..]).behind(length))
                })
            }
            CallForm::Named { id: CallId::Naming, middle } => past_id(text, middle).then(|id, length| {
                let Some(tool) = self.tool_of_id(id) else { return Beginning::No };
                let head = named_arguments(&tool.name, &text[length..]).behind(length);
                head.then(|head, length| {
                    let call = Call { id: Some(id.to_owned()), ..head.call };
                    Beginning::Is(Head { call, ..head }, length)
                })
            }),
            CallForm::Python => {
                self.named(text, "(", |name, _| Beginning::Is(Head::before(name, Reader::Python(Python::default())), 0))
            }
            CallForm::Quoted { open, quote } => self.named(text, open, |name, _| {
                Beginning::Is(Head::before(name, Reader::Quoted(Quoted::new(quote.clone()))), 0)
            }),
            CallForm::Marked { first, empty, .. } => {
                self.named(text, "", |name, rest| match (beginning(rest, first), beginning(rest, empty)) {
                    (Beginning::Is((), length), _) => {
                        let reader = Marked::new(&self.syntax, self.tool(name));
                        let then = reader.map_or(Then::Behind, |reader| Then::Arguments(Reader::Marked(reader)));
                        Beginning::Is(Head::new(name, None, then), length)
                    }
                    // With the mark behind the call.
                    (_, Beginning::Is((), length)) => {
                        Beginning::Is(Head::new(name, Some(NONE.to_owned()), Then::Text), length)
                    }
                    (Beginning::No, Beginning::No) => Beginning::No,
                    _ if is_last => Beginning::No,
                    _ => Beginning::May,
                })
            }
        };
        head.behind(start)
    }

    /// A call whose name stands before a mark. The mark is empty where none stands between the name and the first argument's own.
    fn named(&self, text: &str, middle: &str, then: impl Fn(&str, &str) -> Beginning<Head>) -> Beginning<Head> {
        // The longest name first, since one may be the beginning of another.
        let mut names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        names.sort_unstable_by_key(|name| std::cmp::Reverse(name.len()));
        let mut found = Beginning::No;
        for name in names {
            let head = match text.strip_prefix(name) {
                Some(rest) => {
                    let mark = beginning(rest, middle);
                    mark.then(|(), length| then(name, &rest[length..]).behind(length)).behind(name.len())
                }
                None if name.starts_with(text) => Beginning::May,
                None => Beginning::No,
            };
            match head {
                Beginning::Is(..) => return head,
                Beginning::May => found = Beginning::May,
                Beginning::No => {}
            }
        }
        found
    }

    /// A call that is an object of JSON with fields of these names. Arguments may be a text of JSON.
    fn object(&self, text: &str, of_name: &str, of_arguments: &str) -> Beginning<Head> {
        let Some(mut rest) = text.strip_prefix('{') else {
            return if text.is_empty() { Beginning::May } else { Beginning::No };
        };
        let (mut name, mut arguments): (Option<String>, Option<String>) = (None, None);
        let behind = |rest: &str| text.len() - rest.len();
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.starts_with('}') {
                let Some(name) = name else { return Beginning::No };
                let arguments = Some(arguments.unwrap_or_else(|| NONE.to_owned()));
                return Beginning::Is(Head::new(&name, arguments, Then::Behind), behind(rest) + 1);
            }
            let key = match string(rest) {
                Beginning::Is(key, length) => {
                    rest = rest[length..].trim_start();
                    key
                }
                Beginning::May => return Beginning::May,
                Beginning::No => return Beginning::No,
            };
            rest = match rest.strip_prefix(':') {
                Some(rest) => rest.trim_start(),
                None if rest.is_empty() => return Beginning::May,
                None => return Beginning::No,
            };
            let first = match rest.chars().next() {
                Some(first) => first,
                None => return Beginning::May,
            };
            let is_arguments = key == of_arguments;
            let may_stream = name.is_some() && arguments.is_none();
            if is_arguments && !['{', '"', 'n'].contains(&first) {
                return Beginning::No;
            }
            if let Some(name) = name.as_ref().filter(|_| is_arguments && may_stream && first != 'n') {
                let arguments = Reader::Json(Json::field(first == '"'));
                return Beginning::Is(Head::before(name, arguments), behind(rest));
            }
            let length = match value(rest) {
                Beginning::Is((), length) => length,
                Beginning::May => return Beginning::May,
                Beginning::No => return Beginning::No,
            };
            let (told, behind) = rest.split_at(length);
            rest = behind;
            if key == of_name {
                let of = serde_json::from_str::<String>(told).ok().filter(|name| self.tool(name).is_some());
                match of {
                    Some(of) => name = Some(of),
                    None => return Beginning::No,
                }
            } else if is_arguments && arguments.is_none() {
                let text = match first {
                    '"' => serde_json::from_str::<String>(told).ok().filter(|text| !text.trim().is_empty()),
                    '{' => Some(told.to_owned()),
                    _ => None,
                };
                arguments = Some(text.unwrap_or_else(|| NONE.to_owned()));
            }
        }
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The tool whose name is part of an id: behind a dot, perhaps, and before a colon and a number.
    fn tool_of_id(&self, id: &str) -> Option<&Tool> {
        let numbered = id.rsplit_once(':').filter(|(_, number)| number.bytes().all(|digit| digit.is_ascii_digit()));
        let path = numbered.map_or(id, |(path, _)| path);
        let before = |tool: &Tool| path.strip_suffix(tool.name.as_str());
        let named = self.tools.iter().filter(|tool| before(tool).is_some_and(|of| of.is_empty() || of.ends_with('.')));
        named.max_by_key(|tool| tool.name.len())
    }
}

/// Arguments that are an object of JSON, behind the name of a call.
fn named_arguments(name: &str, text: &str) -> Beginning<Head> {
    match text.trim_start() {
        "" => Beginning::May,
        value if value.starts_with('{') => {
            Beginning::Is(Head::before(name, Reader::Json(Json::value())), text.len() - value.len())
        }
        _ => Beginning::No,
    }
}

/// Bytes that an id has at most.
const LONGEST_ID: usize = 128;

/// Does a text begin with an id of a call, and this mark?
fn past_id<'a>(text: &'a str, mark: &str) -> Beginning<&'a str> {
    let start = text.len() - text.trim_start().len();
    match text[start..].find(|letter| !CallId::has(letter)) {
        Some(length) => {
            let (id, rest) = text[start..].split_at(length);
            beginning(rest, mark).then(|(), length| Beginning::Is(id, length)).behind(start + id.len())
        }
        None if text.len() > LONGEST_ID => Beginning::No,
        None => Beginning::May,
    }
}
