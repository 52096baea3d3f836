//! cuDNN. Each handle belongs to one thread. While a thread captures, its handles are on the private stream.
//!
//! Some of cuDNN's kernels run on streams that belong to the handle. Once a call is captured, these streams belong to the capture until it
//! ends, and the handle cannot run anything. So what is captured with the module's handle runs, if it does, with a second one, which the
//! private stream keeps.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::cudnn::sys::{
    self, cudaStream_t, cudnnActivationDescriptor_t, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgo_t,
    cudnnFilterDescriptor_t, cudnnHandle_t, cudnnStatus_t, cudnnTensorDescriptor_t,
};

use super::cudnn_handles::{edit, set_stream, stream_of};
use super::library_call::{Call, Computed, Meaning, Operand, Placed};
use super::noted::noted_beside;
use super::status::Status;
use super::thread_capture::{self, private_stream_for};
use opara_plan::trace::{Dim, Element, Function, Window};

const MISSING: cudnnStatus_t = cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED;

super::interpose! {
    /// Sets the stream of a handle; during a capture the private one.
    fn cudnnSetStream(handle: cudnnHandle_t, stream: cudaStream_t) -> cudnnStatus_t, missing MISSING, probed MISSING;
    |next| {
        edit(|handles| {
            handles.retain(|(known, _)| *known != handle);
            handles.push((handle, stream.cast()));
        });
        let Some(stream) = private_stream_for(stream.cast()) else { return cudnnStatus_t::REFUSED };
        // SAFETY: the arguments are the caller's, but for the stream, which is of the same context.
        unsafe { next(handle, stream.cast()) }
    }
}

// For tests: interposed only to inject failures (super::faults).
#[cfg(feature = "faults")]
super::interpose! {
    /// Creates a handle.
    fn cudnnCreate(handle: *mut cudnnHandle_t) -> cudnnStatus_t, missing MISSING;
    // SAFETY: the arguments are the caller's.
    |next| unsafe { next(handle) }
}

super::interpose! {
    /// Destroys a handle.
    fn cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t, missing MISSING;
    |next| {
        edit(|handles| handles.retain(|(known, _)| *known != handle));
        // SAFETY: the arguments are the caller's.
        unsafe { next(handle) }
    }
}

/// A new handle of the current context; null if none can be made. Unlike those of cuBLAS, it does not wait for the device.
fn new_handle() -> cudnnHandle_t {
    let mut handle = null_mut();
    // SAFETY: `handle` receives the handle.
    let status = unsafe { sys::cudnnCreate(&mut handle) };
    if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return handle;
    }
    tracing::warn!(?status, "a cuDNN handle could not be made");
    null_mut()
}

/// Makes a call. On a capturing thread it is captured with `handle`, and runs with the capture's, if captured work runs.
fn made(
    describe: impl FnOnce() -> Call,
    handle: cudnnHandle_t,
    call: impl Fn(cudnnHandle_t) -> cudnnStatus_t,
) -> cudnnStatus_t {
    if private_stream_for(stream_of(handle).cast()).is_none() {
        return cudnnStatus_t::REFUSED;
    }
    let beside = || {
        let found = thread_capture::with(|capture| {
            if capture.dnn.is_null() {
                capture.dnn = new_handle().cast();
            }
            (capture.dnn.cast(), capture.device())
        });
        let Some((own, device)) = found.filter(|(own, _): &(cudnnHandle_t, _)| !own.is_null()) else {
            thread_capture::refuses(|| "cuDNN makes no second handle for what is captured".into());
            return cudnnStatus_t::REFUSED;
        };
        // SAFETY: the capture's handle exists as long as the process, and this thread alone uses it.
        let status = unsafe { set_stream(own, device) };
        if status == cudnnStatus_t::CUDNN_STATUS_SUCCESS {
            thread_capture::outside(|| call(own))
        } else {
            status
        }
    };
    noted_beside(describe, || call(handle), beside)
}

/// Bytes of a tensor.
///
/// # Safety
/// The descriptor must exist.
unsafe fn tensor(descriptor: cudnnTensorDescriptor_t) -> u64 {
    let mut bytes = 0;
    // SAFETY: the caller vouches for the descriptor.
    unsafe { sys::cudnnGetTensorSizeInBytes(descriptor, &mut bytes) };
    bytes as u64
}

/// Bytes of a filter.
///
/// # Safety
/// The descriptor must exist.
unsafe fn filter(descriptor: cudnnFilterDescriptor_t) -> u64 {
    let mut bytes = 0;
    // SAFETY: the caller vouches for the descriptor.
    unsafe { sys::cudnnGetFilterSizeInBytes(descriptor, &mut bytes) };
    bytes as u64
}

/// Is this factor on the host 0?
///
/// # Safety
/// As for [`factor`].
unsafe fn is_zero(value: *const c_void, of: cudnnTensorDescriptor_t) -> bool {
    // SAFETY: the caller vouches for it.
    unsafe { factor(value, of) == 0. }
}

/// Is this factor on the host 1?
///
/// # Safety
/// As for [`factor`].
unsafe fn is_one(value: *const c_void, of: cudnnTensorDescriptor_t) -> bool {
    // SAFETY: the caller vouches for it.
    unsafe { factor(value, of) == 1. }
}

/// A factor on the host: an f64 for tensors of f64, else an f32.
///
/// # Safety
/// `value` must point to an f32, or an f64 if the tensor is of f64.
unsafe fn factor(value: *const c_void, of: cudnnTensorDescriptor_t) -> f64 {
    let (mut kind, mut count) = (sys::cudnnDataType_t::CUDNN_DATA_FLOAT, 0);
    let (mut sizes, mut strides) = ([0; 1], [0; 1]);
    // SAFETY: the caller vouches for both; one dimension is asked for and fits.
    unsafe {
        sys::cudnnGetTensorNdDescriptor(of, 1, &mut kind, &mut count, sizes.as_mut_ptr(), strides.as_mut_ptr());
        match kind {
            sys::cudnnDataType_t::CUDNN_DATA_DOUBLE => *value.cast::<f64>(),
            _ => (*value.cast::<f32>()).into(),
        }
    }
}

/// The elements of a tensor of four dimensions; `None` of a type that is not followed.
///
/// # Safety
/// The descriptor must exist.
unsafe fn placed(descriptor: cudnnTensorDescriptor_t, address: *const c_void) -> Option<Placed> {
    let mut kind = sys::cudnnDataType_t::CUDNN_DATA_DOUBLE;
    let (mut dims, mut strides) = ([0; 4], [0; 4]);
    let ([n, c, h, w], [of_n, of_c, of_h, of_w]) = (dims.each_mut(), strides.each_mut());
    // SAFETY: the caller vouches for the descriptor. Of one of more dimensions the library tells the first four.
    let status = unsafe { sys::cudnnGetTensor4dDescriptor(descriptor, &mut kind, n, c, h, w, of_n, of_c, of_h, of_w) };
    if status != cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return None;
    }
    let dim = |i: usize| Some(Dim { len: u64::try_from(dims[i]).ok()?, stride: u64::try_from(strides[i]).ok()? });
    let dims = (0..4).map(dim).collect::<Option<_>>()?;
    Some(Placed { address: address as u64, element: element(kind)?, dims })
}

fn element(of: sys::cudnnDataType_t) -> Option<Element> {
    match of {
        sys::cudnnDataType_t::CUDNN_DATA_FLOAT => Some(Element::F32),
        sys::cudnnDataType_t::CUDNN_DATA_DOUBLE => Some(Element::F64),
        sys::cudnnDataType_t::CUDNN_DATA_HALF => Some(Element::F16),
        sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16 => Some(Element::Bf16),
        _ => None,
    }
}

/// The convolution that a call computes; `None` if it mirrors its weight, or has operands in an unsupported layout.
///
/// # Safety
/// The descriptors must exist.
unsafe fn convolution_of(
    (xof, x): (cudnnTensorDescriptor_t, *const c_void),
    (wof, w): (cudnnFilterDescriptor_t, *const c_void),
    convolution: cudnnConvolutionDescriptor_t,
    (yof, y): (cudnnTensorDescriptor_t, *mut c_void),
) -> Option<Computed> {
    let mut kind = sys::cudnnDataType_t::CUDNN_DATA_DOUBLE;
    let mut format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
    let mut mode = sys::cudnnConvolutionMode_t::CUDNN_CONVOLUTION;
    let ([mut out, mut channels, mut rows, mut columns], mut groups) = ([0; 4], 0);
    let ([mut top, mut left], [mut down, mut right], [mut apart_h, mut apart_w]) = ([0; 2], [0; 2], [0; 2]);
    // SAFETY: the caller vouches for the descriptors.
    unsafe { super::cudnn_heuristics::described([xof, yof], wof, convolution) }?;
    // SAFETY: as above.
    let (known, x, y) = unsafe {
        let filter = sys::cudnnGetFilter4dDescriptor(
            wof,
            &mut kind,
            &mut format,
            &mut out,
            &mut channels,
            &mut rows,
            &mut columns,
        );
        let mut sums = kind;
        let of = sys::cudnnGetConvolution2dDescriptor(
            convolution,
            &mut top,
            &mut left,
            &mut down,
            &mut right,
            &mut apart_h,
            &mut apart_w,
            &mut mode,
            &mut sums,
        );
        let counted = sys::cudnnGetConvolutionGroupCount(convolution, &mut groups);
        let known = [filter, of, counted].iter().all(|status| *status == cudnnStatus_t::CUDNN_STATUS_SUCCESS);
        (known, placed(xof, x)?, placed(yof, y)?)
    };
    let is_plain = format == sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW
        && mode == sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
    if !known || !is_plain || !opara_plan::trace::is_contiguous(&y.dims) {
        return None;
    }
    let number = |n: i32| u64::try_from(n).ok();
    let pair = |[a, b]: [i32; 2]| Some([number(a)?, number(b)?]);
    let elements = [out, channels, rows, columns].into_iter().try_fold(1u64, |all, n| all.checked_mul(number(n)?))?;
    let window = Window {
        kernel: pair([rows, columns])?,
        padding: pair([top, left])?,
        stride: pair([down, right])?,
        dilation: pair([apart_h, apart_w])?,
        groups: number(groups)?,
    };
    let weight = Placed { address: w as u64, element: element(kind)?, dims: vec![Dim { len: elements, stride: 1 }] };
    let y = Placed { dims: vec![Dim { len: y.dims.iter().map(|dim| dim.len).product(), stride: 1 }], ..y };
    Some(Computed { function: Function::Convolution(window), reads: vec![x, weight], writes: y })
}

super::interpose! {
    /// A convolution.
    fn cudnnConvolutionForward(
        handle: cudnnHandle_t, alpha: *const c_void, xof: cudnnTensorDescriptor_t, x: *const c_void,
        wof: cudnnFilterDescriptor_t, w: *const c_void, convolution: cudnnConvolutionDescriptor_t,
        algorithm: cudnnConvolutionFwdAlgo_t, workspace: *mut c_void, workspace_bytes: usize, beta: *const c_void,
        yof: cudnnTensorDescriptor_t, y: *mut c_void,
    ) -> cudnnStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors and factors.
        let describe = || unsafe {
            let result = if is_zero(beta, yof) { Operand::written } else { Operand::read_and_written };
            Call {
                name: "cudnnConvolutionForward",
                operands: Some(vec![
                    Operand::read(x as u64, tensor(xof)),
                    Operand::read(w as u64, filter(wof)),
                    Operand::read_and_written(workspace as u64, workspace_bytes as u64),
                    result(y as u64, tensor(yof)),
                ]),
                meaning: Meaning::Convolution { fused: false },
                computes: if is_one(alpha, yof) && is_zero(beta, yof) {
                    convolution_of((xof, x), (wof, w), convolution, (yof, y))
                } else {
                    None
                },
            }
        };
        // SAFETY: the arguments are the caller's.
        made(describe, handle, |handle| unsafe {
            next(
                handle, alpha, xof, x, wof, w, convolution, algorithm, workspace, workspace_bytes, beta, yof, y,
            )
        })
    }
}

super::interpose! {
    /// A convolution with a summand, a bias and an activation.
    fn cudnnConvolutionBiasActivationForward(
        handle: cudnnHandle_t, alpha: *const c_void, xof: cudnnTensorDescriptor_t, x: *const c_void,
        wof: cudnnFilterDescriptor_t, w: *const c_void, convolution: cudnnConvolutionDescriptor_t,
        algorithm: cudnnConvolutionFwdAlgo_t, workspace: *mut c_void, workspace_bytes: usize, beta: *const c_void,
        zof: cudnnTensorDescriptor_t, z: *const c_void, bof: cudnnTensorDescriptor_t, b: *const c_void,
        activation: cudnnActivationDescriptor_t, yof: cudnnTensorDescriptor_t, y: *mut c_void,
    ) -> cudnnStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors and factors.
        let describe = || unsafe {
            let mut operands = vec![
                Operand::read(x as u64, tensor(xof)),
                Operand::read(w as u64, filter(wof)),
                Operand::read(b as u64, tensor(bof)),
                Operand::read_and_written(workspace as u64, workspace_bytes as u64),
                Operand::written(y as u64, tensor(yof)),
            ];
            operands.extend((!is_zero(beta, zof)).then(|| Operand::read(z as u64, tensor(zof))));
            Call {
                name: "cudnnConvolutionBiasActivationForward",
                operands: Some(operands),
                meaning: Meaning::Convolution { fused: true },
                computes: None,
            }
        };
        // SAFETY: the arguments are the caller's.
        made(describe, handle, |handle| unsafe {
            next(
                handle, alpha, xof, x, wof, w, convolution, algorithm, workspace, workspace_bytes, beta, zof, z, bof, b,
                activation, yof, y,
            )
        })
    }
}

/// A call that computes a gradient of two operands.
fn of_gradient(
    name: &'static str,
    [a, b]: [Operand; 2],
    (workspace, workspace_bytes): (*mut c_void, usize),
    result: Operand,
) -> Call {
    let workspace = Operand::read_and_written(workspace as u64, workspace_bytes as u64);
    Call { name, operands: Some(vec![a, b, workspace, result]), meaning: Meaning::Other, computes: None }
}

super::interpose! {
    /// The gradient of a convolution's operand.
    fn cudnnConvolutionBackwardData(
        handle: cudnnHandle_t, alpha: *const c_void, wof: cudnnFilterDescriptor_t, w: *const c_void,
        dyof: cudnnTensorDescriptor_t, dy: *const c_void, convolution: cudnnConvolutionDescriptor_t,
        algorithm: sys::cudnnConvolutionBwdDataAlgo_t, workspace: *mut c_void, workspace_bytes: usize,
        beta: *const c_void, dxof: cudnnTensorDescriptor_t, dx: *mut c_void,
    ) -> cudnnStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors and factors.
        let describe = || unsafe {
            let read = [Operand::read(w as u64, filter(wof)), Operand::read(dy as u64, tensor(dyof))];
            let result = if is_zero(beta, dxof) { Operand::written } else { Operand::read_and_written };
            let result = result(dx as u64, tensor(dxof));
            of_gradient("cudnnConvolutionBackwardData", read, (workspace, workspace_bytes), result)
        };
        // SAFETY: the arguments are the caller's.
        made(describe, handle, |handle| unsafe {
            next(
                handle, alpha, wof, w, dyof, dy, convolution, algorithm, workspace, workspace_bytes, beta, dxof, dx,
            )
        })
    }
}

super::interpose! {
    /// The gradient of a convolution's weight.
    fn cudnnConvolutionBackwardFilter(
        handle: cudnnHandle_t, alpha: *const c_void, xof: cudnnTensorDescriptor_t, x: *const c_void,
        dyof: cudnnTensorDescriptor_t, dy: *const c_void, convolution: cudnnConvolutionDescriptor_t,
        algorithm: sys::cudnnConvolutionBwdFilterAlgo_t, workspace: *mut c_void, workspace_bytes: usize,
        beta: *const c_void, dwof: cudnnFilterDescriptor_t, dw: *mut c_void,
    ) -> cudnnStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors and factors.
        let describe = || unsafe {
            let read = [Operand::read(x as u64, tensor(xof)), Operand::read(dy as u64, tensor(dyof))];
            // The factors have the type of the image.
            let result = if is_zero(beta, xof) { Operand::written } else { Operand::read_and_written };
            let result = result(dw as u64, filter(dwof));
            of_gradient("cudnnConvolutionBackwardFilter", read, (workspace, workspace_bytes), result)
        };
        // SAFETY: the arguments are the caller's.
        made(describe, handle, |handle| unsafe {
            next(
                handle, alpha, xof, x, dyof, dy, convolution, algorithm, workspace, workspace_bytes, beta, dwof, dw,
            )
        })
    }
}

/// Defines functions whose operands are not recorded.
macro_rules! others {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// A call whose operands are not recorded.
            fn $name(handle: cudnnHandle_t, $($argument: $type),*) -> cudnnStatus_t, missing MISSING;
            |next| {
                let call = || Call { name: stringify!($name), operands: None, meaning: Meaning::Other, computes: None };
                // SAFETY: the arguments are the caller's.
                made(call, handle, |handle| unsafe { next(handle, $($argument),*) })
            }
        }
    )*};
}

others! {
    fn cudnnActivationForward(
        activation: cudnnActivationDescriptor_t, alpha: *const c_void, xof: cudnnTensorDescriptor_t, x: *const c_void,
        beta: *const c_void, yof: cudnnTensorDescriptor_t, y: *mut c_void
    );
    fn cudnnPoolingForward(
        pooling: sys::cudnnPoolingDescriptor_t, alpha: *const c_void, xof: cudnnTensorDescriptor_t, x: *const c_void,
        beta: *const c_void, yof: cudnnTensorDescriptor_t, y: *mut c_void
    );
    fn cudnnSoftmaxForward(
        algorithm: sys::cudnnSoftmaxAlgorithm_t, mode: sys::cudnnSoftmaxMode_t, alpha: *const c_void,
        xof: cudnnTensorDescriptor_t, x: *const c_void, beta: *const c_void, yof: cudnnTensorDescriptor_t,
        y: *mut c_void
    );
    fn cudnnReduceTensor(
        reduction: sys::cudnnReduceTensorDescriptor_t, indices: *mut c_void, indices_bytes: usize,
        workspace: *mut c_void, workspace_bytes: usize, alpha: *const c_void, xof: cudnnTensorDescriptor_t,
        x: *const c_void, beta: *const c_void, yof: cudnnTensorDescriptor_t, y: *mut c_void
    );
    fn cudnnBackendExecute(plan: sys::cudnnBackendDescriptor_t, variant_pack: sys::cudnnBackendDescriptor_t);
}
