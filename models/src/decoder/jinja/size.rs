//! How large what a template makes may be: a template of a few letters can double a text at every step, and nest lists without end.

use minijinja::Error;

use super::refusal::refused;

/// Bytes of a text: more than any model's context.
const MOST_BYTES: usize = 16 << 20;

/// Items of a list.
const MOST_ITEMS: usize = 1 << 20;

/// Words of a paragraph, and paragraphs.
const MOST_WORDS: usize = 1000;

/// Lists and dictionaries inside of each other, where they are written.
const MOST_DEPTH: usize = 128;

/// Letters that a pattern fills a number up to. Rust formats with no more.
const MOST_WIDTH: u64 = u16::MAX as u64;

/// Why something is refused.
pub(super) fn too_large() -> Error {
    refused("a text or a list that the template makes is too large or nested too deep: 16 MiB, a million items and 128 levels are the most")
}

fn check(size: usize, most: usize) -> Result<(), Error> {
    if size > most {
        return Err(too_large());
    }
    Ok(())
}

/// Refuses a text of so many bytes.
pub(super) fn check_text(bytes: usize) -> Result<(), Error> {
    check(bytes, MOST_BYTES)
}

/// A text with a part replaced, so many times at most.
pub(super) fn replaced(text: &str, old: &str, new: &str, most: usize) -> Result<String, Error> {
    let found = text.matches(old).count().min(most);
    check_text(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, most))
}

/// Refuses a list of so many items.
pub(super) fn check_list(items: usize) -> Result<(), Error> {
    check(items, MOST_ITEMS)
}

/// Refuses a text that would be split into too many parts: at what is given, or at spaces.
pub(super) fn check_parts(text: &str, by: Option<&str>) -> Result<(), Error> {
    let most = if text.len() <= MOST_ITEMS { 0 } else { by.map_or(text.len(), |by| text.matches(by).count()) };
    let most = if by.is_none() && most > MOST_ITEMS { text.split_whitespace().count() } else { most };
    check_list(most)
}

/// Refuses so many words without a meaning.
pub(super) fn check_words(words: usize) -> Result<(), Error> {
    check(words, MOST_WORDS)
}

/// Refuses values that are so deep.
pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    check(depth, MOST_DEPTH)
}

/// Refuses a pattern with a width, a precision or a place that is too large, and widths that are arguments.
pub(super) fn check_pattern(pattern: &str) -> Result<(), Error> {
    let runs = pattern.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    let is_large = |run: &str| run.parse::<u64>().map_or(true, |width| width > MOST_WIDTH);
    let has_argument = pattern
        .split('%')
        .skip(1)
        .any(|field| field.trim_start_matches(|c: char| c.is_ascii_digit() || "#+- .".contains(c)).starts_with('*'));
    match runs.into_iter().any(is_large) || has_argument {
        true => {
            Err(refused("a pattern fills up to no more than 65,535 letters, and takes no width from its arguments"))
        }
        false => Ok(()),
    }
}
