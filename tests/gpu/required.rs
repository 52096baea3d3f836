//! Tests when a GPU test may skip, and when it must fail.

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::common::{device_or_skip, isolated};
use candle::Device;
use opara_candle::Error;

/// Does a test that gets this error instead of a device fail?
fn fails(ordinal: usize, error: impl FnOnce() -> Error, required: bool) -> bool {
    let device = Err(error());
    catch_unwind(AssertUnwindSafe(|| device_or_skip(ordinal, device, required).map(drop))).is_err()
}

#[test]
fn a_build_without_cuda_skips_unless_a_gpu_is_required() {
    assert!(!fails(0, || Error::NoCuda, false));
    assert!(fails(0, || Error::NoCuda, true));
}

#[test]
fn an_available_device_is_used() {
    for required in [false, true] {
        assert!(matches!(device_or_skip(0, Ok(Device::Cpu), required), Some(Device::Cpu)));
    }
}

#[test]
fn an_error_of_candle_does_not_count_as_no_gpu() {
    assert!(fails(0, || candle::Error::Msg("no such kernel".into()).into(), false));
    assert!(fails(0, || candle::Error::Msg("no such kernel".into()).bt().into(), false));
}

#[test]
fn an_error_of_the_driver_does_not_count_as_no_gpu() {
    assert!(fails(0, || Error::Driver { call: "cuInit", message: "CUDA_ERROR_NO_DEVICE".into() }, false));
}

#[cfg(feature = "cuda")]
#[test]
fn only_the_drivers_no_device_codes_skip() {
    use candle::cuda_backend::cudarc::driver::{sys::CUresult, DriverError};
    use candle::cuda_backend::CudaError;

    let error = |code: CUresult| move || candle::Error::from(CudaError::Cuda(DriverError(code))).into();
    for absent in [CUresult::CUDA_ERROR_NO_DEVICE, CUresult::CUDA_ERROR_STUB_LIBRARY] {
        assert!(!fails(0, error(absent), false), "{absent:?}");
        assert!(fails(0, error(absent), true), "{absent:?}");
    }
    for unusable in [
        CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        CUresult::CUDA_ERROR_INVALID_DEVICE,
        CUresult::CUDA_ERROR_UNKNOWN,
    ] {
        assert!(fails(0, error(unusable), false), "{unusable:?}");
    }
    // The second GPU may be absent.
    assert!(!fails(1, error(CUresult::CUDA_ERROR_INVALID_DEVICE), false));
}

#[test]
fn a_test_in_a_process_of_its_own_fails_if_that_process_fails() -> anyhow::Result<()> {
    let in_that_process = std::env::var("OPARA_ISOLATED_TEST").is_ok();
    let outcome = isolated(|| anyhow::bail!("as it should"));
    if in_that_process {
        return outcome;
    }
    assert!(outcome.is_err(), "the process failed");
    Ok(())
}
