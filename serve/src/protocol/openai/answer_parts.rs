//! The parts of one answer to a conversation.

use crate::generate::{Answer, Part, Parts, Tool};

/// Parts an answer, whose model may call tools.
pub(super) struct AnswerParts {
    /// Without it all of the text is content.
    parts: Option<Parts>,
    /// Whether there is at most one call.
    is_one_call: bool,
    /// Calls so far.
    pub calls: usize,
    /// Whether something came behind the only call that may be.
    is_past: bool,
}

impl AnswerParts {
    /// Of an answer whose model may call these tools, perhaps one of them once.
    pub fn new(answer: &Answer, tools: &[Tool], is_one_call: bool) -> Self {
        let syntax = answer.tokenizer().syntax(!tools.is_empty());
        let parts = syntax.map(|syntax| Parts::new(syntax, tools, answer.is_thinking()));
        Self { parts, is_one_call, calls: 0, is_past: false }
    }

    /// The parts that a piece of text makes certain, in the text that is at its end or goes on.
    pub fn push(&mut self, text: &str, is_last: bool) -> Vec<Part> {
        let mut parts = match &mut self.parts {
            Some(parts) => parts.push(text),
            None => vec![Part::Content(text.to_owned())],
        };
        if let Some(of) = self.parts.as_mut().filter(|_| is_last) {
            parts.extend(of.rest());
        }
        parts.retain(|part| {
            // Behind the only call that may be, there is nothing.
            let is_told = match part {
                Part::Arguments(_) => !self.is_past,
                _ => !(self.is_one_call && self.calls > 0),
            };
            self.is_past |= !is_told;
            self.calls += usize::from(is_told && matches!(part, Part::Call(_)));
            is_told
        });
        parts
    }
}
