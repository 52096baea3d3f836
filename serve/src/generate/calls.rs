//! Calls of tools in a text, as it comes.

use opara_models::decoder::{CallForm, CallSyntax};
use serde_json::{Map, Value};

use super::marks::{beginning, certain, common, Beginning};

/// A call that the model wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The tool's name.
    pub name: String,
    /// Its arguments: an object of JSON.
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The schema of its arguments, if it has one.
    pub parameters: Option<Value>,
}

/// What stands in a text beside or instead of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Text(String),
    Call(Call),
}

/// Finds calls. What turns out to be none, or a call of another tool, is text.
#[derive(Debug)]
pub(super) struct Calls {
    syntax: CallSyntax,
    tools: Vec<Tool>,
    /// What is not certain: within calls from their beginning on.
    held: String,
    /// How much of that are calls that were found, where it begins with some.
    within: Option<usize>,
    /// Whether there was anything but spaces.
    has_begun: bool,
    has_calls: bool,
}

impl Calls {
    pub fn new(syntax: CallSyntax, tools: Vec<Tool>) -> Self {
        Self { syntax, tools, held: String::new(), within: None, has_begun: false, has_calls: false }
    }

    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        self.held += piece;
        self.find(false)
    }

    /// What is left when the text has ended.
    pub fn rest(&mut self) -> Vec<Found> {
        let mut found = self.find(true);
        let from = self.within.take().filter(|_| self.has_calls).unwrap_or(0);
        let rest = self.held.split_off(from.min(self.held.len()));
        self.held.clear();
        self.tell(rest, &mut found);
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
        loop {
            let Some(within) = self.within else {
                if !self.open(is_last, &mut found) {
                    return found;
                }
                continue;
            };
            // The mark before the next call, or behind the last one.
            let mut at = within;
            if within > 0 {
                let rest = &self.held[within..];
                let next = self.syntax.between.as_deref().map_or(Beginning::No, |mark| beginning(rest, mark));
                let is_waited_for = matches!(next, Beginning::May) && !is_last;
                match (next, beginning(rest, &self.syntax.close)) {
                    (Beginning::Is((), length), _) => at = within + length,
                    _ if is_waited_for => return found,
                    (_, Beginning::Is((), length)) => {
                        self.held.drain(..within + length);
                        self.within = None;
                        continue;
                    }
                    (_, Beginning::May) if !is_last => return found,
                    _ => {
                        // No mark that is known: what follows is text.
                        self.held.drain(..within);
                        self.within = None;
                        continue;
                    }
                }
            } else if let Beginning::Is((), length) = beginning(&self.held, &self.syntax.open) {
                at = length;
            }
            match self.call(&self.held[at..], is_last) {
                Beginning::Is(call, length) => {
                    self.within = Some(at + length);
                    (self.has_begun, self.has_calls) = (true, true);
                    found.push(Found::Call(call));
                }
                Beginning::May if !is_last => return found,
                _ => {
                    // None after all.
                    let rest = self.held.split_off(within);
                    self.held.clear();
                    self.within = None;
                    self.tell(rest, &mut found);
                    return found;
                }
            }
        }
    }

    /// Tells what stands before the mark of the first call; false if there is none yet.
    fn open(&mut self, is_last: bool, found: &mut Vec<Found>) -> bool {
        let open = self.syntax.open.trim();
        if open.is_empty() {
            // A call begins where the answer does.
            let may_call = !self.has_begun && !self.has_calls;
            if may_call && self.held.trim().is_empty() && !is_last {
                return false;
            }
            if may_call && !matches!(self.call(&self.held, is_last), Beginning::No) {
                self.within = Some(0);
                return true;
            }
            let text = std::mem::take(&mut self.held);
            self.tell(text, found);
            return false;
        }
        // The first letters of the mark, since spaces within it may be others.
        let mark = open.split_whitespace().next().unwrap_or(open);
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
            self.within = is_open.then_some(0);
            return is_open || until > at;
        }
        // Spaces before a mark are not part of the text.
        let certain = if is_last { self.held.len() } else { certain(&self.held, mark) };
        let rest = self.held.split_off(certain);
        let before = std::mem::replace(&mut self.held, rest);
        self.tell(before, found);
        false
    }

    /// The call that a text begins with.
    fn call(&self, text: &str, is_last: bool) -> Beginning<Call> {
        let start = text.len() - text.trim_start().len();
        let text = &text[start..];
        let call = match &self.syntax.form {
            CallForm::Object { name, arguments } => object(text).then(|fields, length| {
                let call = self.of_fields(&fields, name, arguments);
                call.map_or(Beginning::No, |call| Beginning::Is(call, length))
            }),
            CallForm::Named { middle } => self.named(text, middle.trim(), |name, rest| {
                object(rest).then(|fields, length| {
                    let arguments = Value::Object(fields).to_string();
                    Beginning::Is(Call { name: name.to_owned(), arguments }, length)
                })
            }),
            CallForm::Marked { first, assign, next, empty } => {
                let end = common(next, &self.syntax.close);
                self.named(text, "", |name, rest| match (beginning(rest, first), beginning(rest, empty)) {
                    (Beginning::Is((), length), _) => {
                        let (marks, tool) = ([assign.as_str(), next.as_str(), end.as_str()], self.tool(name));
                        marked(name, &rest[length..], marks, tool, is_last).behind(length)
                    }
                    // With the mark behind the call.
                    (_, Beginning::Is((), length)) => {
                        Beginning::Is(Call { name: name.to_owned(), arguments: "{}".to_owned() }, length)
                    }
                    (Beginning::No, Beginning::No) => Beginning::No,
                    _ => Beginning::May,
                })
            }
        };
        call.behind(start)
    }

    /// A call whose name stands before a mark. The mark is empty where none stands between the name and the first argument's own.
    fn named(&self, text: &str, middle: &str, arguments: impl Fn(&str, &str) -> Beginning<Call>) -> Beginning<Call> {
        // The longest name first, since one may be the beginning of another.
        let mut names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        names.sort_unstable_by_key(|name| std::cmp::Reverse(name.len()));
        let mut found = Beginning::No;
        for name in names {
            let call = beginning(text, name).then(|(), length| {
                let mark = beginning(&text[length..], middle).behind(length);
                mark.then(|(), length| arguments(name, &text[length..]).behind(length))
            });
            match call {
                Beginning::Is(..) => return call,
                Beginning::May => found = Beginning::May,
                Beginning::No => {}
            }
        }
        found
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// A call from an object's fields. Arguments may be a text of JSON.
    fn of_fields(&self, fields: &Map<String, Value>, name: &str, arguments: &str) -> Option<Call> {
        let name = self.tool(fields.get(name)?.as_str()?)?.name.clone();
        let arguments = match fields.get(arguments) {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        Some(Call { name, arguments })
    }
}

/// The object of JSON that a text begins with.
fn object(text: &str) -> Beginning<Map<String, Value>> {
    let spaces = text.len() - text.trim_start().len();
    let mut values = serde_json::Deserializer::from_str(&text[spaces..]).into_iter::<Map<String, Value>>();
    match values.next() {
        Some(Ok(fields)) => Beginning::Is(fields, spaces + values.byte_offset()),
        Some(Err(error)) if error.is_eof() => Beginning::May,
        None => Beginning::May,
        Some(Err(_)) => Beginning::No,
    }
}

/// Arguments that stand between marks, which are texts unless the tool's schema says otherwise.
fn marked(
    name: &str,
    text: &str,
    [assign, next, end]: [&str; 3],
    tool: Option<&Tool>,
    is_last: bool,
) -> Beginning<Call> {
    if end.is_empty() {
        return Beginning::No;
    }
    let (mut fields, mut at) = (Map::new(), 0);
    loop {
        let rest = &text[at..];
        // A name has no spaces: the mark's first letters end it.
        let first = assign.trim().chars().next().unwrap_or('>');
        let Some(length) = rest.find(first) else { return Beginning::May };
        let argument = rest[..length].trim().to_owned();
        let Beginning::Is((), mark) = beginning(&rest[length..], assign) else { return Beginning::May };
        let value = &rest[length + mark..];
        let Some(stop) = value.find(end) else { return Beginning::May };
        fields.insert(argument.clone(), typed(value[..stop].trim_matches('\n'), &argument, tool));
        at += length + mark + stop;
        match beginning(&text[at..], next) {
            Beginning::Is((), mark) => at += mark,
            Beginning::May if !is_last => return Beginning::May,
            _ => break,
        }
    }
    let arguments = Value::Object(fields).to_string();
    Beginning::Is(Call { name: name.to_owned(), arguments }, at)
}

/// A value as the schema of a tool has it: a text, or what the text is in JSON.
fn typed(text: &str, argument: &str, tool: Option<&Tool>) -> Value {
    let schema = tool.and_then(|tool| tool.parameters.as_ref()?.get("properties")?.get(argument));
    let is_text = schema.is_some_and(|schema| match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => false,
    });
    match serde_json::from_str(text) {
        Ok(value) if !is_text => value,
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    /// The text beside calls, and the calls, from pieces of random sizes.
    fn read(syntax: &CallSyntax, text: &str, seed: u64) -> (String, Vec<(String, Value)>) {
        let mut calls = Calls::new(syntax.clone(), tools());
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut letters, mut found) = (text.chars().peekable(), Vec::new());
        while letters.peek().is_some() {
            let piece: String = letters.by_ref().take(rng.usize(1..6)).collect();
            found.extend(calls.push(&piece));
        }
        found.extend(calls.rest());
        let (mut told, mut called) = (String::new(), Vec::new());
        for found in found {
            match found {
                Found::Text(text) => told += &text,
                Found::Call(call) => {
                    called.push((call.name, serde_json::from_str(&call.arguments).unwrap_or_default()))
                }
            }
        }
        (told, called)
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
            for seed in 0..60 {
                assert_eq!(read(&syntax, &text, seed), (told.to_owned(), expected.clone()), "{text:?}, seed {seed}");
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
                assert_eq!(read(&syntax, text, seed), (text.to_owned(), Vec::new()), "seed {seed}");
            }
        }
    }
}
