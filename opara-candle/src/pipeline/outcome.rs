//! Disk cache of rewrite decisions.

use std::path::Path;

use opara_plan::rewrite::rules::RULES;
use opara_plan::rewrite::Outcome;

use super::build::Build;
use crate::backend::Rewriting;
use crate::challengers::REQUIRED_GAIN;
use crate::cuda;
use crate::options::Options;
use crate::trace::Trace;
use opara_plan::disk_cache::{Kind, Record};

/// The cache's record of a pass, and the decisions in it.
pub(super) struct CachedDecisions {
    record: Option<Record>,
    pub found: Option<Outcome>,
}

impl CachedDecisions {
    /// The cached decisions of this pass, unless the builder decides again.
    pub fn of(recorded: &Trace, rewriting: &Rewriting, build: &Build) -> Self {
        let record = rewriting
            .folder
            .as_deref()
            .and_then(|folder| record(folder, recorded, &cuda::software(&build.device), rewriting, build.options));
        let found = record.as_ref().filter(|_| !rewriting.is_anew).and_then(|record| record.load(Ok));
        Self { record, found }
    }

    /// The decisions to store: `new`, or the cached ones with other times.
    pub fn or_new(self, new: Option<Outcome>) -> Option<UnstoredDecisions> {
        let is_new = new.is_some();
        Some(UnstoredDecisions { record: self.record?, outcome: new.or(self.found)?, is_new })
    }
}

/// Decisions before they are stored.
pub(super) struct UnstoredDecisions {
    record: Record,
    outcome: Outcome,
    /// Do they differ from the cached ones?
    is_new: bool,
}

impl UnstoredDecisions {
    /// Stores them with the times of the rewritten and the recorded pass, if decisions or times are new.
    pub fn store(self, times: Option<[f64; 2]>) {
        if self.is_new || times.is_some() {
            self.record.store(&Outcome { times, ..self.outcome });
        }
    }
}

/// Why the builder keeps the recorded pass: the rewritten one is not faster by more than the noise. The times are median microseconds of a replay of the rewritten pass, and of the recorded one.
pub(super) fn why_not_rewritten([rewritten, exact]: [f64; 2]) -> Option<String> {
    let is_faster = rewritten < exact * (1. - REQUIRED_GAIN);
    (!is_faster).then(|| {
        format!(
            "nothing is rewritten: a replay of the rewritten launches takes {rewritten:.0} us, of candle's {exact:.0}"
        )
    })
}

/// The cache's record for this pass. The key has the pass, the device and its software, the rules, and the settings that decide how fast
/// either plan is.
fn record(folder: &Path, recorded: &Trace, software: &str, rewriting: &Rewriting, options: &Options) -> Option<Record> {
    let hash = recorded.fingerprint();
    let hash = hash.inspect_err(|error| tracing::warn!(%error, "decisions of rewriting cannot be cached")).ok()?;
    let rules =
        RULES.iter().map(|rule| rule.name).filter(|name| !rewriting.without.iter().any(|without| without == name));
    let key = format!(
        "{hash:032x}, {software}, {:?}, fused: {}, {}, rules: {}",
        options.settings,
        options.fuse,
        options.scheduler.name(),
        rules.collect::<Vec<_>>().join(" "),
    );
    Some(Record::new(folder, Kind::Rewriting, &key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewritten_pass_has_to_be_faster_than_the_exact_one() {
        assert_eq!(why_not_rewritten([98., 100.]), None);
        assert!(why_not_rewritten([99.5, 100.]).is_some(), "within the noise");
        assert!(why_not_rewritten([526., 508.]).is_some_and(|why| why.contains("526 us, of candle's 508")), "slower");
    }

    #[test]
    fn another_pass_device_setting_or_rule_has_another_place() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let of = |trace: &Trace, software: &str, options: &Options| {
            let rewriting = Options { numerics: crate::Numerics::Accurate, ..options.clone() }.rewriting();
            record(folder.path(), trace, software, &rewriting.expect("it is asked for"), options)
                .expect("a small trace")
        };
        let (trace, options) = (Trace::default(), Options::default());
        of(&trace, "driver 1", &options).store(&Outcome { refused: Some("slower".into()), ..Outcome::default() });
        let load = |record: Record| record.load(Ok::<Outcome, String>);
        let found = load(of(&trace, "driver 1", &options));
        assert_eq!(found.and_then(|found| found.refused).as_deref(), Some("slower"));
        assert_eq!(load(of(&trace, "driver 2", &options)), None);
        assert_eq!(load(of(&Trace { peak_bytes: 5, ..Trace::default() }, "driver 1", &options)), None);
        for other in [
            Options { fuse: false, ..options.clone() },
            Options { without: vec!["attention".into()], ..options.clone() },
            Options { scheduler: std::sync::Arc::new(crate::BuiltIn::Sequential), ..options.clone() },
        ] {
            assert_eq!(load(of(&trace, "driver 1", &other)), None);
        }
        let unknown = Options { without: vec!["no rule".into()], ..options };
        assert!(load(of(&trace, "driver 1", &unknown)).is_some(), "a name without a rule changes nothing");
        Ok(())
    }
}
