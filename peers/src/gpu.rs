//! The GPU as NVIDIA's management library (NVML) sees it.

use std::time::Duration;

use anyhow::{Context, Result};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::{Device, Nvml};
use opara_peers::results::Utilization;

/// The GPU that CUDA calls the first.
pub struct Gpu {
    nvml: Nvml,
    /// Among all that the machine has.
    index: u32,
}

impl Gpu {
    /// Opens it.
    ///
    /// # Errors
    /// No library, no driver.
    pub fn open() -> Result<Self> {
        // The name without a version is there only where one develops.
        let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().context("NVML")?;
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let index = visible.split(',').next().and_then(|first| first.trim().parse().ok()).unwrap_or(0);
        Ok(Self { nvml, index })
    }

    fn device(&self) -> Result<Device<'_>> {
        Ok(self.nvml.device_by_index(self.index)?)
    }

    /// Its name.
    ///
    /// # Errors
    /// Those of the library.
    pub fn name(&self) -> Result<String> {
        Ok(self.device()?.name()?)
    }

    /// Version of the driver.
    ///
    /// # Errors
    /// Those of the library.
    pub fn driver(&self) -> Result<String> {
        Ok(self.nvml.sys_driver_version()?)
    }

    /// How busy it is over `time` from now, by its counters (Hopper and later).
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
