//! How a model writes calls of tools whose template writes none, but names their mark where it lists the tools.

use super::form::{CallForm, CallSyntax};

/// Bytes that a mark has at most.
const LONGEST: usize = 64;

/// Calls behind the only mark that a prompt has once, and has with tools alone: a list of objects, as clients send them. `None` where
/// several marks come with tools, since nothing says which one is that of calls, and where it is that of the list of tools. `without` are
/// prompts of all roles.
pub fn announced(without: &str, with: &str) -> Option<CallSyntax> {
    let mut added = marks(with).filter(|(mark, _)| !without.contains(mark));
    let (mark, behind) = added.next().filter(|_| added.next().is_none())?;
    if behind.trim_start().starts_with(['[', '{']) {
        return None;
    }
    let form = CallForm::Object { id: None, name: "name".into(), arguments: "arguments".into() };
    Some(CallSyntax { open: format!("{mark}["), between: Some(", ".into()), close: "]".into(), form })
}

/// Special tokens, which are written as `<|tool_call|>` is, and the text behind each.
fn marks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices("<|").filter_map(|(start, _)| {
        let end = start + text[start..].find("|>")? + 2;
        let (mark, behind) = (&text[start..end], &text[end..]);
        let is_mark = !mark[1..].contains(|letter: char| letter == '<' || letter.is_whitespace());
        (mark.len() <= LONGEST && is_mark).then_some((mark, behind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mark_that_comes_with_tools_is_that_of_calls() {
        let turn = "<|role|>user<|end|>";
        let of = |with: &str| announced(turn, &format!("{with}{turn}")).map(|calls| calls.open);
        // As Granite 3.1 to 3.3 have it.
        let said = "<|role|>system<|end|>Respond only with <|tool_call|> followed by a JSON list.<|role|>tools<|end|>";
        assert_eq!(of(said).as_deref(), Some("<|tool_call|>["));
        for other in [
            "",
            "[{}]",
            "<|tool|>[{}]<|/tool|>",
            "<|call|>[{}]<|call|>",
            "<| call |>",
            "<|",
            "<tools>",
            "<|tools|> [{}]",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
