//! The device and stream of a capture.

use candle::{Device, Tensor};

use super::driver::{self, Stream};
use crate::{Error, Result};

/// A device that can be captured, and its stream.
#[derive(Clone)]
pub(super) struct Target {
    pub device: Device,
    pub stream: Stream,
}

impl Target {
    /// The device of these inputs, after it has finished all earlier work.
    ///
    /// # Errors
    /// [`Error::NotCapturable`] if nothing can be captured there.
    pub fn of(inputs: &[Tensor]) -> Result<Self> {
        let Some(device) = inputs.first().map(|t| t.device().clone()) else {
            return Err(Error::NotCapturable { reason: "it has no input".into() });
        };
        let stream = Stream::of(&device)?;
        if stream.is_legacy() {
            let reason = "its device uses the legacy default stream: make it with `opara_candle::cuda_device`".into();
            return Err(Error::NotCapturable { reason });
        }
        // Weights and inputs may come from another thread's stream.
        stream.wait_for_all()?;
        if cfg!(not(feature = "interpose")) {
            return Err(Error::NotCapturable {
                reason: "this program is built without the feature `interpose`".into(),
            });
        }
        if !driver::is_interposed() {
            let reason =
                "this program looks the CUDA driver up at run time: build cudarc with `dynamic-linking`".into();
            return Err(Error::NotCapturable { reason });
        }
        if let [_, ..] = driver::unseen() {
            let libraries = driver::unseen().join(", ");
            let reason = format!(
                "calls of {libraries} do not pass through this library: the process has loaded it globally before the shared library that \
                 has this one. Load it without RTLD_GLOBAL, or link the program itself with this library"
            );
            return Err(Error::NotCapturable { reason });
        }
        Ok(Self { device, stream })
    }
}
