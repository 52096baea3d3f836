//! What cuDNN's heuristics say, kept for a pass of building. candle asks them at every call of a convolution, and runs a grouped one as
//! one convolution a group: an answer takes up to a millisecond, which is most of such a pass.
//!
//! An answer depends on the handle and on what the descriptors say. Outside of such passes the library is always asked, and for
//! convolutions of other than two dimensions or of other types than floats.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::hash::Hash;

use cudarc::cudnn::sys::{
    self, cudnnConvolutionDescriptor_t, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t,
    cudnnConvolutionMode_t, cudnnDataType_t, cudnnFilterDescriptor_t, cudnnHandle_t, cudnnMathType_t, cudnnStatus_t,
    cudnnTensorDescriptor_t, cudnnTensorFormat_t,
};
use hashbrown::HashMap;

use super::watch::pass;

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
    /// The pass that the answers are of.
    static PASS: Cell<u64> = const { Cell::new(0) };
    /// The algorithms for a convolution, of so many that were asked for.
    static ALGORITHMS: Answers<(Convolution, c_int), Vec<cudnnConvolutionFwdAlgoPerf_t>> = RefCell::default();
    /// The workspace of an algorithm for a convolution.
    static WORKSPACES: Answers<(Convolution, c_int), usize> = RefCell::default();
}

/// Forgets the answers of an earlier pass.
fn begin(pass: u64) {
    if PASS.replace(pass) != pass {
        ALGORITHMS.with_borrow_mut(HashMap::clear);
        WORKSPACES.with_borrow_mut(HashMap::clear);
    }
}

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
    answers.borrow_mut().insert(key, answer.clone());
    Ok(answer)
}

/// What an answer depends on; `None` outside of passes of building, and for what [`described`] does not tell apart.
///
/// # Safety
/// The descriptors must exist.
unsafe fn convolution(
    handle: cudnnHandle_t,
    tensors: [cudnnTensorDescriptor_t; 2],
    weight: cudnnFilterDescriptor_t,
    of: cudnnConvolutionDescriptor_t,
) -> Option<Convolution> {
    begin(pass()?);
    // SAFETY: the caller vouches for the descriptors.
    let described = unsafe { described(tensors, weight, of) }?;
    Some(Convolution { handle: handle as usize, described })
}

/// What the descriptors of a convolution of images of floats say; `None` of any other one, such as of volumes. The library's functions for
/// four dimensions do not refuse five: they leave the last one out.
///
/// # Safety
/// The descriptors must exist.
pub(crate) unsafe fn described(
    [x, y]: [cudnnTensorDescriptor_t; 2],
    weight: cudnnFilterDescriptor_t,
    convolution: cudnnConvolutionDescriptor_t,
) -> Option<Vec<c_int>> {
    use cudnnDataType_t::{CUDNN_DATA_BFLOAT16, CUDNN_DATA_DOUBLE, CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_INT8};
    /// Dimensions that tensors and filters are asked for: the most that there are.
    const MOST: usize = 8;
    let [mut of_x, mut of_y, mut of_weight, mut sums] = [CUDNN_DATA_INT8; 4];
    let mut ranks = [0; 4];
    let [x_rank, y_rank, weight_rank, window_rank] = ranks.each_mut();
    let (mut on_x, mut on_y, mut on_weight) = ([[0; MOST]; 2], [[0; MOST]; 2], [0; MOST]);
    let mut window = [[0; 2]; 3];
    let [padding, stride, dilation] = window.each_mut().map(|on| on.as_mut_ptr());
    let (mut format, mut mode) = (cudnnTensorFormat_t::CUDNN_TENSOR_NCHW, cudnnConvolutionMode_t::CUDNN_CONVOLUTION);
    let (mut groups, mut math) = (0, cudnnMathType_t::CUDNN_DEFAULT_MATH);
    let most = MOST as c_int;
    let tensor = |of, kind: &mut cudnnDataType_t, rank: &mut c_int, on: &mut [[c_int; MOST]; 2]| {
        let [dims, strides] = on.each_mut().map(|on| on.as_mut_ptr());
        // SAFETY: the caller vouches for the descriptor, and the arrays have as many elements as are asked for.
        unsafe { sys::cudnnGetTensorNdDescriptor(of, most, kind, rank, dims, strides) }
    };
    let on = on_weight.as_mut_ptr();
    let said = [
        tensor(x, &mut of_x, x_rank, &mut on_x),
        tensor(y, &mut of_y, y_rank, &mut on_y),
        // SAFETY: as above.
        unsafe { sys::cudnnGetFilterNdDescriptor(weight, most, &mut of_weight, &mut format, weight_rank, on) },
        // SAFETY: as above; two dimensions are asked for.
        unsafe {
            let (mode, sums) = (&mut mode, &mut sums);
            sys::cudnnGetConvolutionNdDescriptor(convolution, 2, window_rank, padding, stride, dilation, mode, sums)
        },
        // SAFETY: as above.
        unsafe { sys::cudnnGetConvolutionGroupCount(convolution, &mut groups) },
        // SAFETY: as above.
        unsafe { sys::cudnnGetConvolutionMathType(convolution, &mut math) },
    ];
    let kinds = [of_x, of_y, of_weight, sums];
    let floats = [CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE];
    let are_floats = kinds.iter().all(|kind| floats.contains(kind));
    let others = [format as c_int, mode as c_int, groups, math as c_int];
    let kinds = kinds.map(|kind| kind as c_int);
    let all = [&kinds[..], &others, on_x.as_flattened(), on_y.as_flattened(), &on_weight, window.as_flattened()];
    (said == [SUCCESS; 6] && ranks == [4, 4, 4, 2] && are_floats).then(|| all.concat())
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

    type Descriptors = ([cudnnTensorDescriptor_t; 2], cudnnFilterDescriptor_t, cudnnConvolutionDescriptor_t);

    const FLOAT: cudnnDataType_t = cudnnDataType_t::CUDNN_DATA_FLOAT;
    const FORMAT: cudnnTensorFormat_t = cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
    const MODE: cudnnConvolutionMode_t = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;

    /// Descriptors of two tensors, a weight and a convolution, that say nothing yet.
    fn empty() -> Descriptors {
        let mut tensors = [std::ptr::null_mut(); 2];
        let (mut weight, mut convolution) = (std::ptr::null_mut(), std::ptr::null_mut());
        let [x, y] = tensors.each_mut();
        // SAFETY: each pointer receives a descriptor.
        let created = unsafe {
            [
                sys::cudnnCreateTensorDescriptor(x),
                sys::cudnnCreateTensorDescriptor(y),
                sys::cudnnCreateFilterDescriptor(&mut weight),
                sys::cudnnCreateConvolutionDescriptor(&mut convolution),
            ]
        };
        assert_eq!(created, [SUCCESS; 4]);
        (tensors, weight, convolution)
    }

    /// A convolution of images, as candle describes it.
    fn of_images([rows, columns]: [c_int; 2]) -> Descriptors {
        let (tensors, weight, of) = empty();
        // SAFETY: the descriptors exist.
        let set = unsafe {
            let tensor = |at: usize| sys::cudnnSetTensor4dDescriptorEx(tensors[at], FLOAT, 1, 16, 8, 8, 1024, 64, 8, 1);
            [
                tensor(0),
                tensor(1),
                sys::cudnnSetFilter4dDescriptor(weight, FLOAT, FORMAT, 16, 16, rows, columns),
                sys::cudnnSetConvolution2dDescriptor(of, rows / 2, columns / 2, 1, 1, 1, 1, MODE, FLOAT),
            ]
        };
        assert_eq!(set, [SUCCESS; 4]);
        (tensors, weight, of)
    }

    /// A convolution of volumes along two of their dimensions.
    fn of_volumes() -> Descriptors {
        let (tensors, weight, of) = empty();
        let (dims, strides, kernel) = ([1, 16, 8, 8, 8], [8192, 512, 64, 8, 1], [16, 16, 3, 3, 1]);
        let (padding, ones) = ([1, 1, 0], [1; 3]);
        // SAFETY: the descriptors exist, and the arrays have as many elements as are named.
        let set = unsafe {
            let tensor =
                |at: usize| sys::cudnnSetTensorNdDescriptor(tensors[at], FLOAT, 5, dims.as_ptr(), strides.as_ptr());
            let (padding, ones) = (padding.as_ptr(), ones.as_ptr());
            [
                tensor(0),
                tensor(1),
                sys::cudnnSetFilterNdDescriptor(weight, FLOAT, FORMAT, 5, kernel.as_ptr()),
                sys::cudnnSetConvolutionNdDescriptor(of, 3, padding, ones, ones, MODE, FLOAT),
            ]
        };
        assert_eq!(set, [SUCCESS; 4]);
        (tensors, weight, of)
    }

    #[test]
    fn convolutions_of_images_are_told_apart_and_from_others() {
        // SAFETY: the descriptors exist.
        let told = |(tensors, weight, of)| unsafe { described(tensors, weight, of) };
        let images = [[3, 3], [5, 5], [3, 5]].map(|window| told(of_images(window)).expect("it is of images of floats"));
        assert!(images[0] != images[1] && images[1] != images[2] && images[0] != images[2]);
        assert_eq!(told(of_images([3, 3])).as_ref(), Some(&images[0]), "other descriptors of the same");
        assert_eq!(told(of_volumes()), None);
    }

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
