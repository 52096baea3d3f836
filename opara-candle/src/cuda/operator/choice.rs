//! Autotuning: measures several implementations of the same computation once, and keeps the fastest; on disk, too, while an executor
//! is built that has a cache folder.

use std::fmt::Debug;
use std::hash::Hash;

use candle::{CudaDevice, Error, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::fastest::fastest;
use crate::choice_folder;
use crate::cuda::driver::{software, Stream};
use opara_plan::disk_cache::{Kind, Record};

/// One of several implementations.
pub(crate) trait Implementation: Copy {
    /// What tells it from the others, in any process with the same libraries.
    fn name(&self) -> String;
}

/// The chosen implementation per device and `K`. It never changes afterwards, so that a replay computes the same as
/// eager execution.
pub(crate) struct Choices<K, W> {
    /// What is chosen.
    of: &'static str,
    known: Mutex<Option<HashMap<(usize, K), W>>>,
}

/// A choice on disk. It only selects among what is proposed anyway, so no file can bring in anything else.
#[derive(Serialize, Deserialize)]
struct Chosen {
    implementation: String,
}

impl<K: Eq + Hash + Debug, W: Implementation> Choices<K, W> {
    pub const fn new(of: &'static str) -> Self {
        Self { of, known: Mutex::new(None) }
    }

    /// Runs the implementation that was chosen for `key`. The first time, takes the one that an earlier process chose, or measures
    /// `implementations`, each with a factor for its time, and chooses the fastest. Inside a capture nothing can be measured: a key
    /// that is new there gets the `guess`.
    pub fn run<R>(
        &self,
        device: &CudaDevice,
        key: K,
        implementations: impl FnOnce() -> Result<Vec<(W, f64)>>,
        guess: impl FnOnce() -> Result<W>,
        mut run: impl FnMut(W) -> Result<R>,
    ) -> Result<R> {
        let key = (device.cuda_stream().context().ordinal(), key);
        let known = self.known.lock().get_or_insert_default().get(&key).copied();
        let implementation = match known {
            Some(known) => known,
            None => {
                let stream = Stream::of(&candle::Device::Cuda(device.clone())).map_err(Error::wrap)?;
                let implementation = match stream.is_capturing().map_err(Error::wrap)? {
                    true => guess()?,
                    false => match implementations()?[..] {
                        [(only, _)] => only,
                        ref several => {
                            let measure = |run: &mut _| Ok(fastest(device, &stream, several, run));
                            kept_or(self.record(&stream, &key.1).as_ref(), several, &mut run, measure)?
                        }
                    },
                };
                *self.known.lock().get_or_insert_default().entry(key).or_insert(implementation)
            }
        };
        run(implementation)
    }

    /// The place of the choice for this key, if choices are kept.
    fn record(&self, stream: &Stream, key: &K) -> Option<Record> {
        let folder = choice_folder::current()?;
        Some(Record::new(&folder, Kind::Choice, &format!("{}, {key:?}, {}", self.of, software(stream))))
    }
}

/// The implementation that an earlier process chose, if it is one of these and runs; else the fastest, which is stored. The first one
/// if none works: what is missing now, such as memory, may be there for the next process, so that is not stored.
fn kept_or<W: Implementation, R, F: FnMut(W) -> Result<R>>(
    record: Option<&Record>,
    implementations: &[(W, f64)],
    run: &mut F,
    measure: impl FnOnce(&mut F) -> Result<Option<W>>,
) -> Result<W> {
    let proposed = |Chosen { implementation: name }| {
        let mut implementations = implementations.iter().map(|(implementation, _)| *implementation);
        implementations.find(|proposed| proposed.name() == name).ok_or_else(|| format!("`{name}` is not proposed"))
    };
    let kept = record.and_then(|record| record.load(proposed));
    if let Some(kept) = kept.filter(|kept| run(*kept).is_ok()) {
        return Ok(kept);
    }
    let Some(fastest) = measure(run)? else { return Ok(implementations[0].0) };
    if let Some(record) = record {
        record.store(&Chosen { implementation: fastest.name() });
    }
    Ok(fastest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Number(u32);

    impl Implementation for Number {
        fn name(&self) -> String {
            self.0.to_string()
        }
    }

    #[test]
    fn a_choice_on_disk_is_one_of_the_proposed_or_measured_again() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let record = |key: &str| Record::new(folder.path(), Kind::Choice, key);
        let proposed = [1, 2, 3].map(|number| (Number(number), 1.));
        let chosen = |key: &str, measured: Option<u32>| {
            let measure = |_: &mut _| measured.map(Number).map(Some).ok_or_else(|| Error::Msg("it is measured".into()));
            kept_or(Some(&record(key)), &proposed, &mut |_| Ok(()), measure)
        };
        assert_eq!(chosen("a", Some(2))?, Number(2));
        assert_eq!(chosen("a", None)?, Number(2), "from disk");
        assert!(chosen("b", None).is_err(), "another key");
        record("a").store(&Chosen { implementation: "4".into() });
        assert_eq!(chosen("a", Some(3))?, Number(3), "what is not proposed is not used");
        assert_eq!(chosen("a", None)?, Number(3), "and overwritten");
        for file in std::fs::read_dir(folder.path())? {
            std::fs::write(file?.path(), "{\"key\":")?;
        }
        assert_eq!(chosen("a", Some(1))?, Number(1), "damaged");
        let nothing_kept = kept_or(None, &proposed, &mut |_| Ok(()), |_| Ok(Some(Number(3))))?;
        assert_eq!(nothing_kept, Number(3));
        Ok(())
    }

    #[test]
    fn a_choice_on_disk_that_does_not_run_is_measured_again() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let record = Record::new(folder.path(), Kind::Choice, "a");
        let proposed = [1, 2, 3].map(|number| (Number(number), 1.));
        let chosen = |failing: &[u32], measured: Option<u32>| {
            let mut run = |Number(number): Number| match failing.contains(&number) {
                true => Err(Error::Msg("no memory for its workspace".into())),
                false => Ok(()),
            };
            kept_or(Some(&record), &proposed, &mut run, |_| Ok(measured.map(Number)))
        };
        // None works: the first one, which is not stored.
        assert_eq!(chosen(&[1, 2, 3], None)?, Number(1));
        assert_eq!(chosen(&[], Some(2))?, Number(2));
        assert_eq!(chosen(&[2], Some(3))?, Number(3));
        assert_eq!(chosen(&[], None)?, Number(3), "from disk");
        assert_eq!(chosen(&[1, 2, 3], None)?, Number(1));
        assert_eq!(chosen(&[], None)?, Number(3), "still on disk");
        Ok(())
    }
}
