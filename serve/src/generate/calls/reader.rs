//! Reads the arguments of a call, however they are written.

use super::json::Json;
use super::marked::Marked;
use super::python::Python;

/// Reads the arguments of a call.
#[derive(Debug)]
pub(super) enum Reader {
    Json(Json),
    Marked(Marked),
    Python(Python),
}

impl Reader {
    /// Takes what is certain of a text, and says whether the arguments end there.
    pub fn read(&mut self, held: &mut String, is_last: bool, told: &mut String) -> bool {
        match self {
            Self::Json(json) => json.read(held, told),
            Self::Marked(marked) => marked.read(held, is_last, told),
            Self::Python(python) => python.read(held, told),
        }
    }
}
