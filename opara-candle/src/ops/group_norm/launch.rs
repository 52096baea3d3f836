//! Launches of `group_norm.cu`.

use candle::{bail, CudaDevice, DType, Result};
use cudarc::driver::{CudaSlice, CudaView, DeviceRepr, LaunchConfig};

use crate::cuda::driver::kernels::{address, kernels, ptx, wide};

kernels! {
    /// Group norm in one launch.
    GroupNorm<T> = "opara_norm_group_" for [f16 bf16 f32] {
        images: grid [2], groups: u32, per: u32, plane: u32, share: u32, eps: f32, silu: i32,
        x: vector in T [images * groups * per * plane],
        scale: in T [groups * per],
        shift: in T [groups * per],
        y: out T [images * groups * per * plane],
    }

    /// The mean and the sum of squared distances of each part of each group.
    GroupMoments<T> = "opara_norm_group_moments_" for [f16 bf16 f32] {
        parts: grid [0], images: grid [2], groups: u32, per: u32, plane: u32, share: u32,
        x: vector in T [images * groups * per * plane],
        moments: out f32 [2 * parts * images * groups],
    }

    /// Group norm by the moments of the parts.
    GroupApply<T> = "opara_norm_group_apply_" for [f16 bf16 f32] {
        parts: grid [0], images: grid [2], groups: u32, per: u32, plane: u32, share: u32, eps: f32, silu: i32,
        x: vector in T [images * groups * per * plane],
        scale: in T [groups * per],
        shift: in T [groups * per],
        moments: vector in f32 [2 * parts * images * groups],
        y: out T [images * groups * per * plane],
    }
}

/// Threads per block of `group_norm.cu`.
const THREADS: usize = 512;

/// Bytes of a pixel's channels that a block reads at least, if there are as many: a line of the cache.
const LINE: usize = 128;

/// Vectors of a thread that one launch handles, and that a part has at least. Both are guesses.
const WHOLE: usize = 8;
const PART: usize = 4;

/// Parts at most: four for each lane of the warp that merges their moments.
const PARTS: usize = 128;

/// Blocks at most if there are parts: the multiprocessors of an H100 run two each at a time. Other devices have as many, since parts
/// decide bits.
const BLOCKS: usize = 4 * 132;

/// Groups of neighbouring channels of some images, and how blocks share them: `slices` blocks share the channels of an image, and
/// `parts` the pixels. If channels are contiguous, a slice is one group, and a part are some of its vectors. If they come last, a
/// group is only a few bytes of every pixel. Then a slice is as many whole groups as memory reads at once, a part are some pixels,
/// and a thread keeps its channels for all pixels, whatever groups they are of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    images: usize,
    groups: usize,
    /// Channels of a group.
    per: usize,
    /// Pixels of an image.
    plane: usize,
    channels_last: bool,
    /// Elements that a thread loads at once: neighbouring channels, or pixels of one.
    vector: usize,
    slices: usize,
    parts: usize,
    /// Pixels of a part, or vectors of a group's.
    share: usize,
}

/// A group norm: what is added to the variance, and whether SiLU follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub of: Groups,
    pub eps: f32,
    pub silu: bool,
}

impl Groups {
    /// Groups of `[images, channels, pixels]`, whose elements begin so many behind the start of their memory. `None` without
    /// elements, if the groups do not divide the channels, if two pixels of a slice do not fit into a block, or if an index does
    /// not fit.
    pub fn new(
        dtype: DType,
        [images, channels, plane]: [usize; 3],
        groups: usize,
        channels_last: bool,
        start: usize,
    ) -> Option<Self> {
        let per = channels.checked_div(groups).filter(|per| per * groups == channels)?;
        let image = channels.checked_mul(plane)?;
        // The grid's second and third axis end there.
        let fits = image <= i32::MAX as usize && groups.max(images) < 1 << 16;
        if image == 0 || images == 0 || !fits {
            return None;
        }
        let along = if channels_last { channels } else { plane };
        let is_aligned = |n: &usize| along.is_multiple_of(*n) && start.is_multiple_of(*n) && *n <= wide(dtype);
        let vector = [8, 4, 2].into_iter().find(is_aligned).unwrap_or(1);
        // Channels of a slice, units of an image or group, and how many of them the threads of a block take at a time.
        let (width, units, rows) = if channels_last {
            let is_wide = |width: &usize| {
                let divides = channels.is_multiple_of(*width) && width.is_multiple_of(vector);
                divides && width * dtype.size_in_bytes() >= LINE
            };
            let width = (1..=groups).map(|n| n * per).find(is_wide).unwrap_or(channels);
            (width, plane, THREADS * vector / width)
        } else {
            (per, per * plane / vector, THREADS)
        };
        if rows < 2 {
            return None;
        }
        let slices = channels / width;
        let parts = match units.div_ceil(rows) {
            ..=WHOLE => 1,
            each => (BLOCKS / (slices * images)).min(each / PART).clamp(1, PARTS),
        };
        let share = units.div_ceil(parts);
        Some(Self { images, groups, per, plane, channels_last, vector, slices, parts: units.div_ceil(share), share })
    }

    /// The same with elements at this address: another library's memory may begin where vectors may not.
    ///
    /// # Errors
    /// Groups that fit into a block as vectors only.
    pub fn at(self, dtype: DType, address: u64) -> Result<Self> {
        if self.begins_vectors(dtype, address) {
            return Ok(self);
        }
        let sizes = [self.images, self.channels(), self.plane];
        match Self::new(dtype, sizes, self.groups, self.channels_last, 1) {
            Some(narrow) => Ok(narrow),
            None => {
                bail!("groups of {} channels have to begin at a multiple of 16 bytes, not at {address:#x}", self.per)
            }
        }
    }

    fn begins_vectors(&self, dtype: DType, address: u64) -> bool {
        address.is_multiple_of((self.vector * dtype.size_in_bytes()) as u64)
    }

    /// Groups of all images.
    pub fn count(&self) -> usize {
        self.images * self.groups
    }

    /// Parts that each group is normalised in.
    pub fn parts(&self) -> usize {
        self.parts
    }

    fn channels(&self) -> usize {
        self.groups * self.per
    }

    /// The variant of a kernel.
    ///
    /// # Errors
    /// An address that its vectors cannot begin at.
    fn variant(&self, dtype: DType, at: u64) -> Result<String> {
        let Self { vector, channels_last, .. } = *self;
        if !self.begins_vectors(dtype, at) {
            bail!("address {at:#x} does not begin a vector of {vector} elements")
        }
        let layout = if channels_last { "nhwc" } else { "nchw" };
        Ok(format!("{layout}{vector}_{}", dtype.as_str()))
    }

    fn config(&self) -> LaunchConfig {
        let grid_dim = [self.parts, self.slices, self.images].map(|n| n as u32).into();
        LaunchConfig { grid_dim, block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 }
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
    x: &CudaView<T>,
    moments: &mut CudaSlice<f32>,
) -> Result<()> {
    let Groups { images, groups, per, plane, parts, share, .. } = of;
    let variant = of.variant(dtype, address(x, device))?;
    GroupMoments { parts, images, groups, per, plane, share, x, moments: moments.as_view_mut() }.launch(
        device,
        &variant,
        ptx::GROUP_NORM,
        of.config(),
    )
}

/// Group norm of `x`, scaled and shifted, into `y`: by the moments of its parts, if there are several, else in one launch.
///
/// # Errors
/// Slices that are too short, or a failed launch.
pub(super) fn normalise<T: DeviceRepr>(
    device: &CudaDevice,
    dtype: DType,
    norm: Norm,
    [x, scale, shift]: [&CudaView<T>; 3],
    moments: Option<&CudaView<f32>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Norm { of, eps, silu } = norm;
    let Groups { images, groups, per, plane, parts, share, .. } = of;
    let (silu, y) = (i32::from(silu), y.as_view_mut());
    let (variant, code, config) = (of.variant(dtype, address(x, device))?, ptx::GROUP_NORM, of.config());
    match moments {
        Some(moments) => {
            GroupApply { parts, images, groups, per, plane, share, eps, silu, x, scale, shift, moments, y }
                .launch(device, &variant, code, config)
        }
        None if parts > 1 => bail!("{of:?} are normalised by their moments"),
        None => GroupNorm { images, groups, per, plane, share, eps, silu, x, scale, shift, y }
            .launch(device, &variant, code, config),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// `[images, channels, pixels]`, and groups.
    const IMAGES: [([usize; 3], usize); 14] = [
        ([1, 320, 4096], 32),
        ([2, 128, 40_000], 32),
        ([3, 30, 77], 3),
        ([3, 30, 9_001], 3),
        ([1, 6, 1], 3),
        ([2, 1280, 64], 32),
        ([1, 64, 6_561], 1),
        ([2, 1016, 5], 1016),
        ([1, 2048, 50], 1),
        ([700, 16, 100], 4),
        ([1, 7, 5_003], 7),
        ([1, 2, 1], 2),
        ([1, 96, 1023], 4),
        ([1, 12, 70_000], 2),
    ];

    /// The elements that each block loads and stores, as `group.cuh` and `slice.cuh` do, with the threads that do.
    fn visits(of: &Groups, mut visit: impl FnMut([usize; 3], usize, usize)) {
        let Groups { per, plane, vector, .. } = *of;
        let (parts, slices, images, share) = (of.parts, of.slices, of.images, of.share);
        let width = of.channels() / slices;
        for block in (0..images).flat_map(|z| (0..slices).flat_map(move |y| (0..parts).map(move |x| [x, y, z]))) {
            let [part, slice, image] = block;
            let units = if of.channels_last { plane } else { per * plane / vector };
            let first = (part * share).min(units);
            let end = (first + share).min(units);
            for thread in 0..THREADS {
                if !of.channels_last {
                    for at in (first + thread..end).step_by(THREADS) {
                        visit(block, thread, (image * of.groups + slice) * per * plane + at * vector);
                    }
                    continue;
                }
                let vectors = width / vector;
                let (rows, row, column) = (THREADS / vectors, thread / vectors, thread % vectors * vector);
                assert!(rows >= 2, "{of:?}: the room of a block has place for two rows");
                let origin = image * plane * of.channels() + slice * width + column;
                for pixel in (first + row..end).step_by(rows).filter(|_| row < rows) {
                    visit(block, thread, origin + pixel * of.channels());
                }
            }
        }
    }

    #[test]
    fn blocks_visit_every_element_once_in_whole_groups() {
        for ((sizes, groups), dtype) in
            IMAGES.into_iter().flat_map(|image| [DType::F16, DType::F32].map(|dtype| (image, dtype)))
        {
            for (channels_last, start) in [(false, 0), (true, 0), (true, 4), (true, 1), (false, 1)] {
                let Some(of) = Groups::new(dtype, sizes, groups, channels_last, start) else {
                    assert!(channels_last && sizes[1] > 256, "{sizes:?} are supported");
                    continue;
                };
                let (per, plane) = (of.per, of.plane);
                let mut seen = vec![0u8; of.images * of.channels() * plane];
                let mut channels = BTreeMap::new();
                visits(&of, |block, thread, first| {
                    assert_eq!(first % of.vector, 0, "{of:?}: a vector is not aligned");
                    for (element, visits) in seen.iter_mut().enumerate().skip(first).take(of.vector) {
                        *visits += 1;
                        let (image, within) = (element / (of.channels() * plane), element % (of.channels() * plane));
                        let channel = if channels_last { within % of.channels() } else { within / plane };
                        let width = of.channels() / of.slices;
                        assert_eq!((image, channel / width), (block[2], block[1]), "{of:?}");
                    }
                    if channels_last {
                        let channel = first % of.channels();
                        let known = *channels.entry((block, thread)).or_insert(channel);
                        assert_eq!(known, channel, "{of:?}: a thread keeps its channels");
                    }
                });
                assert!(seen.iter().all(|&visits| visits == 1), "{of:?}: every element once");
                assert!((of.channels() / of.slices).is_multiple_of(per), "{of:?}: groups are whole");
                assert!(of.parts <= PARTS, "{of:?}: a warp merges the parts");
            }
        }
    }

    #[test]
    fn slices_are_as_wide_as_memory_reads() {
        let of = |dtype, channels, plane| Groups::new(dtype, [1, channels, plane], 32, true, 0).expect("supported");
        let image = of(DType::F16, 128, 512 * 512);
        assert_eq!((image.vector, image.slices, image.parts), (8, 2, 128));
        let image = of(DType::F16, 320, 4096);
        assert_eq!((image.vector, image.channels() / image.slices), (8, 80));
        assert!((8..=32).contains(&image.parts), "{image:?}");
        let image = of(DType::F32, 1280, 64);
        assert_eq!((image.vector, image.channels() / image.slices, image.parts), (4, 40, 1));
        let narrow = image.at(DType::F32, 8).expect("narrower vectors fit");
        assert_eq!((narrow.vector, narrow.channels() / narrow.slices), (1, 40));
        assert_eq!(image.at(DType::F32, 16).expect("it is aligned").vector, 4);
        // No slice holds two pixels of these; and there are no groups of part of a channel.
        assert!(Groups::new(DType::F32, [1, 4096, 9], 1, true, 0).is_none());
        assert!(Groups::new(DType::F32, [1, 10, 9], 4, true, 0).is_none());
        assert!(Groups::new(DType::F32, [1, 10, 9], 0, false, 0).is_none());
    }
}
