//! The parts of an answer: reasoning, text, and calls of tools.

use opara_models::decoder::Syntax;

use super::calls::{Call, Calls, Found, Tool};
use super::marks::certain;

/// A part of an answer, or of one that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// What the model thought before it answered.
    Reasoning(String),
    /// What it says.
    Content(String),
    /// A tool that it calls.
    Call(Call),
    /// A piece of the latest call's arguments. All pieces are an object of JSON, if the model ends it.
    Arguments(String),
}

/// Parts an answer as it comes, by the marks of its model's template.
#[derive(Debug)]
pub struct Parts {
    reasoning: Reasoning,
    calls: Option<Calls>,
}

/// Where an answer stands with its reasoning.
#[derive(Debug)]
enum Reasoning {
    /// It may begin with this mark; the second one ends it.
    May { open: String, close: String, held: String },
    /// It goes on until this mark.
    Within { close: String, held: String, has_begun: bool },
    /// There is none, or no more.
    Over { has_begun: bool },
}

impl Parts {
    /// Of answers that are written so. `is_thinking`: the prompt ends within the reasoning.
    pub fn new(syntax: &Syntax, tools: &[Tool], is_thinking: bool) -> Self {
        let held = String::new();
        let reasoning = match syntax.reasoning.clone() {
            Some((_, close)) if is_thinking => Reasoning::Within { close, held, has_begun: false },
            Some((open, close)) => Reasoning::May { open, close, held },
            None => Reasoning::Over { has_begun: true },
        };
        let calls = syntax.calls.clone().filter(|_| !tools.is_empty());
        Self { reasoning, calls: calls.map(|calls| Calls::new(calls, tools.to_vec())) }
    }

    /// The parts that one more piece of text makes certain.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        self.reason(piece.to_owned(), &mut parts);
        parts
    }

    /// What is left when the text has ended.
    pub fn rest(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        match std::mem::replace(&mut self.reasoning, Reasoning::Over { has_begun: true }) {
            Reasoning::May { held, .. } => self.content(&held, &mut parts),
            Reasoning::Within { held, has_begun, .. } => reasoned(&held, has_begun, true, &mut parts),
            Reasoning::Over { .. } => {}
        }
        if let Some(calls) = &mut self.calls {
            parts.extend(calls.rest().into_iter().map(part));
        }
        parts
    }

    fn reason(&mut self, piece: String, parts: &mut Vec<Part>) {
        match &mut self.reasoning {
            Reasoning::May { open, close, held } => {
                held.push_str(&piece);
                let text = held.trim_start();
                if let Some(rest) = text.strip_prefix(open.as_str()) {
                    let (rest, close) = (rest.to_owned(), close.clone());
                    self.reasoning = Reasoning::Within { close, held: String::new(), has_begun: false };
                    self.reason(rest, parts);
                } else if !open.starts_with(text) {
                    let text = std::mem::take(held);
                    self.reasoning = Reasoning::Over { has_begun: true };
                    self.content(&text, parts);
                }
            }
            Reasoning::Within { close, held, has_begun } => {
                held.push_str(&piece);
                if let Some((thought, rest)) = held.split_once(close.as_str()) {
                    let (thought, rest) = (thought.to_owned(), rest.to_owned());
                    reasoned(&thought, *has_begun, true, parts);
                    self.reasoning = Reasoning::Over { has_begun: false };
                    return self.reason(rest, parts);
                }
                // Spaces before the mark are no part of it.
                let certain = certain(held, close);
                let rest = held.split_off(certain);
                let thought = std::mem::replace(held, rest);
                let before = parts.len();
                reasoned(&thought, *has_begun, false, parts);
                *has_begun |= parts.len() > before;
            }
            Reasoning::Over { has_begun } => {
                // Nor are those behind it.
                let text = if *has_begun { piece.as_str() } else { piece.trim_start() };
                *has_begun |= !text.is_empty();
                let text = text.to_owned();
                self.content(&text, parts);
            }
        }
    }

    fn content(&mut self, text: &str, parts: &mut Vec<Part>) {
        match &mut self.calls {
            Some(calls) => parts.extend(calls.push(text).into_iter().map(part)),
            None if text.is_empty() => {}
            None => parts.push(Part::Content(text.to_owned())),
        }
    }
}

/// A piece of reasoning without the spaces around all of it.
fn reasoned(text: &str, has_begun: bool, is_last: bool, parts: &mut Vec<Part>) {
    let text = if has_begun { text } else { text.trim_start() };
    let text = if is_last { text.trim_end() } else { text };
    if !text.is_empty() {
        parts.push(Part::Reasoning(text.to_owned()));
    }
}

fn part(found: Found) -> Part {
    match found {
        Found::Text(text) => Part::Content(text),
        Found::Call(call) => Part::Call(call),
        Found::Arguments(piece) => Part::Arguments(piece),
    }
}

#[cfg(test)]
mod tests {
    use opara_models::decoder::{CallForm, CallSyntax};

    use super::*;

    fn syntax() -> Syntax {
        let form = CallForm::Object { id: None, name: "name".into(), arguments: "arguments".into() };
        let (open, close) = ("<call>".into(), "</call>".into());
        let calls = Some(CallSyntax { open, between: None, close, form });
        Syntax { calls, reasoning: Some(("<think>".into(), "</think>".into())) }
    }

    /// Reasoning, content and names of calls.
    fn read(text: &str, is_thinking: bool, seed: u64) -> (String, String, Vec<String>) {
        let tools = [Tool { name: "f".into(), parameters: None }];
        let mut parts = Parts::new(&syntax(), &tools, is_thinking);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut letters, mut told) = (text.chars().peekable(), Vec::new());
        while letters.peek().is_some() {
            let piece: String = letters.by_ref().take(rng.usize(1..7)).collect();
            told.extend(parts.push(&piece));
        }
        told.extend(parts.rest());
        let mut read = (String::new(), String::new(), Vec::new());
        for part in told {
            match part {
                Part::Reasoning(text) => read.0 += &text,
                Part::Content(text) => read.1 += &text,
                Part::Call(call) => read.2.push(call.name),
                Part::Arguments(_) => {}
            }
        }
        read
    }

    #[test]
    fn an_answer_is_parted_however_it_comes() {
        let call = r#"<call>{"name": "f"}</call>"#;
        for (text, is_thinking, reasoning, content, calls) in [
            ("an answer", false, "", "an answer", 0),
            ("<think>\na thought\n</think>\n\nan answer", false, "a thought", "an answer", 0),
            ("\na thought\n </think>\n\nan answer </think>", true, "a thought", "an answer </think>", 0),
            ("<think></think>an answer", false, "", "an answer", 0),
            ("a thought that has < no end", true, "a thought that has < no end", "", 0),
            ("<thin", false, "", "<thin", 0),
            ("an answer <think>", false, "", "an answer <think>", 0),
            (&format!("<think>I call.\n</think>\n\n{call}"), false, "I call.", "", 1),
            (&format!("{call}\n{call}"), false, "", "", 2),
        ] {
            let expected = (reasoning.to_owned(), content.to_owned(), vec!["f".to_owned(); calls]);
            for seed in 0..60 {
                assert_eq!(read(text, is_thinking, seed), expected, "{text:?}, seed {seed}");
            }
        }
    }
}
