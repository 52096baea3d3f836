//! The GPU, through NVIDIA's management library (NVML).

use std::time::Duration;

use anyhow::{Context, Result};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::{Device, Nvml};
use opara_peers::results::Utilization;

/// The GPU that is CUDA's first device.
pub struct Gpu {
    nvml: Nvml,
    /// Its index among all GPUs of the machine.
    index: u32,
}

impl Gpu {
    /// Opens the library and the device.
    ///
    /// # Errors
    /// No library, or no driver.
    pub fn open() -> Result<Self> {
        // The unversioned file name exists only on development machines.
        let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().context("NVML")?;
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let index = visible.split(',').next().and_then(|first| first.trim().parse().ok()).unwrap_or(0);
        Ok(Self { nvml, index })
    }

    fn device(&self) -> Result<Device<'_>> {
        Ok(self.nvml.device_by_index(self.index)?)
    }

    /// The GPU's name.
    ///
    /// # Errors
    /// An error of the library.
    pub fn name(&self) -> Result<String> {
        Ok(self.device()?.name()?)
    }

    /// The driver's version.
    ///
    /// # Errors
    /// An error of the library.
    pub fn driver(&self) -> Result<String> {
        Ok(self.nvml.sys_driver_version()?)
    }

    /// The GPU's utilisation over `time` from now, from its counters (Hopper and later).
    ///
    /// # Errors
    /// A GPU whose counters cannot be read.
    pub fn utilization(&self, time: Duration) -> Result<Utilization> {
        let device = self.device()?;
        let before = device.gpm_sample()?;
        std::thread::sleep(time);
        let after = device.gpm_sample()?;
        let metrics = [GpmMetricId::SmUtil, GpmMetricId::SmOccupancy];
        let found = nvml_wrapper::gpm::gpm_metrics_get(&self.nvml, &before, &after, &metrics)?;
        let mut shares = found.into_iter().map(|metric| metric.map(|metric| metric.value / 100.));
        let mut next = || shares.next().context("a counter is missing").and_then(|share| Ok(share?));
        Ok(Utilization { sm: next()?, occupancy: next()? })
    }
}
