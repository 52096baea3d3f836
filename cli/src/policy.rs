//! Policies on the command line.

use std::sync::LazyLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use opara_plan::Policy;

/// The policies' names, with the static lifetime that clap needs.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| Policy::ALL.map(|policy| policy.to_string()).into());

/// The policy to use; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct ChosenPolicy {
    /// The policy that assigns ops to streams and orders them.
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(NAMES.iter().map(String::as_str))
        .try_map(|name| name.parse::<Policy>()))]
    pub policy: Policy,
}
