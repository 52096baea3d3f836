//! What a module has of the tokens before a step, in its own caches.

use candle::Tensor;
use opara_plan::rewrite::{Cache, Growth, Recorded};

use super::known::{are_equal, refused, Known};
use crate::cuda::WholePass;
use crate::Result;

/// Keys or values of a text as a recorded pass has them before its own token.
pub(super) struct Earlier {
    /// How many of the oldest tokens are not there any more.
    pub first: usize,
    /// `(heads, tokens, size)`.
    pub tokens: Tensor,
}

impl Earlier {
    /// What the pass has of a cache; `known` is its graph.
    pub fn of(pass: &WholePass, known: &Known, of: Recorded, cache: &Cache) -> Result<Self> {
        let recorded = pass.copied(of.input)?.ok_or_else(|| refused("its cache is an argument"))?;
        let [heads, size] = [cache.heads, cache.size].map(|n| n as usize);
        // What is written in place has room for more tokens than there are, or for fewer.
        let room = recorded.elem_count() / (heads * size);
        let by_head = match of.by_token {
            true => recorded.reshape((room, heads, size))?.transpose(0, 1)?,
            false => recorded.reshape((heads, room, size))?,
        };
        let tokens = match cache.window {
            // The pass has put the new token in the place of the oldest one, behind which the others follow in turn.
            Some(window) if known.length >= window as usize => {
                let place =
                    Growth::place(&known.graph, of).ok_or_else(|| refused("its cache is not written"))? as usize;
                let parts = [(place + 1, room - place - 1), (0, place)].into_iter().filter(|(_, count)| *count > 0);
                let parts = parts.map(|(first, count)| by_head.narrow(1, first, count));
                Tensor::cat(&parts.collect::<candle::Result<Vec<_>>>()?, 1)?
            }
            _ => by_head.narrow(1, 0, known.length)?,
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
            let [place, next] = steps.map(|known| Growth::place(&known.graph, of));
            if window < 2 || place.map(|place| (place + 1) % window) != next {
                return Err(refused("a cache that is full overwrites another token than the oldest one"));
            }
        }
    }
    Ok(())
}

/// Fails if a later pass of the same text does not have the bits of earlier tokens in its caches: attention reads them before a step
/// leaves them, and what it leaves is not seen in its own pass. Of caches that are written in place, which both passes share, it shows the
/// order of tokens alone; that a pass writes nothing else to them is known from its graph.
pub(super) fn check_kept(growth: &Growth, earlier: (&WholePass, &Known), later: (&WholePass, &Known)) -> Result<()> {
    for cache in &growth.caches {
        for of in [cache.keys, cache.values] {
            let [before, now] = [earlier, later].map(|(pass, known)| Earlier::of(pass, known, of, cache));
            let (before, now) = (before?, now?);
            // Those that both have.
            let count = (before.first + before.tokens.dim(1)?).saturating_sub(now.first);
            // With a window of two a pass has one earlier token, which the next one has overwritten.
            if count == 0 {
                continue;
            }
            let before = before.tokens.narrow(1, now.first - before.first, count)?;
            let now = now.tokens.narrow(1, 0, count)?;
            if !are_equal(&before, &now)? {
                return Err(refused("a step changes what its cache has of earlier tokens"));
            }
        }
    }
    Ok(())
}
