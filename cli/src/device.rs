//! Devices on the command line.

use std::sync::LazyLock;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use opara_plan::simulate::DeviceModel;
use opara_plan::trace::DeviceSpec;

/// The devices' names, with the static lifetime that clap needs.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(DeviceModel::names);

/// The device to simulate; flatten it into a subcommand's arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct ChosenDevice {
    /// The device to simulate; default: the one that the trace was recorded on.
    #[arg(long, value_parser = PossibleValuesParser::new(NAMES.iter().map(String::as_str)))]
    device: Option<String>,
}

impl ChosenDevice {
    /// The chosen device, or the one that the trace was recorded on.
    ///
    /// # Errors
    /// An unknown name.
    pub fn device(&self, recorded: &DeviceSpec) -> Result<DeviceModel> {
        Ok(match &self.device {
            Some(name) => DeviceModel::named(name)?,
            None => DeviceModel::of(recorded),
        })
    }
}
