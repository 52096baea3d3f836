//! The text of a file in Rust as tokens.

/// Names, `::`, literals as `""`, and all other characters one by one, without comments.
pub fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '/' if rest.starts_with("//") => (None, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => (None, rest.find("*/").map_or(rest.len(), |end| end + 2)),
            '"' => (Some("\"\""), quoted(rest, '"')),
            '\'' if is_character(rest) => (Some("\"\""), quoted(rest, '\'')),
            _ if rest.starts_with("::") => (Some("::"), 2),
            _ => match raw(rest) {
                Some(length) => (Some("\"\""), length),
                None => {
                    let word = rest[first.len_utf8()..].find(|c: char| !is_word(c)).map(|end| end + first.len_utf8());
                    let length = match is_word(first) || first == '\'' {
                        true => word.unwrap_or(rest.len()),
                        false => first.len_utf8(),
                    };
                    (Some(&rest[..length]), length)
                }
            },
        };
        tokens.extend(token);
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Is this token a name?
pub fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Is it a character, and not a lifetime?
fn is_character(text: &str) -> bool {
    let mut letters = text.chars().skip(1);
    let (first, second) = (letters.next(), letters.next());
    first == Some('\\') || second == Some('\'')
}

/// The length of a literal in quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a literal with letters before its quotes, if it is one.
fn raw(text: &str) -> Option<usize> {
    let prefix = text.find(|c: char| !matches!(c, 'b' | 'r' | 'c')).filter(|length| (1..3).contains(length))?;
    let rest = &text[prefix..];
    if !text[..prefix].contains('r') {
        let quote = rest.chars().next().filter(|c| *c == '"' || *c == '\'' && is_character(rest))?;
        return Some(prefix + quoted(rest, quote));
    }
    let hashes = rest.find(|c| c != '#')?;
    let inner = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(prefix + hashes + 1 + inner.find(&end).map_or(inner.len(), |at| at + end.len()))
}

/// The tokens without what only tests compile, and the names of modules that only tests compile.
pub fn without_tests<'a>(tokens: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let (mut kept, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        match tests_end(tokens, at) {
            Some(begin) => {
                let end = item_end(tokens, begin);
                let item = &tokens[begin..end];
                if let Some(place) = item.windows(3).position(|three| three[0] == "mod" && three[2] == ";") {
                    modules.push(item[place + 1]);
                }
                at = end;
            }
            None => {
                kept.push(tokens[at]);
                at += 1;
            }
        }
    }
    (kept, modules)
}

/// Where an attribute ends that begins here and leaves an item to tests.
fn tests_end(tokens: &[&str], at: usize) -> Option<usize> {
    let rest = &tokens[at..];
    let is_cfg = rest.starts_with(&["#", "[", "cfg", "("]);
    let end = at + group_end(tokens, at + 1)?;
    let names = &tokens[(at + 4).min(end)..end];
    (is_cfg && (names[0] == "test" || names.starts_with(&["all", "("]) && names.contains(&"test"))).then_some(end)
}

/// Tokens of `#`, and of the group that begins at the next one.
fn group_end(tokens: &[&str], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (length, token) in tokens.get(open..)?.iter().enumerate() {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return Some(length + 2);
        }
    }
    None
}

/// Where the item that begins here ends.
fn item_end(tokens: &[&str], begin: usize) -> usize {
    let (mut at, mut ends_at_brace) = (begin, true);
    while let Some(&token) = tokens.get(at) {
        match token {
            "#" => at += group_end(tokens, at + 1).unwrap_or(1),
            "use" | "const" | "static" | "type" | "let" => {
                ends_at_brace = false;
                at += 1;
            }
            "fn" | "impl" | "struct" | "enum" | "mod" => {
                ends_at_brace = true;
                at += 1;
            }
            "{" if ends_at_brace => return at + group_end(tokens, at).map_or(1, |length| length - 1),
            "(" | "[" | "{" => at += group_end(tokens, at).map_or(1, |length| length - 1),
            ";" => return at + 1,
            // The end of what the item is in.
            ")" | "]" | "}" => return at,
            _ => at += 1,
        }
    }
    at
}

#[test]
fn comments_and_literals_are_passed_over() {
    let text = "a /* b */ \"c // d\\\"\" 'e' '\\'' 'f::g br#\"h\"i\"# // j\nb'k' r#\"l\"# m";
    let expected = ["a", "\"\"", "\"\"", "\"\"", "'f", "::", "g", "\"\"", "\"\"", "\"\"", "m"];
    assert_eq!(tokens(text), expected);
}

#[test]
fn what_only_tests_compile_is_left_out() {
    let text = "#[cfg(test)] mod a; #[cfg(all(test, x))] #[allow(b)] mod c { fn d() {} } #[cfg(test)] use e::{f, g};
        #[cfg(any(test, h))] fn i() {} #[cfg(test)] const J: [u8; 2] = { [1; 2] }; #[cfg(test)] fn k(l: [u8; 3]) {} m";
    let (kept, modules) = (tokens(text), ["a"]);
    let (kept, found) = without_tests(&kept);
    assert_eq!(kept.join(" "), "# [ cfg ( any ( test , h ) ) ] fn i ( ) { } m");
    assert_eq!(found, modules);
}
