//! Calls of tools in a text, as it comes.

mod head;
mod json;
mod kinds;
mod marked;
mod reader;
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
                found.push(Found::Call(Call { name: head.name }));
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

#[cfg(test)]
mod tests {
    use opara_models::decoder::CallForm;
    use serde_json::{json, Value};

    use super::*;

    fn tools() -> Vec<Tool> {
        let parameters = json!({"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
        let tool = |name: &str| Tool { name: name.into(), parameters: Some(parameters.clone()) };
        vec![tool("weather"), tool("weather_now")]
    }

    fn syntax(open: &str, between: Option<&str>, close: &str, form: CallForm) -> CallSyntax {
        CallSyntax { open: open.into(), between: between.map(str::to_owned), close: close.into(), form }
    }

    fn object_form(arguments: &str) -> CallForm {
        CallForm::Object { name: "name".into(), arguments: arguments.into() }
    }

    fn tagged() -> CallSyntax {
        let between = Some("\n</tool_call>\n<tool_call>\n");
        syntax("<tool_call>\n", between, "\n</tool_call>", object_form("arguments"))
    }

    fn lone() -> CallSyntax {
        syntax("", None, "", object_form("parameters"))
    }

    fn listed() -> CallSyntax {
        syntax("[TOOL_CALLS] [", Some(", "), "]", object_form("arguments"))
    }

    fn named() -> CallSyntax {
        let form = CallForm::Named { middle: "\n```json\n".into() };
        syntax("<calls><call>function<sep>", Some("\n```</call>\n<call>function<sep>"), "\n```</call></calls>", form)
    }

    fn marks() -> CallSyntax {
        let form = CallForm::Marked {
            first: ">\n<parameter=".into(),
            assign: ">\n".into(),
            next: "\n</parameter>\n<parameter=".into(),
            empty: ">\n</function>\n</tool_call>".into(),
        };
        let between = "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=";
        syntax("<tool_call>\n<function=", Some(between), "\n</parameter>\n</function>\n</tool_call>", form)
    }

    /// A text in pieces of random sizes.
    fn pieces(text: &str, most: usize, seed: u64) -> Vec<String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut letters, mut pieces) = (text.chars().peekable(), Vec::new());
        while letters.peek().is_some() {
            pieces.push(letters.by_ref().take(rng.usize(1..=most)).collect());
        }
        pieces
    }

    fn joined(found: Vec<Found>) -> (String, Vec<(String, String)>) {
        let (mut told, mut called) = (String::new(), Vec::new());
        for found in found {
            match found {
                Found::Text(text) => told += &text,
                Found::Call(call) => called.push((call.name, String::new())),
                Found::Arguments(piece) => called.last_mut().expect("a call comes first").1 += &piece,
            }
        }
        (told, called)
    }

    /// The text beside calls, and the calls, from pieces of `most` letters.
    fn read(syntax: &CallSyntax, text: &str, most: usize, seed: u64) -> (String, Vec<(String, String)>) {
        let mut calls = Calls::new(syntax.clone(), tools());
        let mut found: Vec<Found> = pieces(text, most, seed).iter().flat_map(|piece| calls.push(piece)).collect();
        found.extend(calls.rest());
        joined(found)
    }

    #[test]
    fn calls_are_found_however_the_text_comes() {
        let oslo = || ("weather".to_owned(), json!({"city": "Oslo", "days": 2}));
        let now = || ("weather_now".to_owned(), json!({"city": "Rome }"}));
        let empty = || ("weather".to_owned(), json!({}));
        let one = r#"{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}"#;
        let other = r#"{"name": "weather_now", "arguments": {"city": "Rome }"}}"#;
        for (syntax, text, told, expected) in [
            (tagged(), format!("<tool_call>\n{one}\n</tool_call>"), "", vec![oslo()]),
            (tagged(), format!("Let me see.\n\n<tool_call>{one}</tool_call>\n<tool_call>\n{other}\n</tool_call>\n"), "Let me see.", vec![oslo(), now()]),
            (tagged(), format!("<tool_call>\n{one}\n</tool_call> done"), " done", vec![oslo()]),
            // The end of the turn came before the mark.
            (tagged(), format!("<tool_call>\n{one}"), "", vec![oslo()]),
            (tagged(), "<tool_call>\n{\"name\": \"weather\"}\n</tool_call>".into(), "", vec![empty()]),
            (lone(), one.replace("arguments", "parameters"), "", vec![oslo()]),
            (lone(), format!(" {}", other.replace("arguments", "parameters")), "", vec![now()]),
            (listed(), format!("[TOOL_CALLS] [{one}, {other}]"), "", vec![oslo(), now()]),
            (listed(), format!("[TOOL_CALLS][{one}]"), "", vec![oslo()]),
            (
                named(),
                "<calls><call>function<sep>weather\n```json\n{\"city\": \"Oslo\", \"days\": 2}\n```</call>\n<call>function<sep>weather_now\n```json\n{\"city\": \"Rome }\"}\n```</call></calls>".into(),
                "",
                vec![oslo(), now()],
            ),
            (
                marks(),
                "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>".into(),
                "",
                vec![oslo()],
            ),
            (
                marks(),
                "So:\n<tool_call>\n<function=weather_now>\n<parameter=city>\nRome }\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n</function>\n</tool_call>".into(),
                "So:",
                vec![now(), empty()],
            ),
        ] {
            let mut calls = Calls::new(syntax.clone(), tools());
            let found = [calls.push(&text), calls.rest()].concat();
            let whole = joined(found);
            let parsed = |arguments: &String| serde_json::from_str::<Value>(arguments).unwrap_or_default();
            let calls: Vec<_> = whole.1.iter().map(|(name, arguments)| (name.clone(), parsed(arguments))).collect();
            assert_eq!((whole.0.as_str(), calls), (told, expected), "{text:?}");
            for seed in 0..60 {
                assert_eq!(read(&syntax, &text, 6, seed), whole, "{text:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn arguments_are_told_as_they_come() {
        let object = |arguments: &str| format!("{{\"name\": \"weather\", \"arguments\": {arguments}");
        let of_marks = |value: &str| format!("<tool_call>\n<function=weather>\n<parameter=city>\n{value}");
        for (syntax, text, expected) in [
            (tagged(), format!("<tool_call>\n{}", object("{\"city\": \"Os")), "{\"city\": \"Os"),
            (tagged(), format!("<tool_call>\n{}", object("\"{\\\"city\\\": \\\"Os")), "{\"city\": \"Os"),
            (tagged(), format!("<tool_call>\n{}", object("{\"days\": 2}, \"id\": \"}")), "{\"days\": 2}"),
            (lone(), object("{\"city\": \"Os").replace("arguments", "parameters"), "{\"city\": \"Os"),
            (listed(), format!("[TOOL_CALLS] [{}", object("{")), "{"),
            (named(), "<calls><call>function<sep>weather\n```json\n{\"city\": ".into(), "{\"city\": "),
            (marks(), of_marks("Os"), "{\"city\":\"Os"),
            // What may be the mark behind the value is held back.
            (marks(), of_marks("Oslo \"city\"\n\n</para"), "{\"city\":\"Oslo \\\"city\\\"\\n"),
            (marks(), of_marks("Oslo\n</parameter>\n<parameter=days>\n2"), "{\"city\":\"Oslo\",\"days\":"),
        ] {
            for seed in 0..60 {
                let mut calls = Calls::new(syntax.clone(), tools());
                let found = pieces(&text, 6, seed).iter().flat_map(|piece| calls.push(piece)).collect();
                assert_eq!(joined(found), (String::new(), vec![("weather".into(), expected.into())]), "{text:?}");
            }
        }
    }

    #[test]
    fn a_call_that_is_none_does_not_hide_the_next_one() {
        let call = r#"<tool_call>{"name": "weather", "arguments": {}}</tool_call>"#;
        let other = r#"<tool_call>{"name": "other"}</tool_call>"#;
        for (text, told, calls) in [
            (format!("a <tool_call> is a mark: {call}"), "a <tool_call> is a mark:", 1),
            (format!("{other}{call}"), other, 1),
            (format!("{call}{other}{call}"), other, 2),
        ] {
            for seed in 0..60 {
                let (text, found) = read(&tagged(), &text, 1 + seed as usize, seed);
                assert_eq!((text.as_str(), found.len()), (told, calls));
            }
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for (syntax, text) in [
            (tagged(), "no call at all"),
            (tagged(), "a <tool_call> is a mark"),
            (tagged(), "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"),
            (tagged(), "<tool_call>\n{\"name\": \"weather\", \"argum"),
            (tagged(), "one < two <tool"),
            (lone(), "{\"answer\": 42} is no call"),
            (lone(), "It is {\"name\": \"weather\", \"parameters\": {}}"),
            (lone(), "{ not JSON }"),
            (named(), "<calls><call>function<sep>nothing\n```json\n{}\n```</call></calls>"),
            (marks(), "<tool_call>\n<function=nothing>\n</function>\n</tool_call>"),
        ] {
            for seed in 0..60 {
                assert_eq!(read(&syntax, text, 6, seed), (text.to_owned(), Vec::new()), "seed {seed}");
            }
        }
    }
}
