//! How much work one rendering may cost: a template of a few letters can double a text at every step, or read a long one again and again.

use std::cell::Cell;

use minijinja::Error;

use super::refusal::refused;

/// What a rendering may cost: about two seconds of work, and 128 MiB of text.
pub(super) const MOST: u64 = 2 << 30;

/// A byte that is read.
const READ_BYTE: u64 = 1;
/// A byte of a text that is made.
const MADE_BYTE: u64 = 16;
/// An item of a list, or a pair of a dictionary, that is read.
const READ_ITEM: u64 = 8;
/// An item that is put into a list that is made.
const MADE_ITEM: u64 = 128;
/// A value that is visited inside of another one.
const VISIT: u64 = 128;

thread_local! {
    /// The units that the rendering on this thread has left. A rendering stays on its thread, and begins by filling this up.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Begins with so much to spend.
pub(super) fn start(most: u64) {
    LEFT.set(most);
}

fn spend(units: u64) -> Result<(), Error> {
    let left = LEFT.get().checked_sub(units);
    LEFT.set(left.unwrap_or(0));
    let reason =
        "the template reads and makes too many texts and lists: shorten the conversation, or the template's loops";
    left.map(drop).ok_or_else(|| refused(reason))
}

fn of(count: usize, units: u64) -> Result<(), Error> {
    spend((count as u64).saturating_mul(units))
}

/// Pays for a text that is read.
pub(super) fn read_text(bytes: usize) -> Result<(), Error> {
    of(bytes, READ_BYTE)
}

/// Pays for a text that is made.
pub(super) fn made_text(bytes: usize) -> Result<(), Error> {
    of(bytes, MADE_BYTE)
}

/// Pays for a list that is read.
pub(super) fn read_items(items: usize) -> Result<(), Error> {
    of(items, READ_ITEM)
}

/// Pays for a list that is made.
pub(super) fn made_items(items: usize) -> Result<(), Error> {
    of(items, MADE_ITEM)
}

/// Pays for looking `times` times at a value.
pub(super) fn visit(times: usize) -> Result<(), Error> {
    of(times, VISIT)
}
