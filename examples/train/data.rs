//! Batches that the example makes: pictures of bars, and windows of a text.

use candle::{Device, Result, Tensor};

/// A text that comes with the program.
const TEXT: &str = include_str!("../../README.md");

/// Tokens of a window.
pub const WINDOW: usize = 32;
/// Bytes that stand for tokens.
pub const BYTES: usize = 256;
/// Kinds of pictures, and their rows and columns.
pub const KINDS: usize = 4;
pub const SIDE: usize = 16;

/// Pictures of noise with a bar: at the top, at the bottom, on the left or on the right; and which of these. Each follows from its number.
pub fn pictures(numbers: &[usize]) -> Result<Vec<Tensor>> {
    let (mut pixels, mut kinds) = (Vec::with_capacity(numbers.len() * SIDE * SIDE), Vec::with_capacity(numbers.len()));
    for &number in numbers {
        let mut rng = fastrand::Rng::with_seed(number as u64);
        let (kind, at) = (rng.u32(..KINDS as u32), rng.usize(..SIDE / 2));
        for (row, column) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |column| (row, column))) {
            let is_bar = match kind {
                0 => row == at,
                1 => row == SIDE - 1 - at,
                2 => column == at,
                _ => column == SIDE - 1 - at,
            };
            pixels.push(rng.f32() * 0.5 + f32::from(u8::from(is_bar)));
        }
        kinds.push(kind);
    }
    let pixels = Tensor::from_vec(pixels, (numbers.len(), 1, SIDE, SIDE), &Device::Cpu)?;
    Ok(vec![pixels, Tensor::new(kinds, &Device::Cpu)?])
}

/// Windows of the text, and the bytes that follow each of theirs. Each begins at its number's place.
pub fn windows(numbers: &[usize]) -> Result<Vec<Tensor>> {
    let (mut ids, mut next) = (Vec::<u32>::new(), Vec::<u32>::new());
    for number in numbers {
        let at = number % (TEXT.len() - WINDOW - 1);
        let bytes = TEXT.as_bytes()[at..=at + WINDOW].iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>();
        ids.extend(&bytes[..WINDOW]);
        next.extend(&bytes[1..]);
    }
    let of = |bytes| Tensor::from_vec(bytes, (numbers.len(), WINDOW), &Device::Cpu);
    Ok(vec![of(ids)?, of(next)?])
}
