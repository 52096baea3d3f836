//! Planes of channels, and the variants of kernels that map them to others.

use candle::{bail, Result};

/// Threads that an H200 runs at once.
pub(crate) const H200_THREADS: usize = 132 * 2048;

/// Sizes of an operator that maps the pixels of each channel to others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    /// Images.
    batch: usize,
    /// Channels.
    channels: usize,
    /// Height and width before.
    from: (usize, usize),
    /// Height and width after.
    to: (usize, usize),
    /// Whether the channels of a pixel lie together.
    channels_last: bool,
}

impl Plane {
    /// For `(batch, channels, h, w)` to `to`.
    ///
    /// # Errors
    /// More elements than 32 bits count.
    pub fn new(
        (batch, channels, h, w): (usize, usize, usize, usize),
        to: (usize, usize),
        channels_last: bool,
    ) -> Result<Self> {
        let plane = Self { batch, channels, from: (h, w), to, channels_last };
        if plane.elements().max(plane.results()) > i32::MAX as usize {
            bail!("{:?} has more elements than the kernels count", (batch, channels, h, w))
        }
        Ok(plane)
    }

    /// Images.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Height and width before.
    pub fn from(&self) -> (usize, usize) {
        self.from
    }

    /// Height and width after.
    pub fn to(&self) -> (usize, usize) {
        self.to
    }

    /// Whether the channels of a pixel lie together.
    pub fn is_channels_last(&self) -> bool {
        self.channels_last
    }

    /// Elements of the operand.
    pub fn elements(&self) -> usize {
        self.batch * self.channels * self.from.0 * self.from.1
    }

    /// Elements of the result.
    pub fn results(&self) -> usize {
        self.batch * self.channels * self.to.0 * self.to.1
    }

    /// Shape of the result as it lies in memory.
    pub fn shape(&self) -> (usize, usize, usize, usize) {
        match self.channels_last {
            true => (self.batch, self.to.0, self.to.1, self.channels),
            false => (self.batch, self.channels, self.to.0, self.to.1),
        }
    }

    /// Whether channels lie together and a thread can take so many at once, of so many bytes each.
    pub fn is_aligned(&self, channels: usize, bytes: usize, addresses: &[u64]) -> bool {
        let size = channels * bytes;
        let aligned = addresses.iter().all(|address| address.is_multiple_of(size as u64));
        self.channels_last && size <= 16 && self.channels.is_multiple_of(channels) && aligned
    }

    /// The kernel's variant whose threads take so many neighbouring channels, or one each, and how many threads it takes.
    pub fn taking(&self, channels: Option<usize>) -> (String, usize) {
        let layout = if self.channels_last { "nhwc" } else { "nchw" };
        match channels {
            Some(n) => (format!("{layout}{n}"), self.results() / n),
            None => (layout.into(), self.results()),
        }
    }

    /// Whether threads that make so many results each are enough to hide the latency of loads: as many as an H200 runs at
    /// once.
    pub fn fills(&self, results: usize) -> bool {
        self.results() / results >= H200_THREADS
    }
}
