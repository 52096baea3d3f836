//! The library's schedulers by name.

use serde::{Deserialize, Serialize};

/// Generates [`BuiltIn`] from one table, so that every scheduler has a name. Some of their schedulers are in the laboratory, above this
/// module; so `schedulers` implements [`Scheduler`](super::Scheduler) for [`BuiltIn`].
macro_rules! schedulers {
    (
        fixed { $($(#[$doc:meta])* $scheduler:ident, $name:literal;)* }
        searching { $($(#[$its_doc:meta])* $searching:ident, $its_name:literal;)* }
    ) => {
        /// A scheduling algorithm of this library.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum BuiltIn {
            $($(#[$doc])* #[serde(rename = $name)] $scheduler,)*
            $($(#[$its_doc])* #[serde(rename = $its_name)] $searching,)*
        }

        impl BuiltIn {
            /// Every scheduler, in the order in which tables list them.
            pub const ALL: [BuiltIn; [$($name,)* $($its_name,)*].len()] =
                [$(BuiltIn::$scheduler,)* $(BuiltIn::$searching,)*];

            /// The schedulers that schedule without running anything: all but the tuned one.
            pub const FIXED: [BuiltIn; [$($name),*].len()] = [$(BuiltIn::$scheduler),*];

            /// Its name, which `Display` writes and `FromStr` reads.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(BuiltIn::$scheduler => $name,)*
                    $(BuiltIn::$searching => $its_name,)*
                }
            }
        }
    };
}

schedulers! {
    fixed {
        /// One stream, in recorded order, like a plain CUDA graph of the module.
        Sequential, "sequential";
        /// Every op starts when its dependencies have ended; launched in recorded order.
        Dag, "dag";
        /// The most concurrency with the fewest synchronisations (Nimble, Alg. 1).
        Nimble, "nimble";
        /// Breadth-first waves with a barrier between them (the wavefront that Opara's paper calls Rammer⁻).
        Rammer, "rammer";
        /// The best stages of parallel groups that dynamic programming finds (IOS).
        Ios, "ios";
        /// The op with the longest remaining path first, within the device's resources.
        CriticalPath, "critical-path";
        /// Opara's stream allocation and launch order (Opara, Alg. 1 and Alg. 2).
        #[default]
        Opara, "opara";
    }
    searching {
        /// The fastest schedule of a search that benchmarks many on the device; see [`tune`](crate::tune). Used as a
        /// [`Scheduler`](super::Scheduler) without a device, it benchmarks by [simulation](crate::simulate).
        Tuned, "tuned";
    }
}

impl std::fmt::Display for BuiltIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no scheduler has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheduler `{0}`: use one of {known}", known = BuiltIn::ALL.map(BuiltIn::as_str).join(", "))]
pub struct UnknownScheduler(String);

impl std::str::FromStr for BuiltIn {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> std::result::Result<Self, UnknownScheduler> {
        BuiltIn::ALL.into_iter().find(|p| p.as_str() == name).ok_or_else(|| UnknownScheduler(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Scheduler;

    #[test]
    fn names_are_read_back() {
        for scheduler in BuiltIn::ALL {
            assert_eq!(scheduler.to_string().parse(), Ok(scheduler));
            assert_eq!(serde_json::to_value(scheduler).unwrap(), scheduler.name());
        }
        let unknown = "fifo".parse::<BuiltIn>().unwrap_err().to_string();
        assert!(unknown.contains("`fifo`") && unknown.contains("sequential, dag, nimble"), "{unknown}");
    }
}
