//! Arguments and blocks of a launch that follow from the length of a text, which the host knows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use opara_plan::rewrite::AtPosition;

use super::arguments::Arguments;
use crate::trace::Launch;

/// How many tokens the text of a decoder has. Its steps take turns, so that it is the same while one is launched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Length(Arc<AtomicU64>);

impl Length {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, tokens: u64) {
        self.0.store(tokens, Ordering::Relaxed);
    }
}

impl PartialEq for Length {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The numbers of a launch that follow from the length of a text.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cuda) struct ByLength {
    length: Length,
    numbers: Vec<Number>,
    /// The axes along which the number of blocks follows from the length.
    blocks: Vec<(usize, Blocks)>,
}

/// A number in the arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Number {
    offset: usize,
    bytes: usize,
    of: Affine,
}

/// A number to which each token adds as much.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Affine {
    Whole(Whole),
    Float(AtPosition),
}

/// A whole number without a token, and the difference that each token makes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Whole {
    zero: i64,
    step: i64,
}

/// Blocks along an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Blocks {
    /// A number to which each token adds as much.
    Affine(Whole),
    /// A number in the arguments, of this index, divided by the threads of a block and rounded up.
    Fill(usize),
}

impl Whole {
    /// The one that has these values at two lengths, the lower one first.
    fn through([a, b]: [i64; 2], lengths: [u64; 2]) -> Option<Self> {
        let apart = i64::try_from(lengths[1].checked_sub(lengths[0])?).ok()?;
        let between = b.checked_sub(a)?;
        // A rounded quotient, such as a number of pages, has these values at some lengths alone.
        let step = (between.checked_rem(apart)? == 0).then(|| between / apart)?;
        let zero = a.checked_sub(step.checked_mul(i64::try_from(lengths[0]).ok()?)?)?;
        Some(Self { zero, step })
    }

    fn at(self, length: u64) -> i64 {
        self.zero.saturating_add(self.step.saturating_mul(length as i64))
    }
}

impl Affine {
    fn whole(bytes: &[(&[u8], u64)]) -> Option<Self> {
        let number = |bytes: &[u8]| match bytes.len() {
            4 => Some(i64::from(i32::from_ne_bytes(bytes.try_into().ok()?))),
            _ => Some(i64::from_ne_bytes(bytes.try_into().ok()?)),
        };
        let [(first, from), .., (last, to)] = bytes else { return None };
        Whole::through([number(first)?, number(last)?], [*from, *to]).map(Affine::Whole)
    }

    fn float(bytes: &[(&[u8], u64)]) -> Option<Self> {
        let number = |bytes: &[u8]| match bytes.len() {
            4 => {
                let number = f32::from_ne_bytes(bytes.try_into().ok()?);
                (number.is_normal() || number == 0.).then_some(f64::from(number))
            }
            _ => Some(f64::from_ne_bytes(bytes.try_into().ok()?)).filter(|of| of.is_normal() || *of == 0.),
        };
        // Bits of small whole numbers are subnormal floats.
        if bytes.iter().any(|(bytes, _)| number(bytes).is_none()) {
            return None;
        }
        let [(first, from), .., (last, to)] = bytes else { return None };
        AtPosition::through([number(first)?, number(last)?], [*from, *to]).map(Affine::Float)
    }

    fn written(self, length: u64, bytes: usize) -> Vec<u8> {
        match (self, bytes) {
            (Affine::Whole(of), 4) => (of.at(length) as i32).to_ne_bytes().to_vec(),
            (Affine::Whole(of), _) => of.at(length).to_ne_bytes().to_vec(),
            (Affine::Float(of), 4) => (of.at(length) as f32).to_ne_bytes().to_vec(),
            (Affine::Float(of), _) => of.at(length).to_ne_bytes().to_vec(),
        }
    }

    /// Without the part of a float behind its point.
    fn truncated(self, length: u64) -> i64 {
        match self {
            Affine::Whole(of) => of.at(length),
            Affine::Float(of) => of.at(length) as i64,
        }
    }
}

impl Number {
    /// The number that an argument has at these lengths, in ascending order, by its bytes. If they may be a whole number and a float, both have
    /// to be the same at every length up to the last one.
    fn of(offset: usize, bytes: &[(&[u8], u64)]) -> Option<Self> {
        let (first, (_, last)) = (bytes.first()?.0.len(), bytes.last()?);
        if !matches!(first, 4 | 8) {
            return None;
        }
        let is = |of: &Affine| bytes.iter().all(|(bytes, length)| of.written(*length, first) == *bytes);
        let [whole, float] = [Affine::whole(bytes), Affine::float(bytes)].map(|of| of.filter(is));
        let is_one = |a: Affine, b: Affine| (0..=*last).all(|at| a.written(at, first) == b.written(at, first));
        let of = match (whole, float) {
            (Some(whole), Some(float)) => is_one(whole, float).then_some(whole),
            (whole, float) => whole.or(float),
        };
        Some(Self { offset, bytes: first, of: of? })
    }

    fn at(&self, length: u64) -> Vec<u8> {
        self.of.written(length, self.bytes)
    }
}

impl ByLength {
    /// The numbers that one kernel's launches have at these lengths, in ascending order. Their pointers are null.
    ///
    /// # Errors
    /// The part of the launches that differs in another way than by numbers to which each token adds as much.
    pub fn of(launches: &[(&Arguments, &Launch, u64)], length: &Length) -> Result<Self, String> {
        let Some((arguments, first, _)) = launches.first() else { return Err("kernel".into()) };
        let is_alike = |of: &Launch| (of.block, of.dynamic_shared) == (first.block, first.dynamic_shared);
        if !launches.iter().all(|(_, of, _)| is_alike(of)) {
            return Err("number of threads, or of bytes of shared memory".into());
        }
        let mut numbers = Vec::new();
        for at in 0..arguments.count() {
            let said = || format!("argument {at}, which does not grow by as much with each token");
            let of = launches.iter().map(|(of, _, length)| Some((of.argument(at)?, *length)));
            let of = of.collect::<Option<Vec<_>>>().ok_or_else(said)?;
            let ((start, bytes), _) = of[0];
            // A structure is numbers of four bytes.
            let size = if matches!(bytes.len(), 4 | 8) { bytes.len() } else { 4 };
            for from in (0..bytes.len()).step_by(size) {
                let end = (from + size).min(bytes.len());
                let parts: Vec<_> = of.iter().map(|((_, bytes), length)| (&bytes[from..end], *length)).collect();
                if parts.iter().any(|(bytes, _)| *bytes != parts[0].0) {
                    numbers.push(Number::of(start + from, &parts).ok_or_else(said)?);
                }
            }
        }
        let mut blocks = Vec::new();
        for (axis, &threads) in first.block.iter().enumerate() {
            let of: Vec<_> = launches.iter().map(|(_, of, length)| (u64::from(of.grid[axis]), *length)).collect();
            if of.iter().any(|(count, _)| *count != of[0].0) {
                let found = Blocks::of(&of, &numbers, threads);
                blocks.push((axis, found.ok_or("number of blocks, which follows from no argument")?));
            }
        }
        Ok(Self { length: length.clone(), numbers, blocks })
    }

    /// Has it blocks at every length below this one?
    pub fn has_blocks_before(&self, length: u64, threads: [u32; 3]) -> bool {
        let has = |at: u64| self.blocks.iter().all(|(axis, of)| of.at(at, &self.numbers, threads[*axis]) > 0);
        (0..length).all(has)
    }

    /// Has the text as many tokens as a launch was set for?
    pub fn is_set_for(&self, length: Option<u64>) -> bool {
        length == Some(self.length.get())
    }

    /// Sets the numbers to those of the text's length, which it returns.
    pub fn set(&self, arguments: &mut Arguments, grid: &mut [u32; 3], threads: [u32; 3]) -> u64 {
        let length = self.length.get();
        self.set_for(length, arguments, grid, threads);
        length
    }

    /// Is a launch this one at a length? Pointers of both are null.
    pub fn is_at(&self, length: u64, (own, launch): (&Arguments, &Launch), other: (&Arguments, &Launch)) -> bool {
        let (mut arguments, mut grid) = (own.clone(), launch.grid);
        self.set_for(length, &mut arguments, &mut grid, launch.block);
        (&arguments, &Launch { grid, ..*launch }) == other
    }

    fn set_for(&self, length: u64, arguments: &mut Arguments, grid: &mut [u32; 3], threads: [u32; 3]) {
        for number in &self.numbers {
            arguments.set_bytes(number.offset, &number.at(length));
        }
        for (axis, blocks) in &self.blocks {
            grid[*axis] = blocks.at(length, &self.numbers, threads[*axis]);
        }
    }
}

impl Blocks {
    fn of(counts: &[(u64, u64)], numbers: &[Number], threads: u32) -> Option<Self> {
        let [(first, from), .., (last, to)] = counts else { return None };
        let affine = Whole::through([*first as i64, *last as i64], [*from, *to]).map(Blocks::Affine);
        let is = |blocks: &Self| counts.iter().all(|&(count, at)| u64::from(blocks.at(at, numbers, threads)) == count);
        affine.into_iter().chain((0..numbers.len()).map(Blocks::Fill)).find(is)
    }

    fn at(&self, length: u64, numbers: &[Number], threads: u32) -> u32 {
        match *self {
            Blocks::Affine(of) => of.at(length).clamp(0, i64::from(u32::MAX)) as u32,
            Blocks::Fill(of) => {
                (numbers[of].of.truncated(length).max(0) as u64).div_ceil(u64::from(threads.max(1))) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(all: &[([u8; N], u64)]) -> Vec<(&[u8], u64)> {
        all.iter().map(|(bytes, length)| (&bytes[..], *length)).collect()
    }

    #[test]
    fn numbers_grow_by_as_much_with_each_token() {
        let whole = [5u32, 6, 60, 61].map(|length| ((3 * length + 7).to_ne_bytes(), u64::from(length)));
        let number = Number::of(8, &bytes(&whole)).expect("it is affine");
        assert_eq!(
            (number.of, number.at(30)),
            (Affine::Whole(Whole { zero: 7, step: 3 }), 97u32.to_ne_bytes().to_vec())
        );
        let falling = [5i64, 6, 60].map(|length| ((9 - length).to_ne_bytes(), length as u64));
        assert_eq!(Number::of(0, &bytes(&falling)).map(|of| of.at(10)), Some((-1i64).to_ne_bytes().to_vec()));
        let floats = [5u8, 6, 60].map(|length| ((f32::from(length) * 0.5).to_ne_bytes(), u64::from(length)));
        let number = Number::of(0, &bytes(&floats)).expect("it is affine");
        assert_eq!(
            (number.of, number.at(7)),
            (Affine::Float(AtPosition { zero: 0., step: 0.5 }), 3.5f32.to_ne_bytes().to_vec())
        );
        let squares = [5u32, 6, 60].map(|length| ((length * length).to_ne_bytes(), u64::from(length)));
        assert_eq!(Number::of(0, &bytes(&squares)), None);
    }

    #[test]
    fn rounded_quotients_and_bits_of_two_kinds_are_no_numbers() {
        for quotient in [|length: u32| length / 64, |length: u32| length.div_ceil(64)] {
            let pages = [5u32, 6, 126, 127].map(|length| (quotient(length).to_ne_bytes(), u64::from(length)));
            assert_eq!(Number::of(0, &bytes(&pages)), None);
        }
        // Between two powers of two, bits of floats grow by as much as the floats.
        let floats = [1100u16, 1101, 2000].map(|length| (f32::from(length).to_ne_bytes(), u64::from(length)));
        assert_eq!(Number::of(0, &bytes(&floats)), None);
    }

    #[test]
    fn blocks_are_affine_or_filled_by_a_number() {
        let number = Number { offset: 0, bytes: 4, of: Affine::Whole(Whole { zero: 0, step: 1 }) };
        assert_eq!(Blocks::of(&[(6, 5), (7, 6), (61, 60)], &[], 32), Some(Blocks::Affine(Whole { zero: 1, step: 1 })));
        let filled = Blocks::of(&[(1, 5), (1, 6), (2, 60), (2, 61)], &[number], 32).expect("a number fills them");
        assert_eq!((filled, filled.at(96, &[number], 32)), (Blocks::Fill(0), 3));
        assert_eq!(Blocks::of(&[(1, 5), (1, 6), (9, 60)], &[number], 32), None);
        let of = |number| ByLength { length: Length::default(), numbers: vec![number], blocks: vec![(0, filled)] };
        assert!(!of(number).has_blocks_before(5, [32; 3]), "there are none behind no token");
        let one_more = Number { of: Affine::Whole(Whole { zero: 1, step: 1 }), ..number };
        assert!(of(one_more).has_blocks_before(5, [32; 3]));
    }
}
