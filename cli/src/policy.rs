//! Policies on the command line.

use std::sync::LazyLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use opara_plan::Policy;

/// The policies' names, for as long as clap wants them.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| Policy::ALL.map(|policy| policy.to_string()).into());

/// Which policy schedules; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct ChosenPolicy {
    /// How ops are assigned to streams and ordered.
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(NAMES.iter().map(String::as_str))
        .try_map(|name| name.parse::<Policy>()))]
    pub policy: Policy,
}
