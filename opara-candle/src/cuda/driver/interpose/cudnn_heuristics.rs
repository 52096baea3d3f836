//! What cuDNN's heuristics say, kept on threads that build. candle asks them at every call of a convolution, and runs a grouped one as
//! one convolution a group: an answer takes up to a millisecond, which is most of such a pass.
//!
//! An answer depends on the handle and on what the descriptors say. Other threads always ask the library.

use std::cell::RefCell;
use std::ffi::c_int;
use std::hash::Hash;

use cudarc::cudnn::sys::{
    self, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t,
    cudnnConvolutionMode_t, cudnnDataType_t, cudnnFilterDescriptor_t, cudnnHandle_t, cudnnMathType_t, cudnnStatus_t,
    cudnnTensorDescriptor_t, cudnnTensorFormat_t,
};
use hashbrown::HashMap;

use super::written_memory::is_watched;

const MISSING: cudnnStatus_t = cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED;
const SUCCESS: cudnnStatus_t = cudnnStatus_t::CUDNN_STATUS_SUCCESS;

/// What an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Convolution {
    handle: usize,
    /// Types and dimensions of `x`, the weight, the convolution and `y`.
    described: Vec<c_int>,
}

type Answers<K, A> = RefCell<HashMap<K, A>>;

thread_local! {
    /// The algorithms for a convolution, of so many that were asked for.
    static ALGORITHMS: Answers<(Convolution, c_int), Vec<cudnnConvolutionFwdAlgoPerf_t>> = RefCell::default();
    /// The workspace of an algorithm for a convolution.
    static WORKSPACES: Answers<(Convolution, c_int), usize> = RefCell::default();
}

/// Answers that a thread keeps at most.
const MOST: usize = 1 << 12;

/// The answer that is known, or a new one, which is kept if it is `Ok`.
fn kept<K: Hash + Eq, A: Clone, E>(
    answers: &Answers<K, A>,
    key: Option<K>,
    ask: impl FnOnce() -> Result<A, E>,
) -> Result<A, E> {
    let Some(key) = key else { return ask() };
    if let Some(known) = answers.borrow().get(&key) {
        return Ok(known.clone());
    }
    let answer = ask()?;
    let mut answers = answers.borrow_mut();
    if answers.len() >= MOST {
        answers.clear();
    }
    answers.insert(key, answer.clone());
    Ok(answer)
}

/// Forgets what a handle said on this thread: another one may have its address.
pub(super) fn forget(handle: cudnnHandle_t) {
    // Nothing is kept on a thread that ends.
    let _ = ALGORITHMS.try_with(|answers| answers.borrow_mut().retain(|(of, _), _| of.handle != handle as usize));
    let _ = WORKSPACES.try_with(|answers| answers.borrow_mut().retain(|(of, _), _| of.handle != handle as usize));
}

/// What descriptors say; `None` on threads that do not build, and for tensors that do not have four dimensions.
///
/// # Safety
/// The descriptors must exist.
unsafe fn convolution(
    handle: cudnnHandle_t,
    [x, y]: [cudnnTensorDescriptor_t; 2],
    weight: cudnnFilterDescriptor_t,
    convolution: cudnnConvolutionDescriptor_t,
) -> Option<Convolution> {
    if !is_watched() {
        return None;
    }
    let kind = cudnnDataType_t::CUDNN_DATA_DOUBLE;
    let [mut of_x, mut of_y, mut of_weight, mut sums] = [kind; 4];
    let [mut on_x, mut on_y] = [[0; 8]; 2];
    let (mut on_weight, mut format) = ([0; 4], cudnnTensorFormat_t::CUDNN_TENSOR_NCHW);
    let (mut window, mut mode, mut groups) = ([0; 6], cudnnConvolutionMode_t::CUDNN_CONVOLUTION, 0);
    let mut math = cudnnMathType_t::CUDNN_DEFAULT_MATH;
    let tensor = |descriptor, kind: &mut cudnnDataType_t, on: &mut [c_int; 8]| {
        let [n, c, h, w, of_n, of_c, of_h, of_w] = on.each_mut();
        // SAFETY: the caller vouches for the descriptor.
        unsafe { sys::cudnnGetTensor4dDescriptor(descriptor, kind, n, c, h, w, of_n, of_c, of_h, of_w) }
    };
    let [out, channels, rows, columns] = on_weight.each_mut();
    let [top, left, down, right, apart_h, apart_w] = window.each_mut();
    let said = [
        tensor(x, &mut of_x, &mut on_x),
        tensor(y, &mut of_y, &mut on_y),
        // SAFETY: the caller vouches for the descriptors.
        unsafe { sys::cudnnGetFilter4dDescriptor(weight, &mut of_weight, &mut format, out, channels, rows, columns) },
        // SAFETY: as above.
        unsafe {
            sys::cudnnGetConvolution2dDescriptor(
                convolution,
                top,
                left,
                down,
                right,
                apart_h,
                apart_w,
                &mut mode,
                &mut sums,
            )
        },
        // SAFETY: as above.
        unsafe { sys::cudnnGetConvolutionGroupCount(convolution, &mut groups) },
        // SAFETY: as above.
        unsafe { sys::cudnnGetConvolutionMathType(convolution, &mut math) },
    ];
    if said != [SUCCESS; 6] {
        return None;
    }
    let kinds = [of_x as c_int, of_y as c_int, of_weight as c_int, sums as c_int];
    let others = [format as c_int, mode as c_int, groups, math as c_int];
    let described = [&kinds[..], &others, &on_x, &on_y, &on_weight, &window].concat();
    Some(Convolution { handle: handle as usize, described })
}

super::interpose! {
    /// The algorithms for a convolution, the best first.
    fn cudnnGetConvolutionForwardAlgorithm_v7(
        handle: cudnnHandle_t, xof: cudnnTensorDescriptor_t, wof: cudnnFilterDescriptor_t,
        of: cudnnConvolutionDescriptor_t, yof: cudnnTensorDescriptor_t, asked: c_int, returned: *mut c_int,
        results: *mut cudnnConvolutionFwdAlgoPerf_t,
    ) -> cudnnStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors.
        let key = unsafe { convolution(handle, [xof, yof], wof, of) }.map(|of| (of, asked));
        let ask = || {
            // SAFETY: the arguments are the caller's.
            let status = unsafe { next(handle, xof, wof, of, yof, asked, returned, results) };
            if status != SUCCESS {
                return Err(status);
            }
            // SAFETY: the call succeeded, so it has written as many results as it says, and not more than were asked for.
            Ok(unsafe { std::slice::from_raw_parts(results, usize::try_from(*returned).unwrap_or(0)) }.to_vec())
        };
        match ALGORITHMS.try_with(|answers| kept(answers, key, ask)) {
            Ok(Ok(found)) => {
                // SAFETY: the caller's array has room for as many as were asked for, and these are not more.
                unsafe {
                    std::ptr::copy(found.as_ptr(), results, found.len());
                    *returned = found.len() as c_int;
                }
                SUCCESS
            }
            Ok(Err(status)) => status,
            // The thread ends.
            // SAFETY: the arguments are the caller's.
            Err(_) => unsafe { next(handle, xof, wof, of, yof, asked, returned, results) },
        }
    }
}

super::interpose! {
    /// The bytes of workspace that an algorithm needs.
    fn cudnnGetConvolutionForwardWorkspaceSize(
        handle: cudnnHandle_t, xof: cudnnTensorDescriptor_t, wof: cudnnFilterDescriptor_t,
        of: cudnnConvolutionDescriptor_t, yof: cudnnTensorDescriptor_t, algorithm: cudnnConvolutionFwdAlgo_t,
        bytes: *mut usize,
    ) -> cudnnStatus_t, missing MISSING;
    |next| {
        // SAFETY: the caller vouches for the descriptors.
        let key = unsafe { convolution(handle, [xof, yof], wof, of) }.map(|of| (of, algorithm as c_int));
        let ask = || {
            // SAFETY: the arguments are the caller's.
            match unsafe { next(handle, xof, wof, of, yof, algorithm, bytes) } {
                // SAFETY: a call that succeeds has written the size.
                SUCCESS => Ok(unsafe { *bytes }),
                status => Err(status),
            }
        };
        match WORKSPACES.try_with(|answers| kept(answers, key, ask)) {
            Ok(Ok(found)) => {
                // SAFETY: the caller's pointer receives a size.
                unsafe { *bytes = found };
                SUCCESS
            }
            Ok(Err(status)) => status,
            // The thread ends.
            // SAFETY: the arguments are the caller's.
            Err(_) => unsafe { next(handle, xof, wof, of, yof, algorithm, bytes) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_asked_for_once_unless_it_is_an_error() {
        let answers = Answers::default();
        assert_eq!(kept(&answers, Some(1), || Err::<u32, _>("failed")), Err("failed"));
        assert_eq!(kept(&answers, Some(1), || Ok::<_, &str>(7)), Ok(7));
        assert_eq!(kept(&answers, Some(1), || panic!("it is known")), Ok::<_, &str>(7));
        assert_eq!(kept(&answers, None, || Ok::<_, &str>(8)), Ok(8), "what is not told apart is asked for");
        assert_eq!(kept(&answers, Some(2), || Ok::<_, &str>(9)), Ok(9));
    }
}
