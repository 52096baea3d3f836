//! What a server's metrics say of its devices.

use std::time::Instant;

use anyhow::{Context, Result};

/// Counters of a server at one moment.
pub struct Scrape {
    at: Instant,
    text: String,
}

/// Shares of the time between two moments, as means over a model's devices.
#[derive(Clone, Copy, serde::Serialize)]
pub struct Shares {
    /// Devices that have counters.
    pub devices: usize,
    /// A device had a batch. The rest is the host's alone.
    pub busy: f64,
    /// What these batches take the device by itself, if the server knows it. The rest is what serving adds.
    pub device: Option<f64>,
}

impl Scrape {
    /// The counters now; `None` if the server has no `/metrics`.
    pub fn take(agent: &ureq::Agent, url: &str) -> Result<Option<Self>> {
        let at = Instant::now();
        let mut reply = agent.get(format!("{url}/metrics")).call()?;
        match reply.status().is_success() {
            true => Ok(Some(Self { at, text: reply.body_mut().read_to_string()? })),
            false => Ok(None),
        }
    }

    /// The shares from `self` to `later`; `None` if the server counts no such times.
    pub fn shares(&self, later: &Self, model: &str) -> Result<Option<Shares>> {
        let seconds = later.at.duration_since(self.at).as_secs_f64();
        let share = |name: &str| {
            let (before, after) = (series(&self.text, name, model)?, series(&later.text, name, model)?);
            let sum = |values: &[f64]| values.iter().sum::<f64>();
            anyhow::Ok((after.len(), (sum(&after) - sum(&before)) / (seconds * after.len().max(1) as f64)))
        };
        let ((devices, busy), (_, device)) = (share("opara_busy_seconds_total")?, share("opara_device_seconds_total")?);
        Ok((devices > 0).then_some(Shares { devices, busy, device: (device > 0.).then_some(device) }))
    }
}

/// The values of one counter of a model, one a device.
fn series(text: &str, name: &str, model: &str) -> Result<Vec<f64>> {
    let label = format!("model=\"{model}\"");
    let of_model = |line: &&str| {
        let labels =
            line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')).and_then(|rest| rest.split_once('}'));
        labels.is_some_and(|(labels, _)| labels.split(',').any(|of| of == label))
    };
    let value = |line: &str| {
        let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
        value.with_context(|| format!("not a number: {line}"))
    };
    text.lines().filter(of_model).map(value).collect()
}
