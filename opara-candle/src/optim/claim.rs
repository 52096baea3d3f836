//! Which trainer has which variables.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::state::State;
use crate::TrainError;

/// All claims of this process.
static ALL: Mutex<Vec<Weak<Claim>>> = Mutex::new(Vec::new());

/// Says that a trainer has an optimizer's variables, as long as it is held.
pub(crate) struct Claim {
    of: Arc<State>,
}

impl Claim {
    /// # Errors
    /// Variables that another optimizer's trainer has: each would change what the other has learnt, and what its moments are of.
    pub(super) fn of(state: &Arc<State>) -> Result<Arc<Self>, TrainError> {
        let mut all = ALL.lock();
        all.retain(|claim| claim.strong_count() > 0);
        for other in all.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(&other.of, state)) {
            let has = |id| other.of.slots().iter().any(|slot| slot.variable.id() == id);
            let shared = state.slots().iter().filter(|slot| has(slot.variable.id()));
            let mut names: Vec<String> = shared.map(|slot| slot.name.clone()).collect();
            names.sort();
            if !names.is_empty() {
                return Err(TrainError::Shared { names });
            }
        }
        let claim = Arc::new(Self { of: state.clone() });
        all.push(Arc::downgrade(&claim));
        Ok(claim)
    }
}
