//! Arguments of calls that stand between marks.

use opara_models::decoder::{CallForm, CallSyntax};
use serde_json::Value;

use super::super::marks::{beginning, common, escape, Beginning};
use super::kinds::{kind, kinds};
use super::tool::Tool;

/// Reads arguments that stand between marks as an object of JSON.
#[derive(Debug)]
pub(super) struct Marked {
    /// Between the name of an argument and its value.
    assign: String,
    /// Between a value and the name of the next argument.
    next: String,
    /// What the next mark and the one behind the call begin with: the end of a value.
    end: String,
    /// Behind the call, or between it and the next one.
    behind: Vec<String>,
    /// The schema of all arguments.
    schema: Value,
    stage: Stage,
    /// Whether there is an argument already.
    has_some: bool,
}

/// Bytes that a name and the mark behind it have at most.
const LONGEST: usize = 1_024;

#[derive(Debug)]
enum Stage {
    /// At the name of an argument.
    Name,
    /// Behind the mark between name and value.
    Value { kinds: Vec<String> },
    /// Within a text that is told as it comes.
    Text,
    /// Behind a value.
    Behind,
}

impl Marked {
    /// Of calls of this form; `None` where nothing ends a value.
    pub fn new(syntax: &CallSyntax, tool: Option<&Tool>) -> Option<Self> {
        let CallForm::Marked { assign, next, .. } = &syntax.form else { return None };
        let end = common(next, &syntax.close);
        let behind = [Some(&syntax.close), syntax.between.as_ref()].into_iter().flatten();
        let behind = behind.filter(|mark| !mark.trim().is_empty()).cloned().collect();
        let schema = tool.and_then(|tool| tool.parameters.clone()).unwrap_or_default();
        let (assign, next) = (assign.clone(), next.clone());
        (!end.is_empty()).then_some(Self { assign, next, end, behind, schema, stage: Stage::Name, has_some: false })
    }

    /// Takes what is certain of a text, and says whether the arguments end there.
    pub fn read(&mut self, held: &mut String, is_last: bool, told: &mut String) -> bool {
        loop {
            match &self.stage {
                Stage::Name => {
                    let ends = self.behind.iter().map(|mark| beginning(held, mark));
                    if ends.clone().any(|end| matches!(end, Beginning::Is(..))) {
                        return self.close(told);
                    }
                    let may_end = ends.clone().any(|end| matches!(end, Beginning::May));
                    let Some((length, mark)) = self.name(held) else {
                        // No name is as long, nor has lines.
                        let first = self.assign.trim_start().chars().next();
                        let name = held.trim_start().split(|letter| Some(letter) == first).next().unwrap_or("");
                        let is_none = held.len() > LONGEST || name.contains('\n');
                        return is_none && (is_last || !may_end) && self.close(told);
                    };
                    let name = held[..length].trim().to_owned();
                    let spaces = spaces_behind(&self.assign);
                    let rest = &held[length + mark..];
                    if !is_last && rest.len() < spaces.len() && spaces.starts_with(rest) {
                        return false;
                    }
                    let spaces = if rest.starts_with(spaces) { spaces.len() } else { 0 };
                    held.drain(..length + mark + spaces);
                    told.push(if self.has_some { ',' } else { '{' });
                    self.has_some = true;
                    *told += &format!("{}:", Value::from(name.as_str()));
                    let kinds = kinds(&self.schema["properties"][name.as_str()], &self.schema);
                    self.stage = Stage::Value { kinds };
                }
                Stage::Value { kinds } if !kinds.is_empty() && kinds.iter().all(|kind| kind == "string") => {
                    told.push('"');
                    self.stage = Stage::Text;
                }
                Stage::Value { kinds } => {
                    let Some(at) = held.find(&self.end) else { return false };
                    *told += &typed(self.without_spaces(&held[..at]), kinds).to_string();
                    held.drain(..at);
                    self.stage = Stage::Behind;
                }
                Stage::Text => {
                    let Some(at) = held.find(&self.end) else {
                        // What may be the spaces before the mark, or the mark, is held back.
                        let whole = format!("{}{}", self.spaces(), self.end);
                        let starts = held.char_indices().map(|(at, _)| at);
                        let mut starts = starts.filter(|at| held.len() - at < whole.len());
                        let is_mark = |rest: &str| whole.starts_with(rest) || self.end.starts_with(rest);
                        let certain = starts.find(|at| !is_last && is_mark(&held[*at..])).unwrap_or(held.len());
                        escape(&held[..certain], told);
                        held.drain(..certain);
                        return false;
                    };
                    escape(self.without_spaces(&held[..at]), told);
                    told.push('"');
                    held.drain(..at);
                    self.stage = Stage::Behind;
                }
                Stage::Behind => match beginning(held, &self.next) {
                    Beginning::Is((), length) => {
                        held.drain(..length);
                        self.stage = Stage::Name;
                    }
                    Beginning::May if !is_last => return false,
                    _ => return self.close(told),
                },
            }
        }
    }

    fn close(&self, told: &mut String) -> bool {
        *told += if self.has_some { "}" } else { "{}" };
        true
    }

    /// The bytes of a name and of the mark behind it.
    fn name(&self, held: &str) -> Option<(usize, usize)> {
        let first = self.assign.trim_start().chars().next()?;
        held.match_indices(first).find_map(|(at, _)| match beginning(&held[at..], &self.assign) {
            Beginning::Is((), length) => Some((at, length)),
            _ => None,
        })
    }

    /// The spaces between a value and the mark behind it.
    fn spaces(&self) -> &str {
        &self.next[..self.next.len() - self.next.trim_start().len()]
    }

    fn without_spaces<'a>(&self, value: &'a str) -> &'a str {
        value.strip_suffix(self.spaces()).unwrap_or(value)
    }
}

/// The spaces that a mark ends with.
fn spaces_behind(mark: &str) -> &str {
    &mark[mark.trim_end().len()..]
}

/// A value of one of these types: what the text is in JSON, or the text itself.
fn typed(text: &str, kinds: &[String]) -> Value {
    let may_be_text = kinds.iter().any(|kind| kind == "string");
    let fits = |value: &Value| {
        let of = kind(value);
        of != "string" && kinds.iter().any(|kind| kind == of || kind == "number" && of == "integer")
    };
    match serde_json::from_str(text) {
        Ok(value) if !may_be_text || fits(&value) => value,
        _ => Value::from(text),
    }
}
