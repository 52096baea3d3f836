//! Reads the arguments of a call, however they are written.

use super::json::Json;
use super::marked::Marked;
use super::python::Python;
use super::quoted::Quoted;

/// Reads the arguments of a call.
#[derive(Debug)]
pub(super) enum Reader {
    Json(Json),
    Marked(Marked),
    Python(Python),
    Quoted(Quoted),
}

impl Reader {
    /// Takes what is certain of a text, and says whether the arguments end there.
    pub fn read(&mut self, held: &mut String, is_last: bool, told: &mut String) -> bool {
        match self {
            Self::Json(json) => json.read(held, told),
            Self::Marked(marked) => marked.read(held, is_last, told),
            Self::Python(python) => python.read(held, told),
            Self::Quoted(quoted) => quoted.read(held, is_last, told),
        }
    }
}
