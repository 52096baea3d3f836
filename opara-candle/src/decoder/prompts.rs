//! The prompts that steps read, in pieces or token by token, and not the module itself.

use candle::Tensor;
use opara_plan::rewrite::Growth;

use super::known::{or_refused, refused};
use super::step::{Prompts, Step};
use super::texts::Texts;
use super::tokens::Tokens;
use crate::rewrite::accuracy::distance;
use crate::timing::timed;
use crate::Result;

impl Step {
    /// The tokens of the longest prompt that has the module's logits if it is read in pieces.
    ///
    /// # Errors
    /// [`Error::NotCapturable`](crate::Error::NotCapturable) if not even the example has, and errors of the module.
    pub fn longest_in_pieces<M: Send + 'static>(&mut self, texts: &Texts<M>, prompts: &Prompts) -> Result<usize> {
        let &Prompts { example: (example, of_example), long: (long, of_long), room } = prompts;
        self.check_prompt(example, of_example, room)?;
        // A module may see more of a prompt than its window has of a text.
        let Growth { caches, grown, .. } = &self.growth;
        let windows = caches.iter().map(|of| of.window).chain(grown.iter().map(|of| of.window));
        let window =
            windows.flatten().map(|window| window as usize).min().filter(|window| *window >= self.known[0].length);
        let mut checked = Ok(());
        if let Some(beyond) = window.map(|window| window + 2).filter(|tokens| *tokens < self.capacity) {
            let prompt = example.repeated(beyond)?;
            let expected = texts.add(&mut texts.fresh()?, &prompt, 0)?;
            checked = self.check_prompt(&prompt, &expected, room);
        }
        match (checked.and_then(|()| self.check_prompt(long, of_long, room)), window) {
            (Ok(()), _) => Ok(self.capacity),
            (Err(error), Some(window)) if error.is_refusal() => Ok(window),
            (Err(error), _) => Err(error),
        }
    }

    /// The tokens of the longest prompt that takes less time token by token than the module needs, which may read several at once.
    ///
    /// # Errors
    /// [`Error::NotCapturable`](crate::Error::NotCapturable) if such a prompt has other logits than the module's, and errors of the module.
    pub fn longest_by_token<M: Send + 'static>(&mut self, texts: &Texts<M>, prompts: &Prompts) -> Result<usize> {
        let &Prompts { example: (example, of_example), long: (long, of_long), room } = prompts;
        // Behind one token, what a text begins with tells most: states of zeros are to be the module's.
        let one = example.last()?;
        let of_one = texts.add(&mut texts.fresh()?, &one, 0);
        let of_one = of_one.map_err(|error| or_refused(error, "a prompt of one token does not run"))?;
        self.check_prompt(&one, &of_one, room)?;
        self.check_prompt(example, of_example, room)?;
        let device = example.ids.device();
        let own = |prompt: &Tokens| -> Result<(usize, f64)> {
            let mut text = texts.fresh()?;
            Ok((prompt.count(), timed(device, || texts.add(&mut text, prompt, 0))?.1))
        };
        let (few, many) = (own(example)?, own(long)?);
        self.begin()?;
        let (_, us) = timed(device, || self.read(example, 0))?;
        match crossing(us / few.0 as f64, few, many) {
            0 => Ok(0),
            most if most >= many.0 => self.check_prompt(long, of_long, room).map(|()| self.capacity),
            most => {
                let prompt = example.repeated(most)?;
                let expected = texts.add(&mut texts.fresh()?, &prompt, 0)?;
                self.check_prompt(&prompt, &expected, room).map(|()| most)
            }
        }
    }

    /// Fails if a prompt that steps read has other logits than the module's.
    fn check_prompt(&mut self, prompt: &Tokens, expected: &Tensor, room: f64) -> Result<()> {
        self.begin()?;
        let given = self.read(prompt, 0)?.ok_or_else(|| refused("there are no logits"))?;
        let apart = distance(&expected.flatten_all()?, &given.flatten_all()?)?.map_err(|why| refused(&why))?;
        if apart <= room {
            return Ok(());
        }
        let tokens = prompt.count();
        Err(refused(&format!(
            "a prompt of {tokens} tokens has other logits than as many steps: they differ by {apart:.1e}"
        )))
    }
}

/// How many tokens take no more time one by one, `us` each, than all at once, of which two numbers are measured. 0 if not even the smaller
/// one does.
fn crossing(us: f64, few: (usize, f64), many: (usize, f64)) -> usize {
    let ((few, us_of_few), (many, us_of_many)) = (few, many);
    if us * many as f64 <= us_of_many {
        return many;
    }
    if us * few as f64 > us_of_few || few >= many {
        return 0;
    }
    // Lines through both.
    let more = (us_of_many - us_of_few) / (many - few) as f64;
    let beyond = (us_of_few - us * few as f64) / (us - more);
    few + (beyond as usize).min(many - few)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_tokens_as_take_no_longer_are_read_one_by_one() {
        // A module that reads one after the other, too, and one that reads all at once.
        assert_eq!(crossing(100., (8, 8000.), (1000, 1e6)), 1000);
        assert_eq!(crossing(100., (8, 2000.), (1000, 4000.)), 20);
        assert_eq!(crossing(100., (8, 800.), (1000, 4000.)), 8);
        assert_eq!(crossing(100., (8, 700.), (1000, 4000.)), 0);
        assert_eq!(crossing(100., (8, 2000.), (8, 700.)), 0);
        for (few, many) in [(8, 9), (8, 100)] {
            for us in [1., 50., 249., 250., 1e9] {
                let most = crossing(us, (few, 2000.), (many, 2100.));
                assert!(most <= many && (most == 0 || us * most as f64 <= 2100.), "{us}, {many}: {most}");
            }
        }
    }
}
