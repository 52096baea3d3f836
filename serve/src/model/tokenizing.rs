//! Texts become tokens on threads for blocking work, a few at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Context, Failure, Kind, Result};
use crate::batch::Error;

/// Runs as many tokenizers as there are cores. A text's tokens take a hundred times its memory while they are made.
pub(super) struct Tokenizing(Arc<Semaphore>);

impl Default for Tokenizing {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(rayon::current_num_threads().max(1))))
    }
}

impl Tokenizing {
    /// What `encode` gives on such a thread. The request's place is kept until that has ended, though the client may be gone or its
    /// time be over.
    ///
    /// # Errors
    /// The deadline passed; a panic.
    pub async fn run<T: Send + 'static>(
        &self,
        context: &Context,
        encode: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (place, turns) = (context.place.clone(), self.0.clone());
        let encoded = async move {
            let turn = turns.acquire_owned().await;
            let encode = move || {
                let _held = (place, turn);
                encode()
            };
            tokio::task::spawn_blocking(encode)
                .await
                .map_err(|_| Failure::new(Kind::Internal, "the tokenizer panicked"))
        };
        tokio::time::timeout_at(context.deadline.into(), encoded).await.map_err(|_| Error::Deadline)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::super::Place;
    use super::*;

    /// The first text takes the only place, until its tokens are made.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_goes_leaves_its_place_to_its_tokenizer() {
        let (places, tokenizing) = (Arc::new(Semaphore::new(1)), Tokenizing(Arc::new(Semaphore::new(1))));
        let place = Place::of(&places).expect("it is free");
        let deadline = Instant::now() + Duration::from_secs(600);
        let context = Context { client: 0, tenant: 0, place, deadline };
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let encoding = tokenizing.run(&context, move || {
            begun.send(()).expect("it is awaited");
            ends.recv().expect("it is told to end");
        });
        let mut encoding = Box::pin(encoding);
        tokio::select! {
            biased;
            _ = &mut encoding => panic!("it has ended"),
            () = std::future::ready(()) => {}
        }
        tokio::task::spawn_blocking(move || begins.recv()).await.expect("no panic").expect("it began");
        // The client goes.
        drop(encoding);
        drop(context);
        assert!(Place::of(&places).is_none(), "the tokenizer runs on");
        end.send(()).expect("it waits");
        while Place::of(&places).is_none() {
            tokio::task::yield_now().await;
        }
    }
}
