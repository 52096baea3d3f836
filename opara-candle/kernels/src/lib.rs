//! The CUDA kernels of `opara-candle`: a folder each operator. Nothing here knows a tensor; `opara-candle` declares what each kernel takes
//! and does, and holds the declarations against this code.
#![cfg(feature = "cuda")]

/// The PTX of the kernels: the constant `NAME` is of the file `name.cu`.
#[allow(missing_docs)]
pub mod ptx {
    include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
}

/// `chain.cuh` with all its includes, also CUDA's headers of 16-bit types: the machine that runs the program may not have them.
pub const CHAIN: &str = include_str!(concat!(env!("OUT_DIR"), "/chain.cuh"));

/// The major version of the CUDA toolkit that compiled the kernels.
pub const CUDA_MAJOR: &str = env!("OPARA_CUDA_MAJOR");
