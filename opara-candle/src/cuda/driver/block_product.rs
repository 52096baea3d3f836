//! candle's product of many rows with a weight of GGUF's blocks, which reads the blocks where they lie. candle has it for its own copies of
//! weights alone.

use std::ffi::c_void;
use std::ptr::null;

use candle::cuda_backend::WrapErr;
use candle::quantized::GgmlDType;
use candle::{bail, CpuStorage, CudaStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};
use candle_kernels::ffi;
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use cudarc::driver::DevicePtr;

use crate::gradient::applied2;

/// Rounds rows: they, ids, the rounded ones, the type, columns, three strides, four dimensions of the result, stream.
type Round = unsafe extern "C" fn(
    *const c_void,
    *const i32,
    *mut c_void,
    i32,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    *mut c_void,
);

/// Multiplies them: room for partial sums, blocks, rounded rows, result, columns, rows of the weight, rows, blocks in a row of the weight,
/// elements in a row of the result, compute capability, multiprocessors, shared memory of a block, threads of a warp, stream.
type Multiply = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    i64,
    i64,
    i64,
    i64,
    i64,
    i32,
    i32,
    i64,
    i32,
    *mut c_void,
);

fn kernels(dtype: GgmlDType) -> Option<(Round, Multiply)> {
    use GgmlDType::*;
    let kernels: (Round, Multiply) = match dtype {
        Q4_0 => (ffi::launch_mmq_quantize_q8_1_DS4, ffi::launch_mmq_gguf_q4_0),
        Q4_1 => (ffi::launch_mmq_quantize_q8_1_DS4, ffi::launch_mmq_gguf_q4_1),
        Q5_0 => (ffi::launch_mmq_quantize_q8_1_D4, ffi::launch_mmq_gguf_q5_0),
        Q5_1 => (ffi::launch_mmq_quantize_q8_1_DS4, ffi::launch_mmq_gguf_q5_1),
        Q8_0 => (ffi::launch_mmq_quantize_q8_1_D4, ffi::launch_mmq_gguf_q8_0),
        Q2K => (ffi::launch_mmq_quantize_q8_1_D2S6, ffi::launch_mmq_gguf_q2_k),
        Q3K => (ffi::launch_mmq_quantize_q8_1_D4, ffi::launch_mmq_gguf_q3_k),
        Q4K => (ffi::launch_mmq_quantize_q8_1_DS4, ffi::launch_mmq_gguf_q4_k),
        Q5K => (ffi::launch_mmq_quantize_q8_1_DS4, ffi::launch_mmq_gguf_q5_k),
        Q6K => (ffi::launch_mmq_quantize_q8_1_D4, ffi::launch_mmq_gguf_q6_k),
        _ => return None,
    };
    Some(kernels)
}

/// Columns that a tile of the weight has: with a multiple of these, nothing behind the last row is read.
const TILE: usize = 256;

/// The rows of `x`, `(rows, columns)` in f32, rounded to 8 bits, times the blocks `(out, bytes of a row)` of a weight, as candle computes more
/// than eight rows. `None` where candle has no such kernel, or one that reads beyond the weight.
///
/// # Errors
/// Shapes that do not go together; no memory left.
pub(crate) fn block_product(x: &Tensor, blocks: &Tensor, dtype: GgmlDType) -> Result<Option<Tensor>> {
    let ((_, columns), (_, bytes)) = (x.dims2()?, blocks.dims2()?);
    if columns / dtype.block_size() * dtype.type_size() != bytes {
        bail!("rows of {columns} elements do not go together with rows of {bytes} bytes in {dtype:?}")
    }
    // Kernels read four numbers, and as many bytes, at a time.
    let is_aligned = |of: &Tensor| (of.layout().start_offset() * of.dtype().size_in_bytes()).is_multiple_of(16);
    let (x, blocks) = (x.contiguous()?, blocks.contiguous()?);
    let are_taken = x.dtype() == DType::F32 && blocks.dtype() == DType::U8 && is_aligned(&x) && is_aligned(&blocks);
    if !are_taken || !x.device().is_cuda() || !columns.is_multiple_of(TILE) || columns == 0 {
        return Ok(None);
    }
    let Some((round, multiply)) = kernels(dtype) else { return Ok(None) };
    applied2(&x, &blocks, &BlockProduct { dtype, round, multiply }).map(Some)
}

struct BlockProduct {
    dtype: GgmlDType,
    round: Round,
    multiply: Multiply,
}

impl CustomOp2 for BlockProduct {
    fn name(&self) -> &'static str {
        "block_product"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("this operator needs tensors on a GPU")
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        of_x: &Layout,
        blocks: &CudaStorage,
        of_blocks: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        /// Bytes of 128 rounded elements, and to how many of them rows are filled up.
        const ROUNDED: usize = 144;
        const FILLED: usize = 512;
        /// Rows and columns of a tile of the result, at most.
        const MOST: usize = 128;
        let ((rows, columns), (out, _)) = (of_x.shape().dims2()?, of_blocks.shape().dims2()?);
        let (device, stream) = (&x.device, x.device.cuda_stream());
        let context = stream.context();
        let (major, minor) = context.compute_capability().w()?;
        let processors = context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).w()?;
        let shared = context.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).w()?;
        let filled = columns.next_multiple_of(FILLED);
        let x = x.as_cuda_slice::<f32>()?;
        let x = x.slice(of_x.start_offset()..of_x.start_offset() + rows * columns);
        let blocks = blocks.as_cuda_slice::<u8>()?.slice(of_blocks.start_offset()..);
        // SAFETY: any bytes are numbers of these types. The first kernel writes all rounded rows, and the second one reads others behind
        // them, whose products it leaves out; it writes all of the result, and reads of the partial sums what it has written.
        let (rounded, sums, y) = unsafe {
            (
                device.alloc::<u8>((rows * filled / MOST + MOST) * ROUNDED)?,
                device.alloc::<f32>(processors as usize * MOST * MOST)?,
                device.alloc::<f32>(rows * out)?,
            )
        };
        let ((x, _x), (blocks, _blocks)) = (x.device_ptr(&stream), blocks.device_ptr(&stream));
        let ((rounded, _rounded), (sums, _sums)) = (rounded.device_ptr(&stream), sums.device_ptr(&stream));
        let (to, guard) = y.device_ptr(&stream);
        let launched_on = stream.cu_stream().cast::<c_void>();
        let [n_rows, n_columns, n_out, n_filled] = [rows, columns, out, filled].map(|n| n as i64);
        // SAFETY: the pointers are of this device, of the lengths that candle gives these kernels, and live until the work behind these launches
        // frees them, in the stream's order. Rows and blocks are contiguous, aligned, and of whole tiles, as `block_product` asks.
        unsafe {
            (self.round)(
                x as *const c_void,
                null(),
                rounded as *mut c_void,
                0,
                n_columns,
                n_columns,
                0,
                0,
                n_filled,
                n_rows,
                1,
                1,
                launched_on,
            );
            (self.multiply)(
                sums as *mut c_void,
                blocks as *const c_void,
                rounded as *const c_void,
                to as *mut c_void,
                n_columns,
                n_out,
                n_rows,
                (columns / self.dtype.block_size()) as i64,
                n_out,
                major * 100 + minor * 10,
                processors,
                shared.into(),
                32,
                launched_on,
            );
        }
        drop(guard);
        Ok((CudaStorage::wrap_cuda_slice(y, device.clone()), (rows, out).into()))
    }
}
