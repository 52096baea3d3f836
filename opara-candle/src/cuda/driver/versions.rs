//! What decides which kernels of the libraries a device can run, and how fast, for keys of the disk cache.

use candle::cuda_backend;

use super::{cublaslt, Stream};

/// The device, its driver, the libraries, and the process-wide settings of them.
pub(in crate::cuda) fn software(stream: &Stream) -> String {
    let name = stream.device_spec().map_or("unknown".into(), |spec| spec.name);
    let driver = stream.driver_version().map_or("unknown".into(), |version| version.to_string());
    #[cfg(feature = "cudnn")]
    let cudnn = cudarc::cudnn::result::get_version();
    #[cfg(not(feature = "cudnn"))]
    let cudnn = "none";
    let reduced = [
        cuda_backend::gemm_reduced_precision_f32(),
        cuda_backend::gemm_reduced_precision_f16(),
        cuda_backend::gemm_reduced_precision_bf16(),
    ];
    let tf32 = std::env::var("NVIDIA_TF32_OVERRIDE").unwrap_or_default();
    let cublas = cublaslt::version();
    format!("{name}, driver {driver}, cuBLASLt {cublas}, cuDNN {cudnn}, reduced {reduced:?}, TF32 {tf32:?}")
}
