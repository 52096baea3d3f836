//! Names, arguments and calls that templates are asked to write.

use serde_json::{json, Value};

pub const SAID: &str = "said7q";
/// The beginning of each call's id. Some templates take only ids of nine letters and digits.
pub const ID: &str = "call0000";
pub const NAMES: [&str; 2] = ["name7a", "name7b"];
/// The names and values of two arguments of each call.
pub const ARGUMENTS: [[&str; 4]; 2] = [["key7a", "value7a", "key7b", "71"], ["key7c", "value7c", "key7d", "72"]];

/// How many elements two sequences have in common at their beginning.
pub fn common(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// A call of the probes.
pub fn call(at: usize, has_arguments: bool) -> Value {
    let [first, value, second, number] = ARGUMENTS[at];
    let number: u32 = number.parse().unwrap_or_default();
    let arguments = if has_arguments { json!({first: value, second: number}) } else { json!({}) };
    let id = format!("{ID}{at}");
    json!({"id": id, "type": "function", "function": {"name": NAMES[at], "arguments": arguments}})
}
