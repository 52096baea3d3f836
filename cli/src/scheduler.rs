//! Schedulers on the command line.

use std::sync::LazyLock;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use opara_plan::BuiltIn;

/// The schedulers' names, with the static lifetime that clap needs.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| BuiltIn::ALL.map(|scheduler| scheduler.to_string()).into());

/// The scheduler to use; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct ChosenScheduler {
    /// The scheduler that assigns ops to streams and orders them.
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(NAMES.iter().map(String::as_str))
        .try_map(|name| name.parse::<BuiltIn>()))]
    pub scheduler: BuiltIn,
}
