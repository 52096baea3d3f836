//! Whether a device has room for a model, asked before anything is loaded.

use candle::{DType, Device};

use super::cache::Cache;
use super::config::Config;
use super::error::{DecoderError, Result};

impl Config {
    /// Fails where a device has no room for weights in `dtype` and for the keys and values of `batch` texts of `context` tokens:
    /// to be asked before they are loaded.
    ///
    /// # Errors
    /// [`DecoderError::NoRoom`] with the numbers; [`DecoderError::ContextTooLong`].
    pub fn fits(&self, batch: usize, context: usize, dtype: DType, device: &Device) -> Result<()> {
        check(self, self.parameters() * dtype.size_in_bytes() as u64, batch, context, dtype, device)
    }
}

/// Fails where the free memory is less than weights of so many bytes and the cache need. Where the system does not tell what is
/// free, loading has to find out.
pub(super) fn check(
    config: &Config,
    weights: u64,
    batch: usize,
    context: usize,
    dtype: DType,
    device: &Device,
) -> Result<()> {
    let most = config.max_positions;
    if context > most {
        return Err(DecoderError::ContextTooLong { context, most });
    }
    let Some(free) = free(device)? else { return Ok(()) };
    fits(config, weights, batch, context, dtype, free)
}

fn fits(config: &Config, weights: u64, batch: usize, context: usize, dtype: DType, free: u64) -> Result<()> {
    let cache = Cache::bytes(config, batch, context, dtype);
    match weights.saturating_add(cache) <= free {
        true => Ok(()),
        false => Err(DecoderError::NoRoom { weights, cache, free, batch, context }),
    }
}

/// Free bytes of a device.
pub(super) fn free(device: &Device) -> Result<Option<u64>> {
    if device.is_cuda() {
        return Ok(Some(opara_candle::free_memory(device)? as u64));
    }
    let Ok(told) = std::fs::read_to_string("/proc/meminfo") else { return Ok(None) };
    let available = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = available.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    Ok(kilobytes.map(|kilobytes| kilobytes << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_said_with_the_numbers() {
        let config = Config::tiny();
        let (weights, cache) = (5 << 20, Cache::bytes(&config, 4, 64, DType::F16));
        assert_eq!(cache, 4 * (64 + 128) * config.layers.len() as u64 * 2 * 2 * 8 * 2);
        assert!(fits(&config, weights, 4, 64, DType::F16, weights + cache).is_ok());
        let error = fits(&config, weights, 4, 64, DType::F16, weights + cache - 1).expect_err("a byte is missing");
        let told = error.to_string();
        assert!(told.contains("5 MiB for weights") && told.contains("4 x 64 tokens"), "{told}");
    }
}
