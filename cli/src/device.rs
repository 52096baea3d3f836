//! Devices on the command line.

use std::sync::LazyLock;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use opara_plan::simulate::DeviceModel;
use opara_plan::trace::DeviceSpec;

/// The devices' names, for as long as clap wants them.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(DeviceModel::names);

/// Which device is simulated; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct ChosenDevice {
    /// The device to simulate; without it the one that the trace was recorded on.
    #[arg(long, value_parser = PossibleValuesParser::new(NAMES.iter().map(String::as_str)))]
    device: Option<String>,
}

impl ChosenDevice {
    /// The device, for a trace that was recorded on this one.
    ///
    /// # Errors
    /// A name that is none.
    pub fn device(&self, recorded: &DeviceSpec) -> Result<DeviceModel> {
        Ok(match &self.device {
            Some(name) => DeviceModel::named(name)?,
            None => DeviceModel::of(recorded),
        })
    }
}
