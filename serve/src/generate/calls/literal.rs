//! Literals of Python.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Number, Value};

/// Lists within lists that are read.
const DEEPEST: usize = 64;

/// The value of a literal in JSON: `None` for any other text.
pub(super) fn literal(text: &str) -> Option<Value> {
    let mut letters = text.chars().peekable();
    let value = value(&mut letters, DEEPEST)?;
    skip_spaces(&mut letters);
    letters.next().is_none().then_some(value)
}

type Letters<'a> = Peekable<Chars<'a>>;

fn skip_spaces(letters: &mut Letters) {
    while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
}

fn value(letters: &mut Letters, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    skip_spaces(letters);
    match letters.peek()? {
        '"' | '\'' => string(letters).map(Value::String),
        '[' => list(letters, ']', depth),
        '(' => list(letters, ')', depth),
        '{' => object(letters, depth),
        _ => word(letters),
    }
}

/// A list, or a tuple.
fn list(letters: &mut Letters, close: char, depth: usize) -> Option<Value> {
    letters.next();
    let mut values = Vec::new();
    while !ends(letters, close) {
        values.push(value(letters, depth)?);
        separate(letters, close)?;
    }
    Some(Value::Array(values))
}

fn object(letters: &mut Letters, depth: usize) -> Option<Value> {
    letters.next();
    let mut fields = Map::new();
    while !ends(letters, '}') {
        let key = match value(letters, depth)? {
            Value::String(key) => key,
            key => key.to_string(),
        };
        skip_spaces(letters);
        letters.next_if_eq(&':')?;
        fields.insert(key, value(letters, depth)?);
        separate(letters, '}')?;
    }
    Some(Value::Object(fields))
}

/// Takes the end of a list, if it is here.
fn ends(letters: &mut Letters, close: char) -> bool {
    skip_spaces(letters);
    letters.next_if_eq(&close).is_some()
}

/// Takes the comma behind a value. Behind the last one there may be none.
fn separate(letters: &mut Letters, close: char) -> Option<()> {
    skip_spaces(letters);
    (letters.next_if_eq(&',').is_some() || letters.peek() == Some(&close)).then_some(())
}

fn string(letters: &mut Letters) -> Option<String> {
    let quote = letters.next()?;
    let mut text = String::new();
    loop {
        match letters.next()? {
            letter if letter == quote => return Some(text),
            '\\' => match letters.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'x' => text.push(code(letters, 2)?),
                'u' => text.push(code(letters, 4)?),
                'U' => text.push(code(letters, 8)?),
                letter @ ('\\' | '\'' | '"' | '/') => text.push(letter),
                '\n' => {}
                // As Python has it.
                letter => text.extend(['\\', letter]),
            },
            letter => text.push(letter),
        }
    }
}

/// The letter of a number of so many digits. The two halves of a letter that JSON writes so are one.
fn code(letters: &mut Letters, digits: usize) -> Option<char> {
    let first = hexadecimal(letters, digits)?;
    let is_half = digits == 4 && (0xd800..0xdc00).contains(&first);
    if !is_half {
        return Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    let mut ahead = letters.clone();
    let second = match (ahead.next(), ahead.next()) {
        (Some('\\'), Some('u')) => hexadecimal(&mut ahead, 4).filter(|second| (0xdc00..0xe000).contains(second)),
        _ => None,
    };
    let Some(second) = second else { return Some(char::REPLACEMENT_CHARACTER) };
    *letters = ahead;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
}

fn hexadecimal(letters: &mut Letters, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0, |number: u32, _| Some((number << 4) | letters.next()?.to_digit(16)?))
}

fn word(letters: &mut Letters) -> Option<Value> {
    let mut word = String::new();
    while let Some(letter) = letters.next_if(|letter| letter.is_ascii_alphanumeric() || "+-._".contains(*letter)) {
        word.push(letter);
    }
    match word.as_str() {
        "True" | "true" => return Some(Value::Bool(true)),
        "False" | "false" => return Some(Value::Bool(false)),
        "None" | "null" => return Some(Value::Null),
        _ => {}
    }
    let is_number =
        word.trim_start_matches(['+', '-']).starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let digits = word.replace('_', "");
    let digits = digits.strip_prefix('+').unwrap_or(&digits);
    let whole = digits.parse::<i64>().map(Number::from).or_else(|_| digits.parse::<u64>().map(Number::from)).ok();
    let number = whole.or_else(|| Number::from_f64(digits.parse().ok()?));
    number.filter(|_| is_number).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn literals_are_values() {
        for (text, expected) in [
            ("'Oslo'", json!("Oslo")),
            (r#""it's \"here\"""#, json!("it's \"here\"")),
            (r"'a\tb\\\x41\u00e9\ud83d\ude00\U0001f600\q'", json!("a\tb\\Aé😀😀\\q")),
            (" -12 ", json!(-12)),
            ("1_000", json!(1000)),
            ("18446744073709551615", json!(u64::MAX)),
            ("+.5", json!(0.5)),
            ("1e3", json!(1000.)),
            ("[1, 'a', [True, None],]", json!([1, "a", [true, null]])),
            ("(1, 2)", json!([1, 2])),
            ("{'a': 1, \"b\": {}, 3: false}", json!({"a": 1, "b": {}, "3": false})),
        ] {
            assert_eq!(literal(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_none() {
        let deep = "[".repeat(200_000);
        for text in
            ["", "Oslo", "'a", "[1 2]", "{1}", "{'a': }", "1 2", "f(1)", "nan", "inf", r"'\x4'", r"'\u12", &deep]
        {
            assert_eq!(literal(text), None, "{}", text.get(..9).unwrap_or(text));
        }
    }
}
