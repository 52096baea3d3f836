//! Rules of a grammar, in llguidance's dialect of Lark.

use opara_models::decoder::Text;
use serde_json::{json, Map, Value};

use super::{Failure, Result};

/// Spaces between the parts of JSON: as in lines that are indented. Without a bound a text could be spaces for ever.
const SPACES: &str = r"[ \t]{0,2}(\n[ \t]{0,40})?";
/// Any text, of letters that are no special token.
pub(super) const ANY: &str = r"(.|\n)*";

/// Rules of a grammar for the texts of one tokenizer.
pub(super) struct Rules<'a> {
    text: &'a Text,
    rules: String,
    count: usize,
}

impl<'a> Rules<'a> {
    pub fn new(text: &'a Text) -> Self {
        Self { text, rules: String::new(), count: 0 }
    }

    /// The grammar of texts that follow this rule.
    pub fn into_grammar(self, start: &str) -> String {
        format!("start: {start}\n{}", self.rules)
    }

    /// A name of a rule.
    pub fn name(&mut self) -> String {
        self.count += 1;
        format!("r{}", self.count)
    }

    /// A rule: its name.
    pub fn add(&mut self, body: &str) -> String {
        let name = self.name();
        self.define(&name, body);
        name
    }

    /// The rule of a [name](Self::name).
    pub fn define(&mut self, name: &str, body: &str) {
        self.rules += &format!("{name}: {body}\n");
    }

    /// JSON of a schema within `root`, whose definitions it may name.
    ///
    /// # Errors
    /// A schema that is no object.
    pub fn json(&mut self, schema: &Value, root: &Value) -> Result<String> {
        let mut fields = match schema {
            Value::Object(fields) => fields.clone(),
            Value::Bool(true) => Map::new(),
            other => return Err(Failure::invalid(format!("a schema of JSON is an object, and this is {other}"))),
        };
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name).filter(|_| !fields.contains_key(name)) {
                fields.insert(name.into(), definitions.clone());
            }
        }
        fields.insert("x-guidance".into(), json!({"whitespace_pattern": SPACES}));
        Ok(self.add(&format!("%json {}", Value::Object(fields))))
    }

    /// A mark, as the tokens and letters that a model writes it by.
    pub fn mark(&self, mark: &str) -> String {
        let parts = self.text.at_special(mark).into_iter();
        let parts = parts.map(|(before, token)| {
            let before = if before.is_empty() { String::new() } else { literal(before) };
            token.map_or(before.clone(), |token| format!("{before} <[{token}]>"))
        });
        parts.collect::<Vec<_>>().join(" ")
    }

    /// A text of a regular expression that ends before a mark, and the mark. Spaces before the mark may be part of [any text](ANY).
    ///
    /// # Errors
    /// A mark of letters and a special token behind them: nothing says where the text ends.
    pub fn until(&mut self, regex: &str, mark: &str) -> Result<String> {
        let of_any = mark.trim_start();
        let mark = if regex == ANY { of_any } else { mark };
        match self.text.at_special(mark)[..] {
            [(letters, None)] => {
                let text = match regex == ANY {
                    true => format!("/{ANY}/"),
                    // Readers look for the mark alone.
                    false => self.terminal(&format!("/{regex}/ & ~/{ANY}{}{ANY}/", escaped(of_any))),
                };
                let name = self.name();
                self.define(&format!("{name}[suffix={}]", literal(letters)), &text);
                Ok(name)
            }
            [(spaces, Some(_)), ..] if spaces.trim().is_empty() => Ok(format!("/{regex}/ {}", self.mark(mark))),
            _ => Err(Failure::invalid(format!("texts that end before {mark:?} cannot be made to have a form"))),
        }
    }

    /// A terminal, which may join regular expressions by `&` and `~`: its name.
    pub fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        self.define(&name, body);
        name
    }

    /// Any text in which these letters do not stand.
    pub fn without(&mut self, letters: &str) -> String {
        self.terminal(&format!("/{ANY}/ & ~/{ANY}{}{ANY}/", escaped(letters)))
    }

    /// Whether there is a special token in a mark.
    pub fn is_special(&self, mark: &str) -> bool {
        self.text.at_special(mark).len() > 1
    }
}

/// A regular expression as it stands between slashes.
pub(super) fn between_slashes(regex: &str) -> String {
    let (mut told, mut is_escaped) = (String::new(), false);
    for letter in regex.chars() {
        match letter {
            '/' if !is_escaped => told += "\\/",
            '\n' => told += if is_escaped { "n" } else { "\\n" },
            letter => told.push(letter),
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    told
}

/// The regular expression of these letters.
fn escaped(letters: &str) -> String {
    let escaped = letters.chars().map(|letter| match letter {
        '\n' => "\\n".to_owned(),
        letter if r"\.+*?()|[]{}^$#&-~/".contains(letter) => format!("\\{letter}"),
        letter => letter.to_string(),
    });
    escaped.collect()
}

/// A text between quotes.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_lines_do_not_end_an_expression() {
        for (regex, expected) in [("a/b", r"a\/b"), (r"a\/b", r"a\/b"), (r"a\\/b", r"a\\\/b"), ("a\nb", r"a\nb")] {
            assert_eq!(between_slashes(regex), expected);
        }
    }
}
