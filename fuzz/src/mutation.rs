//! Changes of an input, as fuzzers make them: for runs that no coverage leads.

use fastrand::Rng;

/// Numbers at which something ends.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2",
    "7",
    "255",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "1e-40",
];

/// Inputs to begin with, and words of their format.
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    rng: Rng,
}

impl Mutator {
    /// The same numbers give the same inputs.
    pub fn new(seeds: Vec<Vec<u8>>, words: Vec<Vec<u8>>, seed: u64) -> Self {
        Self { seeds, words, rng: Rng::with_seed(seed) }
    }

    /// A sound input with some changes.
    pub fn input(&mut self) -> Vec<u8> {
        let mut bytes = self.rng.choice(&self.seeds).cloned().unwrap_or_default();
        for _ in 0..self.rng.usize(1..6) {
            self.change(&mut bytes);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let at = rng.usize(..bytes.len() + 1);
        let span = at..(at + rng.usize(1..17)).min(bytes.len()).max(at);
        match rng.u8(..12) {
            0 => bytes.insert(at, rng.u8(..)),
            1 => drop(bytes.drain(span)),
            2 => bytes.truncate(at),
            3 => bytes.extend_from_within(at..),
            4 => {
                let word = rng.choice(&self.words).cloned().unwrap_or_default();
                bytes.splice(at..at, word);
            }
            // A word for a word.
            5 => {
                let word = rng.choice(&self.words).cloned().unwrap_or_default();
                bytes.splice(run(bytes, at, |byte| byte.is_ascii_alphanumeric() || byte == b'_'), word);
            }
            6 | 7 => {
                let number = NUMBERS[rng.usize(..NUMBERS.len())];
                bytes.splice(run(bytes, at, |byte| byte.is_ascii_digit()), number.bytes());
            }
            // A number in four bytes.
            8 => {
                let number = [0, 1, u32::MAX, 1 << 31, rng.u32(..300)][rng.usize(..5)].to_le_bytes();
                bytes.iter_mut().skip(at).zip(number).for_each(|(byte, new)| *byte = new);
            }
            9 => {
                let other = rng.choice(&self.seeds).cloned().unwrap_or_default();
                let from = rng.usize(..other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            10 => {
                let open = [b'[', b'{', b'(', b'"'][rng.usize(..4)];
                bytes.splice(at..at, std::iter::repeat_n(open, rng.usize(..200)));
            }
            _ => {
                let bit = 1 << rng.u8(..8);
                bytes[span].iter_mut().take(1).for_each(|byte| *byte ^= bit);
            }
        }
    }
}

/// The bytes around a place, or the next behind it, that are such.
fn run(bytes: &[u8], at: usize, is_such: fn(u8) -> bool) -> std::ops::Range<usize> {
    let start = (at..bytes.len()).find(|&at| is_such(bytes[at])).unwrap_or(bytes.len());
    let first = (0..start).rev().take_while(|&at| is_such(bytes[at])).last().unwrap_or(start);
    let end = (start..bytes.len()).find(|&at| !is_such(bytes[at])).unwrap_or(bytes.len());
    first..end
}
