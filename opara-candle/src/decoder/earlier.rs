//! What a module has of the tokens before a step, in its own caches.

use candle::Tensor;
use opara_plan::rewrite::{Cache, Growth, Recorded};

use super::known::{refused, Known};
use crate::cuda::WholePass;
use crate::Result;

/// What a text has of its tokens as a recorded pass has it before its own token.
pub(super) struct Earlier {
    /// How many of the oldest tokens are not there any more.
    pub first: usize,
    /// `(rows, tokens, size)`.
    pub tokens: Tensor,
}

impl Earlier {
    /// The keys or the values of a cache, a row for each head; `known` is the graph of the pass.
    pub fn of_cache(pass: &WholePass, known: &Known, of: Recorded, cache: &Cache) -> Result<Self> {
        let [heads, size] = [cache.heads, cache.size].map(|n| n as usize);
        if !of.by_token {
            return Self::of(pass, known, of.input, [heads, size], cache.window);
        }
        let Self { first, tokens } = Self::of(pass, known, of.input, [1, heads * size], cache.window)?;
        Ok(Self { first, tokens: tokens.reshape(((), heads, size))?.transpose(0, 1)?.contiguous()? })
    }

    /// The tokens of an input, which has rows with some elements of each token. It may have a window.
    pub fn of(
        pass: &WholePass,
        known: &Known,
        input: usize,
        [rows, size]: [usize; 2],
        window: Option<u64>,
    ) -> Result<Self> {
        let recorded = pass.copied(input)?.ok_or_else(|| refused("its cache is an argument"))?;
        // What is written in place has room for more tokens than there are, or for fewer.
        let room = recorded.elem_count() / (rows * size);
        let by_row = recorded.reshape((rows, room, size))?;
        let tokens = match window {
            // The pass has put the new token in the place of the oldest one, behind which the others follow in turn.
            Some(window) if known.length >= window as usize => {
                let place = Growth::place(&known.graph, input).ok_or_else(|| refused("its cache is not written"))?;
                let place = place as usize;
                let parts = [(place + 1, room - place - 1), (0, place)].into_iter().filter(|(_, count)| *count > 0);
                let parts = parts.map(|(first, count)| by_row.narrow(1, first, count));
                Tensor::cat(&parts.collect::<candle::Result<Vec<_>>>()?, 1)?
            }
            _ => by_row.narrow(1, 0, known.length)?,
        };
        let first = known.length.checked_sub(tokens.dim(1)?);
        let first = first.ok_or_else(|| refused("its cache has more tokens than the text"))?;
        Ok(Self { first, tokens: tokens.contiguous()? })
    }
}

/// Fails if a full cache does not overwrite its oldest token: of two steps in a row the second one writes to the place behind that of the
/// first.
pub(super) fn check_turns(growth: &Growth, steps: [&Known; 2]) -> Result<()> {
    for cache in &growth.caches {
        let Some(window) = cache.window else { continue };
        for of in [cache.keys, cache.values] {
            let [place, next] = steps.map(|known| Growth::place(&known.graph, of.input));
            if window < 2 || place.map(|place| (place + 1) % window) != next {
                return Err(refused("a cache that is full overwrites another token than the oldest one"));
            }
        }
    }
    Ok(())
}
