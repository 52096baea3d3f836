//! Tools, and calls of them.

use serde_json::Value;

/// A call that the model wrote, before its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The tool's name.
    pub name: String,
    /// The id that the model gave it, where its template writes nothing else back for the name.
    pub id: Option<String>,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The schema of its arguments, if it has one.
    pub parameters: Option<Value>,
}
