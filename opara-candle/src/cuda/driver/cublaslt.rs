//! Matmuls with bias and activation, by cuBLASLt.

use std::ffi::c_void;
use std::mem::size_of_val;

use candle::{bail, CudaDevice, DType, Error, Result};
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32};
use cudarc::cublaslt::sys::cublasLtEpilogue_t::{
    CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS,
};
use cudarc::driver::{CudaSlice, CudaView, DevicePtr, DeviceRepr};
use hashbrown::HashMap;
use opara_plan::rewrite::ProductPrecision;
use parking_lot::Mutex;

use super::kernels;
use super::matmul::{Matmul, ProductSum};
use crate::activation::Activation;
use opara_plan::memory::WORKSPACE_LIMIT;

/// An algorithm of cuBLASLt, and the bytes of workspace that it needs.
#[derive(Clone, Copy)]
pub(crate) struct Algorithm {
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Algorithm {
    /// What tells it from others: cuBLASLt keeps the same bytes from process to process.
    pub fn name(&self) -> String {
        let words: Vec<String> = self.algorithm.data.iter().map(|word| format!("{word:016x}")).collect();
        format!("{}, {} bytes", words.join(" "), self.workspace)
    }
}

/// cuBLASLt's version.
pub(super) fn version() -> usize {
    // SAFETY: the call takes no argument and only returns a number.
    unsafe { sys::cublasLtGetVersion() }
}

/// Can cuBLASLt apply this activation in the same call?
pub(crate) fn knows(activation: Activation) -> bool {
    matches!(activation, Activation::None | Activation::Relu)
}

/// An object of cuBLASLt with the function that destroys it.
struct Owned<T: Copy>(T, unsafe fn(T) -> std::result::Result<(), CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: every `Owned` below pairs an object with its own destroy function, and nothing else destroys the
        // object.
        if let Err(error) = unsafe { self.1(self.0) } {
            tracing::warn!("cuBLASLt: {error}");
        }
    }
}

/// The cuBLASLt handle of a device.
fn handle(device: &CudaDevice) -> Result<sys::cublasLtHandle_t> {
    /// Never destroyed: there is one per device.
    struct Handle(sys::cublasLtHandle_t);
    // SAFETY: cuBLASLt allows concurrent calls with one handle.
    unsafe impl Send for Handle {}
    static HANDLES: Mutex<Option<HashMap<usize, Handle>>> = Mutex::new(None);
    let stream = device.cuda_stream();
    let context = stream.context();
    let mut handles = HANDLES.lock();
    let handles = handles.get_or_insert_default();
    if let Some(Handle(handle)) = handles.get(&context.ordinal()) {
        return Ok(*handle);
    }
    // A handle belongs to the context that is current when it is created.
    context.bind_to_thread().map_err(Error::wrap)?;
    let handle = result::create_handle().map_err(Error::wrap)?;
    Ok(handles.entry(context.ordinal()).or_insert(Handle(handle)).0)
}

/// The cuBLASLt descriptors of a matmul. cuBLASLt is column-major: there, `y` is the weight times `x`.
struct Descriptors {
    operation: Owned<sys::cublasLtMatmulDesc_t>,
    weight: Owned<sys::cublasLtMatrixLayout_t>,
    x: Owned<sys::cublasLtMatrixLayout_t>,
    y: Owned<sys::cublasLtMatrixLayout_t>,
}

impl Descriptors {
    /// `bias` is the bias's device address. It matters only for running, not for the heuristic.
    fn new(of: &Matmul, bias: u64) -> Result<Self> {
        let sums = match (of.dtype, of.precision) {
            (DType::F32, ProductPrecision::Fastest) => CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => CUBLAS_COMPUTE_32F,
        };
        let epilogue = match (of.bias, of.activation) {
            (false, Activation::None) => CUBLASLT_EPILOGUE_DEFAULT,
            (false, Activation::Relu) => CUBLASLT_EPILOGUE_RELU,
            (true, Activation::None) => CUBLASLT_EPILOGUE_BIAS,
            (true, Activation::Relu) => CUBLASLT_EPILOGUE_RELU_BIAS,
            (_, activation) => bail!("cuBLASLt cannot fuse {activation:?} into a matmul"),
        };
        let operation = operation(sums, epilogue, [true, false], of.bias.then_some(bias))?;
        let layout = |rows, columns| layout(of.dtype, rows, columns);
        let (weight, x) = (layout(of.inner, of.columns)?, layout(of.inner, of.rows)?);
        Ok(Self { operation, weight, x, y: layout(of.columns, of.rows)? })
    }

    /// The same with a summand.
    fn of_sum(of: &ProductSum, bias: u64) -> Result<Self> {
        let epilogue = if of.has_bias { CUBLASLT_EPILOGUE_BIAS } else { CUBLASLT_EPILOGUE_DEFAULT };
        let are_turned = [of.is_by_rows, of.is_turned];
        let operation = operation(CUBLAS_COMPUTE_32F, epilogue, are_turned, of.has_bias.then_some(bias))?;
        let layout = |rows, columns| layout(of.dtype, rows, columns);
        let weight = if of.is_by_rows { layout(of.inner, of.columns)? } else { layout(of.columns, of.inner)? };
        let x = if of.is_turned { layout(of.rows, of.inner)? } else { layout(of.inner, of.rows)? };
        Ok(Self { operation, weight, x, y: layout(of.columns, of.rows)? })
    }
}

/// Which of the two operands are turned is said in the order in which cuBLASLt has them: the weight first.
fn operation(
    sums: sys::cublasComputeType_t,
    epilogue: sys::cublasLtEpilogue_t,
    are_turned: [bool; 2],
    bias: Option<u64>,
) -> Result<Owned<sys::cublasLtMatmulDesc_t>> {
    use sys::cublasLtMatmulDescAttributes_t::{
        CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_TRANSA,
        CUBLASLT_MATMUL_DESC_TRANSB,
    };
    let operation = result::create_matmul_desc(sums, sys::cudaDataType_t::CUDA_R_32F).map_err(Error::wrap)?;
    let operation = Owned(operation, result::destroy_matmul_desc);
    // SAFETY: each value has the type that cuBLASLt declares for its attribute.
    unsafe {
        for (is_turned, which) in are_turned.into_iter().zip([CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB])
        {
            if is_turned {
                operation.set(which, &cublasOperation_t::CUBLAS_OP_T)?;
            }
        }
        operation.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            operation.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
    }
    Ok(operation)
}

/// The layout of a dense matrix in column-major order.
fn layout(dtype: DType, rows: usize, columns: usize) -> Result<Owned<sys::cublasLtMatrixLayout_t>> {
    use sys::cudaDataType_t::{CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
    let elements = match dtype {
        DType::F32 => CUDA_R_32F,
        DType::F16 => CUDA_R_16F,
        DType::BF16 => CUDA_R_16BF,
        dtype => bail!("cuBLASLt has no matmul of {dtype:?}"),
    };
    let layout = result::create_matrix_layout(elements, rows as u64, columns as u64, rows as i64);
    Ok(Owned(layout.map_err(Error::wrap)?, result::destroy_matrix_layout))
}

impl Owned<sys::cublasLtMatmulDesc_t> {
    /// # Safety
    /// The attribute must be declared as `T`.
    unsafe fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let at: *const T = value;
        // SAFETY: the descriptor is alive, and the value has the attribute's type by the caller's promise.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, at.cast(), size_of_val(value)) }
            .map_err(Error::wrap)
    }
}

impl Owned<sys::cublasLtMatmulPreference_t> {
    /// # Safety
    /// The attribute must be declared as `T`.
    unsafe fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let at: *const T = value;
        // SAFETY: the preference is alive, and the value has the attribute's type by the caller's promise.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, at.cast(), size_of_val(value)) }
            .map_err(Error::wrap)
    }
}

/// Required alignment of all operands, in bytes.
const ALIGNMENT: u32 = 16;

/// The schemes that may reduce the partial sums of a K-split. For 16-bit types only the one that reduces in the compute
/// type: partial sums in the result type may overflow where the result does not.
fn reductions(dtype: DType) -> u32 {
    use sys::cublasLtReductionScheme_t::{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_MASK};
    let all = dtype == DType::F32;
    (if all { CUBLASLT_REDUCTION_SCHEME_MASK } else { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE }) as u32
}

/// Is an operand's address aligned as cuBLASLt needs? Results are, since they are allocations of their own.
#[cfg(feature = "cudnn")]
pub(crate) fn is_aligned(address: u64) -> bool {
    address.is_multiple_of(u64::from(ALIGNMENT))
}

/// The algorithms that cuBLASLt's heuristic proposes, best first: so many at most, and never more than eight.
pub(crate) fn algorithms(device: &CudaDevice, of: &Matmul, most: usize) -> Result<Vec<Algorithm>> {
    proposed(device, &Descriptors::new(of, 0)?, of.dtype, most)
}

/// The same for a product that begins with a summand.
pub(crate) fn algorithms_of_sum(device: &CudaDevice, of: &ProductSum, most: usize) -> Result<Vec<Algorithm>> {
    proposed(device, &Descriptors::of_sum(of, 0)?, of.dtype, most)
}

/// The algorithm for products of any of these sizes; `None` if it is none for one of them.
pub(crate) fn for_all(device: &CudaDevice, algorithm: &Algorithm, of: &[Matmul]) -> Result<Option<Algorithm>> {
    let mut workspace = 0;
    for of in of {
        let of = Descriptors::new(of, 0)?;
        // SAFETY: all-zero results are valid, and all arguments are alive.
        let (status, found) = unsafe {
            let mut found = std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>();
            let status = sys::cublasLtMatmulAlgoCheck(
                handle(device)?,
                of.operation.0,
                of.weight.0,
                of.x.0,
                of.y.0,
                of.y.0,
                &algorithm.algorithm,
                &mut found,
            );
            (status, found)
        };
        if status.result().is_err() || found.state.result().is_err() || found.workspaceSize as u64 > WORKSPACE_LIMIT {
            return Ok(None);
        }
        workspace = workspace.max(found.workspaceSize);
    }
    Ok(Some(Algorithm { workspace, ..*algorithm }))
}

fn proposed(device: &CudaDevice, of: &Descriptors, dtype: DType, most: usize) -> Result<Vec<Algorithm>> {
    use sys::cublasLtMatmulPreferenceAttributes_t::*;
    const MAX: usize = 8;
    let preference = result::create_matmul_pref().map_err(Error::wrap)?;
    let preference = Owned(preference, result::destroy_matmul_pref);
    let mut count = 0;
    // SAFETY: cuBLASLt declares the first attribute as a 64-bit integer and the others as 32-bit ones. All-zero results
    // are valid. All arguments are alive, and the array holds as many results as are requested.
    let found = unsafe {
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_LIMIT)?;
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions(dtype))?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &ALIGNMENT)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &ALIGNMENT)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &ALIGNMENT)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &ALIGNMENT)?;
        let mut found = [std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); MAX];
        let status = sys::cublasLtMatmulAlgoGetHeuristic(
            handle(device)?,
            of.operation.0,
            of.weight.0,
            of.x.0,
            of.y.0,
            of.y.0,
            preference.0,
            most.min(MAX) as i32,
            found.as_mut_ptr(),
            &mut count,
        );
        // An error means that there is no algorithm.
        if status.result().is_err() {
            count = 0;
        }
        found
    };
    let works = found.iter().take(count as usize).filter(|found| found.state.result().is_ok());
    Ok(works.map(|found| Algorithm { algorithm: found.algo, workspace: found.workspaceSize }).collect())
}

/// The matmul `of` the operands with bias and activation, into `y`.
///
/// # Errors
/// Slices that are too short, a bias that does not match the description, or a matmul that cuBLASLt does not support.
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
        bail!("operands have {held:?} elements of {} bytes, but need {needed:?} of {dtype:?}", size_of::<T>())
    }
    let [x, weight] = [x, weight].map(|operand| kernels::address(operand, device));
    let bias = bias.map_or(0, |bias| kernels::address(bias, device));
    let y = y.device_ptr(&device.cuda_stream()).0;
    // SAFETY: dtype and sizes of the operands match the descriptors; they were checked above against the slices, which outlive the call.
    unsafe { multiply(device, &Descriptors::new(of, bias)?, chosen, [weight, x], 1., None, y) }
}

/// The operands of a product that may begin with a summand.
pub(crate) struct Sum<'a, T> {
    /// Of the product.
    pub factor: f32,
    pub x: &'a CudaView<'a, T>,
    pub weight: &'a CudaView<'a, T>,
    pub to: Option<&'a CudaView<'a, T>>,
    pub bias: Option<&'a CudaView<'a, T>>,
}

/// The product with its summand and its bias, into `y`.
///
/// # Errors
/// As of [`run`].
pub(crate) fn run_sum<T: DeviceRepr>(
    device: &CudaDevice,
    of: &ProductSum,
    chosen: &Algorithm,
    Sum { factor, x, weight, to, bias }: Sum<'_, T>,
    y: &mut CudaSlice<T>,
) -> Result<()> {
    let ProductSum { dtype, rows, inner, columns, has_bias, has_summand, .. } = *of;
    let held = [x.len(), weight.len(), to.map_or(0, CudaView::len), bias.map_or(0, CudaView::len), y.len()];
    let of_result = rows * columns;
    let of_summand = if has_summand { of_result } else { 0 };
    let needed = [rows * inner, columns * inner, of_summand, if has_bias { columns } else { 0 }, of_result];
    let fit = size_of::<T>() == dtype.size_in_bytes() && has_bias == bias.is_some() && has_summand == to.is_some();
    if !fit || held.iter().zip(&needed).any(|(held, needed)| held < needed) {
        bail!("operands have {held:?} elements of {} bytes, but need {needed:?} of {dtype:?}", size_of::<T>())
    }
    let [x, weight] = [x, weight].map(|operand| kernels::address(operand, device));
    let to = to.map(|to| kernels::address(to, device));
    let bias = bias.map_or(0, |bias| kernels::address(bias, device));
    let y = y.device_ptr(&device.cuda_stream()).0;
    // SAFETY: dtype and sizes of the operands match the descriptors; they were checked above against the slices, which outlive the call.
    unsafe { multiply(device, &Descriptors::of_sum(of, bias)?, chosen, [weight, x], factor, to, y) }
}

/// # Safety
/// At the addresses are matrices as the descriptors have them, until the call's work has ended, and a bias, if they have one. What is added
/// is a matrix like the result.
unsafe fn multiply(
    device: &CudaDevice,
    of: &Descriptors,
    chosen: &Algorithm,
    [weight, x]: [u64; 2],
    factor: f32,
    to: Option<u64>,
    y: u64,
) -> Result<()> {
    let (stream, bytes) = (device.cuda_stream(), chosen.workspace);
    // SAFETY: only cuBLASLt uses the workspace.
    let workspace = (bytes > 0).then(|| unsafe { device.alloc::<u8>(bytes) }).transpose()?;
    let scratch = workspace.as_ref().map_or(0, |workspace| workspace.device_ptr(&stream).0);
    let times = if to.is_some() { 1f32 } else { 0. };
    // SAFETY: the operands are as the descriptors have them by the caller's promise. The workspace is as large as the algorithm needs, and
    // is freed in stream order.
    unsafe {
        result::matmul(
            handle(device)?,
            of.operation.0,
            (&raw const factor).cast(),
            (&raw const times).cast(),
            weight as *const c_void,
            of.weight.0,
            x as *const c_void,
            of.x.0,
            to.unwrap_or(y) as *const c_void,
            of.y.0,
            y as *mut c_void,
            of.y.0,
            &chosen.algorithm,
            scratch as *mut c_void,
            bytes,
            stream.cu_stream().cast(),
        )
    }
    .map_err(Error::wrap)
}
