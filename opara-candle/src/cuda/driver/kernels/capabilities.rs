//! The hardware features that this crate's kernels may use: features that both the compilation target and the device
//! have.

use candle::cuda_backend::WrapErr;
use candle::{CudaDevice, Result};
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};

use super::matrix::Matrix;

/// The architecture that PTX was compiled for, such as `sm_90a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Compute capability: 90 means 9.0.
    number: u32,
    /// `a` for architecture-specific instructions, `f` for family-specific ones.
    suffix: Option<char>,
}

impl Target {
    /// The target that the PTX text declares.
    pub fn of(code: &str) -> Option<Self> {
        let line = code.lines().find_map(|line| line.strip_prefix(".target "))?;
        let name = line.split(',').next()?.trim().strip_prefix("sm_")?;
        let suffix = name.chars().last().filter(char::is_ascii_lowercase);
        let number = name.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse().ok()?;
        Some(Self { number, suffix })
    }

    /// Its compute capability: 90 means 9.0.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Does the driver accept code for this target on a device?
    pub fn runs_on(self, device: u32) -> bool {
        match self.suffix {
            None => device >= self.number,
            Some('f') => device >= self.number && device / 10 == self.number / 10,
            Some(_) => device == self.number,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sm_{}{}", self.number, self.suffix.map(String::from).unwrap_or_default())
    }
}

/// The capabilities of a module of kernels on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capabilities {
    target: Option<Target>,
    /// Compute capability of the device: 90 means 9.0.
    device: u32,
    /// Maximum shared memory of a block, in bytes.
    shared_per_block: usize,
    /// Multiprocessors of the device.
    processors: usize,
    /// Whether the driver describes matrices in a way that a replay may address anew.
    describes_matrices: bool,
}

impl Capabilities {
    /// The capabilities of this code on this device.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn of(device: &CudaDevice, code: &str) -> Result<Self> {
        let stream = device.cuda_stream();
        let context = stream.context();
        let (major, minor) = context.compute_capability().w()?;
        let number = |attribute| context.attribute(attribute).w().map(|number| usize::try_from(number).unwrap_or(0));
        Ok(Self {
            target: Target::of(code),
            device: (major * 10 + minor) as u32,
            shared_per_block: number(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            processors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            describes_matrices: major >= 9 && Matrix::is_known(context)?,
        })
    }

    /// The target, if it runs on the device.
    fn runs(&self) -> Option<Target> {
        self.target.filter(|target| target.runs_on(self.device))
    }

    /// Are `mma.sync` for f16, bf16 and TF32, `ldmatrix` and `cp.async` available?
    pub fn has_tensor_cores(&self) -> bool {
        self.runs().is_some_and(|target| target.number >= 80)
    }

    /// Are `wgmma` and thread block clusters available? Only Hopper has `wgmma`, no later architecture, and only in
    /// code for `sm_90a`.
    pub fn has_warpgroups(&self) -> bool {
        self.runs() == Some(Target { number: 90, suffix: Some('a') })
    }

    /// Are thread block clusters available?
    pub fn has_clusters(&self) -> bool {
        self.runs().is_some_and(|target| target.number >= 90)
    }

    /// Are copies of boxes of a matrix available?
    pub fn has_boxes(&self) -> bool {
        self.has_clusters() && self.describes_matrices
    }

    /// May a block have this many bytes of shared memory?
    pub fn has_shared(&self, bytes: usize) -> bool {
        bytes <= self.shared_per_block
    }

    /// Bytes of shared memory that a block may have in addition to `bytes` bytes.
    pub fn shared_beside(&self, bytes: usize) -> usize {
        self.shared_per_block.saturating_sub(bytes)
    }

    /// Multiprocessors of the device.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Is the device a Hopper GPU, whose code may use warpgroups?
    pub fn is_hopper(&self) -> bool {
        self.device == 90
    }

    /// The reason why the code does not run on the device, and the remedy.
    pub fn refusal(&self) -> Option<String> {
        let Self { target, device, .. } = self;
        let target = target.filter(|target| !target.runs_on(*device))?;
        let [major, minor] = [device / 10, device % 10];
        Some(format!(
            "the kernels of opara-candle were compiled for {target}, which this GPU of compute capability \
             {major}.{minor} does not run: build with CUDA_COMPUTE_CAP={device}"
        ))
    }

    /// Describes code and device.
    pub fn described(&self) -> String {
        let target = self.target.map_or("an unknown target".into(), |target| target.to_string());
        format!("compiled for {target}, on a GPU of compute capability {}.{}", self.device / 10, self.device % 10)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Shared memory per block by compute capability (CUDA C++ Programming Guide, "Technical Specifications").
    const DEVICES: [(u32, usize); 6] =
        [(75, 64 << 10), (80, 163 << 10), (86, 99 << 10), (89, 99 << 10), (90, 227 << 10), (100, 227 << 10)];

    fn code(target: &str) -> String {
        format!("// Generated by NVIDIA NVVM Compiler\n.version 9.0\n.target {target}\n.address_size 64\n")
    }

    /// The capabilities on a device with this much shared memory per block, and as many multiprocessors as an H100.
    pub(crate) fn capabilities(target: &str, device: u32, shared_per_block: usize) -> Capabilities {
        Capabilities {
            target: Target::of(&code(target)),
            device,
            shared_per_block,
            processors: 132,
            describes_matrices: true,
        }
    }

    impl Capabilities {
        /// The same with another number of multiprocessors.
        pub(crate) fn with_processors(self, processors: usize) -> Self {
            Self { processors, ..self }
        }
    }

    /// The capabilities of the device that the code was compiled for.
    pub(crate) fn of_build(code: &str) -> Capabilities {
        let target = code.lines().find_map(|line| line.strip_prefix(".target ")).unwrap_or_default();
        let number: String = target.chars().filter(char::is_ascii_digit).collect();
        capabilities(target, number.parse().unwrap_or(0), 99 << 10)
    }

    #[test]
    fn the_target_is_read_from_the_ptx_text() {
        assert_eq!(Target::of(&code("sm_90a, debug")), Some(Target { number: 90, suffix: Some('a') }));
        assert_eq!(Target::of(&code("sm_80")), Some(Target { number: 80, suffix: None }));
        assert_eq!(Target::of(&code("sm_120f")).map(|target| target.to_string()), Some("sm_120f".into()));
        assert_eq!([Target::of(""), Target::of(&code("compute"))], [None; 2]);
    }

    #[test]
    fn a_feature_needs_both_code_and_device() {
        let of = |target| {
            DEVICES.map(|(device, shared)| {
                let of = capabilities(target, device, shared);
                (of.has_tensor_cores(), of.has_warpgroups())
            })
        };
        let (none, some, all) = ((false, false), (true, false), (true, true));
        assert_eq!(of("sm_75"), [none; 6]);
        // The driver compiles code for 8.0 on Hopper: it then has the features of 8.0.
        assert_eq!(of("sm_80"), [none, some, some, some, some, some]);
        assert_eq!(of("sm_86"), [none, none, some, some, some, some]);
        assert_eq!(of("sm_89"), [none, none, none, some, some, some]);
        assert_eq!(of("sm_90a"), [none, none, none, none, all, none]);
        assert_eq!(of("sm_100f"), [none, none, none, none, none, some]);
        assert_eq!(of("nothing"), [none; 6]);
    }

    #[test]
    fn the_refusal_says_how_to_build_for_the_device() {
        assert_eq!(capabilities("sm_80", 90, 0).refusal(), None);
        let refusal = capabilities("sm_90a", 86, 0).refusal().unwrap();
        assert!(refusal.contains("sm_90a") && refusal.contains("8.6") && refusal.contains("CUDA_COMPUTE_CAP=86"));
    }
}
