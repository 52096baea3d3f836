//! The library's schedulers by name.

use serde::{Deserialize, Serialize};

/// Generates [`Policy`] from one table, so that every policy has a name. Some of their schedulers are in the laboratory, above this
/// module; so `policies` implements [`Scheduler`](super::Scheduler) for [`Policy`].
macro_rules! policies {
    (
        fixed { $($(#[$doc:meta])* $policy:ident, $name:literal;)* }
        searching { $($(#[$its_doc:meta])* $searching:ident, $its_name:literal;)* }
    ) => {
        /// A scheduling algorithm of this library.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum Policy {
            $($(#[$doc])* #[serde(rename = $name)] $policy,)*
            $($(#[$its_doc])* #[serde(rename = $its_name)] $searching,)*
        }

        impl Policy {
            /// Every policy, in the order in which tables list them.
            pub const ALL: [Policy; [$($name,)* $($its_name,)*].len()] =
                [$(Policy::$policy,)* $(Policy::$searching,)*];

            /// The policies that schedule without running anything: all but the tuned one.
            pub const FIXED: [Policy; [$($name),*].len()] = [$(Policy::$policy),*];

            /// Its name, which `Display` writes and `FromStr` reads.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Policy::$policy => $name,)*
                    $(Policy::$searching => $its_name,)*
                }
            }
        }
    };
}

policies! {
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

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`: use one of {known}", known = Policy::ALL.map(Policy::as_str).join(", "))]
pub struct UnknownPolicy(String);

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> std::result::Result<Self, UnknownPolicy> {
        Policy::ALL.into_iter().find(|p| p.as_str() == name).ok_or_else(|| UnknownPolicy(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Scheduler;

    #[test]
    fn names_are_read_back() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        }
        let unknown = "fifo".parse::<Policy>().unwrap_err().to_string();
        assert!(unknown.contains("`fifo`") && unknown.contains("sequential, dag, nimble"), "{unknown}");
    }
}
