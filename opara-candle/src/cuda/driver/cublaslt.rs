//! Matmuls with bias and activation, by cuBLASLt.

use std::ffi::c_void;
use std::mem::size_of_val;

use candle::{bail, CudaDevice, DType, Error, Result};
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::{CudaSlice, CudaView, DevicePtr, DeviceRepr};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::kernels;
use super::matmul::Matmul;
use crate::memory::WORKSPACE_LIMIT;
use crate::ops::Activation;

/// An algorithm of cuBLASLt.
#[derive(Clone, Copy)]
pub(crate) struct Algorithm {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// Can this activation be part of the matmul call?
pub(crate) fn knows(activation: Activation) -> bool {
    matches!(activation, Activation::None | Activation::Relu)
}

/// Something of cuBLASLt's, and what destroys it.
struct Owned<T: Copy>(T, unsafe fn(T) -> std::result::Result<(), CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: each value below is made of a handle of cuBLASLt and the function that destroys it.
        if let Err(error) = unsafe { self.1(self.0) } {
            tracing::warn!("cuBLASLt: {error}");
        }
    }
}

/// The handle of a device.
fn handle(device: &CudaDevice) -> Result<sys::cublasLtHandle_t> {
    /// Never destroyed: there is one for each device.
    struct Handle(sys::cublasLtHandle_t);
    // SAFETY: cuBLASLt's functions may be called with one handle from several threads at a time.
    unsafe impl Send for Handle {}
    static HANDLES: Mutex<Option<HashMap<usize, Handle>>> = Mutex::new(None);
    let stream = device.cuda_stream();
    let context = stream.context();
    let mut handles = HANDLES.lock();
    let handles = handles.get_or_insert_default();
    if let Some(Handle(handle)) = handles.get(&context.ordinal()) {
        return Ok(*handle);
    }
    // A handle is of the context that is current when it is made.
    context.bind_to_thread().map_err(Error::wrap)?;
    let handle = result::create_handle().map_err(Error::wrap)?;
    Ok(handles.entry(context.ordinal()).or_insert(Handle(handle)).0)
}

/// cuBLASLt's description of a matmul. cuBLASLt is column-major: for it `y` is the weight times `x`.
struct Described {
    operation: Owned<sys::cublasLtMatmulDesc_t>,
    weight: Owned<sys::cublasLtMatrixLayout_t>,
    x: Owned<sys::cublasLtMatrixLayout_t>,
    y: Owned<sys::cublasLtMatrixLayout_t>,
}

impl Described {
    /// `bias` is its address on the device; it matters only when the matmul runs.
    fn new(of: &Matmul, bias: u64) -> Result<Self> {
        use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
        use sys::cublasLtEpilogue_t::{
            CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        use sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_TRANSA,
        };
        use sys::cudaDataType_t::{CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
        let (elements, sums) = match of.dtype {
            DType::F32 if of.tf32 => (CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
            DType::F32 => (CUDA_R_32F, CUBLAS_COMPUTE_32F),
            DType::F16 => (CUDA_R_16F, CUBLAS_COMPUTE_32F),
            DType::BF16 => (CUDA_R_16BF, CUBLAS_COMPUTE_32F),
            dtype => bail!("cuBLASLt has no matmul of {dtype:?}"),
        };
        let layout = |rows: usize, columns: usize| -> Result<_> {
            let layout = result::create_matrix_layout(elements, rows as u64, columns as u64, rows as i64);
            Ok(Owned(layout.map_err(Error::wrap)?, result::destroy_matrix_layout))
        };
        let operation = result::create_matmul_desc(sums, CUDA_R_32F).map_err(Error::wrap)?;
        let operation = Owned(operation, result::destroy_matmul_desc);
        let epilogue = match (of.bias, of.activation) {
            (false, Activation::None) => CUBLASLT_EPILOGUE_DEFAULT,
            (false, Activation::Relu) => CUBLASLT_EPILOGUE_RELU,
            (true, Activation::None) => CUBLASLT_EPILOGUE_BIAS,
            (true, Activation::Relu) => CUBLASLT_EPILOGUE_RELU_BIAS,
            (_, activation) => bail!("cuBLASLt has no matmul with {activation:?}"),
        };
        let transposed = cublasOperation_t::CUBLAS_OP_T;
        // SAFETY: each attribute is of the type that cuBLASLt declares for it.
        unsafe {
            operation.set(CUBLASLT_MATMUL_DESC_TRANSA, &transposed)?;
            operation.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            if of.bias {
                operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
            }
        }
        Ok(Self {
            operation,
            weight: layout(of.inner, of.columns)?,
            x: layout(of.inner, of.rows)?,
            y: layout(of.columns, of.rows)?,
        })
    }
}

impl Owned<sys::cublasLtMatmulDesc_t> {
    /// # Safety
    /// The attribute must be declared as `T`.
    unsafe fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let at: *const T = value;
        // SAFETY: the operation is alive, and the value of the attribute's type, as the caller promises.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, at.cast(), size_of_val(value)) }
            .map_err(Error::wrap)
    }
}

impl Owned<sys::cublasLtMatmulPreference_t> {
    /// # Safety
    /// The attribute must be declared as `T`.
    unsafe fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let at: *const T = value;
        // SAFETY: the preference is alive, and the value of the attribute's type, as the caller promises.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, at.cast(), size_of_val(value)) }
            .map_err(Error::wrap)
    }
}

/// Bytes that the addresses of all operands must be multiples of.
const ALIGNMENT: u32 = 16;

/// How partial sums of one element may be added up. Of 16 bits only in the type that matmuls are added up in: in that of the
/// result they may overflow where the result does not.
fn reductions(of: &Matmul) -> u32 {
    use sys::cublasLtReductionScheme_t::{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_MASK};
    let all = of.dtype == DType::F32;
    (if all { CUBLASLT_REDUCTION_SCHEME_MASK } else { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE }) as u32
}

/// Whether an operand may begin there. Results do, as memory of their own.
pub(crate) fn is_aligned(address: u64) -> bool {
    address.is_multiple_of(u64::from(ALIGNMENT))
}

/// What cuBLASLt proposes, best first.
pub(crate) fn algorithms(device: &CudaDevice, of: &Matmul) -> Result<Vec<Algorithm>> {
    use sys::cublasLtMatmulPreferenceAttributes_t::*;
    const MOST: usize = 8;
    let described = Described::new(of, 0)?;
    let preference = result::create_matmul_pref().map_err(Error::wrap)?;
    let preference = Owned(preference, result::destroy_matmul_pref);
    let mut count = 0;
    // SAFETY: cuBLASLt declares the first attribute as a 64-bit number, the others as 32-bit ones. All zeros are a result. All
    // that is passed is alive, and there is room for as many results as are asked for.
    let found = unsafe {
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_LIMIT)?;
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions(of))?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &ALIGNMENT)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &ALIGNMENT)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &ALIGNMENT)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &ALIGNMENT)?;
        let mut found = [std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); MOST];
        let status = sys::cublasLtMatmulAlgoGetHeuristic(
            handle(device)?,
            described.operation.0,
            described.weight.0,
            described.x.0,
            described.y.0,
            described.y.0,
            preference.0,
            MOST as i32,
            found.as_mut_ptr(),
            &mut count,
        );
        // None is an answer.
        if status.result().is_err() {
            count = 0;
        }
        found
    };
    let works = found.iter().take(count as usize).filter(|found| found.state.result().is_ok());
    Ok(works.map(|found| Algorithm { algorithm: found.algo, workspace: found.workspaceSize }).collect())
}

/// Runs the matmul `of` and its epilogue on these operands; the result goes to `y`.
///
/// # Errors
/// Slices that are too short, a bias where there should be none, or none where there should be one, or what cuBLASLt does not
/// support.
pub(crate) fn run<T: DeviceRepr>(
    device: &CudaDevice,
    of: &Matmul,
    chosen: &Algorithm,
    x: &CudaView<'_, T>,
    weight: &CudaView<'_, T>,
    bias: Option<&CudaView<'_, T>>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let Matmul { dtype, rows, inner, columns, .. } = *of;
    let held = [x.len(), weight.len(), bias.map_or(0, CudaView::len), y.len()];
    let needed = [rows * inner, columns * inner, if of.bias { columns } else { 0 }, rows * columns];
    let fit = size_of::<T>() == dtype.size_in_bytes() && of.bias == bias.is_some();
    if !fit || held.iter().zip(&needed).any(|(held, needed)| held < needed) {
        bail!("operands of {held:?} elements of {} bytes where {needed:?} of {dtype:?} are needed", size_of::<T>())
    }
    let stream = device.cuda_stream();
    let [x, weight] = [x, weight].map(|operand| kernels::address(operand, device));
    let bias = bias.map_or(0, |bias| kernels::address(bias, device));
    let y = y.device_ptr(&stream).0;
    let described = Described::new(of, bias)?;
    let bytes = chosen.workspace;
    let workspace = (bytes > 0).then(|| kernels::uninit::<u8>(device, bytes)).transpose()?;
    let scratch = workspace.as_ref().map_or(0, |workspace| workspace.device_ptr(&stream).0);
    let (one, zero) = (1f32, 0f32);
    // SAFETY: the operands are of the dtype and the sizes that `described` tells, which were held against the slices above;
    // these outlive the call. The workspace is as large as the algorithm asks, and freed in the order of the stream.
    unsafe {
        result::matmul(
            handle(device)?,
            described.operation.0,
            (&raw const one).cast(),
            (&raw const zero).cast(),
            weight as *const c_void,
            described.weight.0,
            x as *const c_void,
            described.x.0,
            y as *const c_void,
            described.y.0,
            y as *mut c_void,
            described.y.0,
            &chosen.algorithm,
            scratch as *mut c_void,
            bytes,
            stream.cu_stream().cast(),
        )
    }
    .map_err(Error::wrap)
}
