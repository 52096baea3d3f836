//! Image planes, and the choice among kernel variants for them.

use candle::{bail, Result};

/// Threads that an H200 runs at once.
pub(crate) const H200_THREADS: usize = 132 * 2048;

/// Sizes of an operator on image planes: pooling or depthwise convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    /// Images.
    batch: usize,
    /// Channels.
    channels: usize,
    /// Input height and width.
    from: (usize, usize),
    /// Output height and width.
    to: (usize, usize),
    /// Is the layout NHWC?
    channels_last: bool,
}

impl Plane {
    /// From `(batch, channels, h, w)` to planes of size `to`.
    ///
    /// # Errors
    /// Indices that do not fit into 31 bits.
    pub fn new(
        (batch, channels, h, w): (usize, usize, usize, usize),
        to: (usize, usize),
        channels_last: bool,
    ) -> Result<Self> {
        let plane = Self { batch, channels, from: (h, w), to, channels_last };
        if plane.elements().max(plane.results()) > i32::MAX as usize {
            bail!("{:?} is too large: the kernels index with 31 bits", (batch, channels, h, w))
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

    /// Input height and width.
    pub fn from(&self) -> (usize, usize) {
        self.from
    }

    /// Output height and width.
    pub fn to(&self) -> (usize, usize) {
        self.to
    }

    /// Is the layout NHWC?
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

    /// Is the layout NHWC, and can a thread load `channels` neighbouring channels, of `bytes` bytes each, as one
    /// vector?
    pub fn is_aligned(&self, channels: usize, bytes: usize, addresses: &[u64]) -> bool {
        let size = channels * bytes;
        let aligned = addresses.iter().all(|address| address.is_multiple_of(size as u64));
        self.channels_last && size <= 16 && self.channels.is_multiple_of(channels) && aligned
    }

    /// The kernel variant with this many neighbouring channels per thread, or one, and its number of threads.
    pub fn variant(&self, channels: Option<usize>) -> (String, usize) {
        let layout = if self.channels_last { "nhwc" } else { "nchw" };
        match channels {
            Some(n) => (format!("{layout}{n}"), self.results() / n),
            None => (layout.into(), self.results()),
        }
    }

    /// Do enough threads remain to hide the latency of loads if each computes `results` elements? That is as many as an
    /// H200 runs at once.
    pub fn fills(&self, results: usize) -> bool {
        self.results() / results >= H200_THREADS
    }
}
