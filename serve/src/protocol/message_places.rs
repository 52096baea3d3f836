//! Places for the messages of a stream: the stream itself may be idle for long, and holds none then.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::model::{Failure, Kind, Place};

/// The places of a stream's messages: of one that is arriving, and of answers that are not sent yet.
#[derive(Debug)]
pub(crate) struct MessagePlaces {
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    arriving: Option<Place>,
    unsent: Vec<Place>,
}

impl MessagePlaces {
    /// From these places.
    pub fn new(places: Arc<Semaphore>) -> Self {
        Self { places, state: Mutex::default() }
    }

    /// Bytes of a message arrive: takes a place for it, unless it has one. False if none is free.
    pub fn take(&self) -> bool {
        let mut state = self.state.lock();
        if state.arriving.is_none() {
            state.arriving = Place::of(&self.places);
        }
        state.arriving.is_some()
    }

    /// All that has arrived was read.
    pub fn read(&self) {
        self.state.lock().arriving = None;
    }

    /// The place of a message that was read.
    ///
    /// # Errors
    /// None is free: several messages arrived at once.
    pub fn claim(&self) -> Result<Place, Failure> {
        let arriving = self.state.lock().arriving.take();
        arriving.or_else(|| Place::of(&self.places)).ok_or_else(Self::full)
    }

    /// A message was answered: its place is kept until that is sent.
    pub fn answered(&self, place: Place) {
        self.state.lock().unsent.push(place);
    }

    /// All answers were sent.
    pub fn sent(&self) {
        self.state.lock().unsent.clear();
    }

    /// Why there is no place.
    pub fn full() -> Failure {
        let mut failure = Failure::new(Kind::Full, "too many requests are under way");
        failure.retry_after = Some(Duration::from_secs(1));
        failure
    }
}
