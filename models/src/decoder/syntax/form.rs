//! How calls are written.

/// How calls are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSyntax {
    /// The mark before the first call. Where it is empty, only an answer that begins with a call has calls.
    pub open: String,
    /// The mark between two calls, if there may be several.
    pub between: Option<String>,
    /// The mark behind the last call.
    pub close: String,
    /// The call itself.
    pub form: CallForm,
}

/// How one call is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallForm {
    /// An object of JSON with the name and the arguments in fields of these names.
    Object {
        /// Of an id, where one stands before the name.
        id: Option<String>,
        /// Of the name.
        name: String,
        /// Of the arguments.
        arguments: String,
    },
    /// The name, perhaps an id of the call, and the arguments as an object of JSON.
    Named {
        /// The id.
        id: CallId,
        /// Between the name, or the id, and the arguments.
        middle: String,
    },
    /// As Python writes a call: the name, and in parentheses each argument with `=` and a literal.
    Python,
    /// The name, and an object of JSON whose names stand without quotes. Another mark stands in place of each quote of a text; no text has
    /// that mark in it.
    Quoted {
        /// Between the name and the first argument: a brace.
        open: String,
        /// Before a text and behind it.
        quote: String,
    },
    /// The name and each argument as text, with marks between them.
    Marked {
        /// Between the name and the first argument's.
        first: String,
        /// Between the name of an argument and its value.
        assign: String,
        /// Between a value and the name of the next argument.
        next: String,
        /// Behind the name of a call that has no arguments.
        empty: String,
    },
}

/// Where a call has an id beside its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallId {
    /// Nowhere.
    None,
    /// Behind the name and this mark.
    Behind(String),
    /// Behind the name and this mark: a number, which is one more for each call.
    Number(String),
    /// In place of the name, which is part of it. Templates write it as clients send it.
    Naming,
}

impl CallId {
    /// Whether ids have such letters.
    pub fn has(letter: char) -> bool {
        letter.is_ascii_alphanumeric() || "_-.:".contains(letter)
    }
}
