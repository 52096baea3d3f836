//! The machine and the software versions of a measurement.

use std::process::Command;

use candle::Device;
use opara_peers::results::Machine;
use time::OffsetDateTime;

use crate::gpu::Gpu;

const UNKNOWN: &str = "unknown";

/// This machine. Frameworks report their versions themselves.
pub fn of(device: &Device, gpu: Option<&Gpu>, commit: Option<String>) -> Machine {
    let known = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.into());
    Machine {
        gpu: match device.is_cuda() {
            true => known(gpu.and_then(|gpu| gpu.name().ok())),
            false => "none: on the CPU".into(),
        },
        driver: known(gpu.and_then(|gpu| gpu.driver().ok())),
        commit: known(commit.or_else(head)),
        date: OffsetDateTime::now_utc().date().to_string(),
        versions: [("opara-candle".into(), env!("CARGO_PKG_VERSION").into())].into(),
        absent: Default::default(),
    }
}

/// The commit that is checked out, with a mark if files differ from it.
fn head() -> Option<String> {
    let git = Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]).output().ok()?;
    let commit = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !commit.is_empty()).then_some(commit)
}
