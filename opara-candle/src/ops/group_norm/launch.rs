//! Launches of `group_norm.cu`.

#![allow(unsafe_code)]

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, DType, Result};
use cudarc::driver::{CudaFunction, CudaSlice, CudaView, DeviceRepr, LaunchConfig, PushKernelArg};

use crate::cuda::driver::kernels::{address, expect, function, ptx, wide};

/// Threads per block of `group_norm.cu`.
const THREADS: u32 = 512;

/// Elements of a group that one block normalises, and of a part of a group that has several. Both are guesses.
const WHOLE: usize = 16_384;
const PART: usize = 8_192;

/// Parts of a group at most: a warp merges their moments.
const PARTS: usize = 32;

/// Groups of neighbouring channels of some images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    images: usize,
    groups: usize,
    /// Channels of a group.
    per: usize,
    /// Pixels of an image.
    plane: usize,
    channels_last: bool,
}

/// A group norm: what is added to the variance, and whether SiLU follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub of: Groups,
    pub eps: f32,
    pub silu: bool,
}

impl Groups {
    /// `None` without elements, if the groups do not divide the channels, or if an index does not fit.
    pub fn new(images: usize, groups: usize, channels: usize, plane: usize, channels_last: bool) -> Option<Self> {
        let divides = groups > 0 && channels.is_multiple_of(groups);
        let of = Self { images, groups, per: channels.checked_div(groups)?, plane, channels_last };
        let image = channels.checked_mul(plane)?;
        // The grid's second axis ends there.
        let fits = image <= i32::MAX as usize && of.count() < 1 << 16;
        (divides && image > 0 && images > 0 && fits).then_some(of)
    }

    /// Groups of all images.
    pub fn count(&self) -> usize {
        self.images * self.groups
    }

    /// Parts that each group is normalised in.
    pub fn parts(&self) -> usize {
        let elements = self.per * self.plane;
        if elements <= WHOLE {
            1
        } else {
            elements.div_ceil(PART).min(PARTS)
        }
    }

    fn channels(&self) -> usize {
        self.groups * self.per
    }

    fn elements(&self) -> usize {
        self.images * self.channels() * self.plane
    }

    /// The kernel of this name, and the elements that a thread loads at once: neighbouring channels, or pixels of one.
    fn kernel(
        &self,
        device: &CudaDevice,
        name: &str,
        dtype: DType,
        addresses: &[u64],
    ) -> Result<(CudaFunction, usize)> {
        let (along, layout) = if self.channels_last { (self.per, "nhwc") } else { (self.plane, "nchw") };
        let fits = |n: &usize| {
            let bytes = (n * dtype.size_in_bytes()) as u64;
            *n <= wide(dtype) && along.is_multiple_of(*n) && addresses.iter().all(|at| at.is_multiple_of(bytes))
        };
        let elements = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let name = format!("opara_{name}_{layout}{elements}_{}", dtype.as_str());
        Ok((function(device, &name, "group_norm", ptx::GROUP_NORM)?, elements))
    }

    /// Sizes as the kernels take them: groups, channels of each, pixels, vectors of a part.
    fn sizes(&self, elements: usize) -> [u32; 4] {
        let share = (self.per * self.plane / elements).div_ceil(self.parts());
        [self.groups, self.per, self.plane, share].map(|n| n as u32)
    }

    fn config(&self) -> LaunchConfig {
        let grid_dim = (self.parts() as u32, self.count() as u32, 1);
        LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
    }

    fn expect<T>(&self, [x, scale, shift]: [&CudaView<T>; 3]) -> Result<()> {
        expect("the operand", x.len(), self.elements())?;
        expect("the scale", scale.len(), self.channels())?;
        expect("the shift", shift.len(), self.channels())
    }
}

/// Writes the mean and the sum of squared distances of each part of each group to `moments`.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn moments<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    of: Groups,
    [x, scale, shift]: [&CudaView<T>; 3],
    moments: &mut CudaSlice<f32>,
) -> Result<()> {
    of.expect([x, scale, shift])?;
    expect("the moments", moments.len(), 2 * of.parts() * of.count())?;
    // Parts are of the same vectors in both launches.
    let addresses = [x, scale, shift].map(|operand| address(operand, device));
    let (function, elements) = of.kernel(device, "group_moments", dtype, &addresses)?;
    let sizes = of.sizes(elements);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(x).arg(moments);
    // SAFETY: the arguments match the kernel's declaration. It reads `elements()` elements of `x`, and writes two numbers for
    // each part of each group. The slice lengths were checked above, and `kernel` checked lengths and addresses for the vectors
    // that it loads.
    unsafe { launch.launch(of.config()) }.w()?;
    Ok(())
}

/// Group norm of `x`, scaled and shifted, into `y`: by the moments of its parts, if groups have several, else with a block for each group.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn normalise<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    norm: Norm,
    [x, scale, shift]: [&CudaView<T>; 3],
    moments: Option<&CudaSlice<f32>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Norm { of, eps, silu } = norm;
    of.expect([x, scale, shift])?;
    let needed = if of.parts() > 1 { 2 * of.parts() * of.count() } else { 0 };
    expect("the moments", moments.map_or(0, CudaSlice::len), needed)?;
    expect("the result", y.len(), of.elements())?;
    let addresses = [x, scale, shift].map(|operand| address(operand, device));
    let name = if moments.is_some() { "group_apply" } else { "group_norm" };
    let (function, elements) = of.kernel(device, name, dtype, &addresses)?;
    let (sizes, silu) = (of.sizes(elements), i32::from(silu));
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    for size in &sizes {
        launch.arg(size);
    }
    launch.arg(&eps).arg(&silu).arg(x).arg(scale).arg(shift);
    if let Some(moments) = moments {
        launch.arg(moments);
    }
    launch.arg(y);
    // SAFETY: the arguments match the declaration of the kernel, which takes moments if its name says so. It reads `elements()`
    // elements of `x`, one of scale and shift per channel and two moments per part of a group, if there are several, and writes
    // `elements()` elements of `y`. The slice lengths were checked above, and `kernel` checked lengths and addresses for the vectors
    // that it loads.
    unsafe { launch.launch(of.config()) }.w()?;
    Ok(())
}
