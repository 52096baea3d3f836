//! All texts of a list.

use std::sync::mpsc;

use super::error::{Result, TextError};
use super::sequence::{End, Listener, Request};
use super::text_model::TextModel;
use super::Engine;

/// Sends tokens and the end with the index of their request.
struct Sent {
    events: mpsc::Sender<(usize, Result<u32, End>)>,
    index: usize,
}

impl Listener for Sent {
    fn token(&mut self, token: u32) -> bool {
        self.events.send((self.index, Ok(token))).is_ok()
    }

    fn end(&mut self, end: End) {
        // Nobody hears it if another text was refused.
        let _ = self.events.send((self.index, Err(end)));
    }
}

impl<M: TextModel> Engine<M> {
    /// Writes the text of each request, without the token that ended it. Those for which there is no slot yet wait for one. `each` gets
    /// the index of a request and its next token, as it comes.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use candle::{DType, Device::Cpu};
    /// # use opara_models::decoder::{Config, Decoder};
    /// use opara_models::engine::{Engine, Options, Request};
    ///
    /// let model = Decoder::load(opara_weights::seeded(7, DType::F32, &Cpu), &Config::tiny(), 64)?;
    /// let mut engine = Engine::new(Arc::new(model), Options { slots: 2, parts: 2, ..Options::default() })?;
    /// let requests = [vec![5, 6, 7], vec![8, 9]].map(|prompt| Request { prompt, most: 10, ..Request::default() });
    /// let texts = engine.generate(&requests, |index, token| println!("{index}: {token}"))?;
    /// assert_eq!(texts[1].len(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Request::check`], before anything is written; those of [`step`](Self::step); [`TextError::NotFinite`] if a text has
    /// failed, when the others have ended.
    pub fn generate(&mut self, requests: &[Request], mut each: impl FnMut(usize, u32)) -> Result<Vec<Vec<u32>>> {
        requests.iter().try_for_each(|request| request.check(&**self.model()))?;
        let (sender, events) = mpsc::channel::<(usize, Result<u32, End>)>();
        let mut texts: Vec<Vec<u32>> = vec![Vec::new(); requests.len()];
        let (mut waiting, mut open, mut has_failed) = (requests.iter().enumerate(), requests.len(), false);
        let mut take = |open: &mut usize| {
            for (index, event) in events.try_iter() {
                match event {
                    Ok(token) => {
                        texts[index].push(token);
                        each(index, token);
                    }
                    Err(end) => {
                        has_failed |= matches!(end, End::Failed(_));
                        *open -= 1;
                    }
                }
            }
        };
        while open > 0 {
            for (index, request) in waiting.by_ref().take(self.free()) {
                self.add(request.clone(), Box::new(Sent { events: sender.clone(), index }))?;
            }
            self.step(|_| {
                take(&mut open);
                false
            })?;
            take(&mut open);
        }
        match has_failed {
            true => Err(TextError::NotFinite),
            false => Ok(texts),
        }
    }
}
