//! Pooling in one launch. Strided views are pooled without a copy.

use candle::cuda_backend::CudaDType;
use candle::{bail, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::kind::PoolKind;
use super::launch::{self, Sums, Windows};
use crate::cuda::driver::kernels::{blocks, ptx, written};
use crate::cuda::operator::format::Format;
use crate::cuda::operator::plane::Plane;
use crate::cuda::operator::{is_known, launched, takes, tensor_of, with_elements, Call, Kernel};
use crate::ops::format::is_channels_last;
use crate::ops::PoolConfig;

/// Pools `x` and keeps its memory layout. `None` for dtypes without a kernel.
pub(super) fn pool(x: &Tensor, kind: PoolKind, config: &PoolConfig) -> Result<Option<Tensor>> {
    run(x, config.output((x.dim(2)?, x.dim(3)?))?, Windows::new(kind, config))
}

/// Every `stride`-th row and column of `x` from `start` on, `to` rows and columns, with zeros outside `x`. `None` for
/// dtypes without a kernel.
pub(super) fn subsample(x: &Tensor, start: usize, stride: usize, to: (usize, usize)) -> Result<Option<Tensor>> {
    let (before, after) = (-(start as i32), (start + stride) as i32);
    // A mean over windows of one element, which lies in `x` or in the padding.
    let edges = [before, before, after, after];
    run(x, to, Windows { kind: PoolKind::Mean, kernel: 1, stride, edges, count_padding: true })
}

/// Sums of the planes of `x` times a factor. `None` for dtypes without a kernel, and for no elements.
pub(super) fn plane_sums(x: &Tensor, factor: f64) -> Result<Option<Tensor>> {
    let (batch, channels, h, w) = x.dims4()?;
    if !is_known(x.dtype()) || x.elem_count() == 0 {
        return Ok(None);
    }
    let format = if is_channels_last(x) { Format::Nhwc } else { Format::Nchw };
    let sums = Sums { images: batch, channels, pixels: h * w, is_channels_last: format == Format::Nhwc };
    launched(PlaneSums { sums, factor }, &format.arrange(x)?, (batch, channels)).map(Some)
}

/// The gradient of `x`, of whose windows, of this size and so far apart, `y` has the maxima or the means, in the layout of `x`. `None` if
/// there is no kernel for the operands.
pub(super) fn gradient(
    [x, y, gradient]: [&Tensor; 3],
    kind: PoolKind,
    [kernel, stride]: [[usize; 2]; 2],
) -> Result<Option<Tensor>> {
    let is_countable = (1..=i32::MAX as usize).contains(&x.elem_count());
    if !takes(x, &[Some(y), Some(gradient)]) || gradient.shape() != y.shape() || !is_countable {
        return Ok(None);
    }
    let format = if is_channels_last(x) { Format::Nhwc } else { Format::Nchw };
    let call = PoolGradient { kind, kernel, stride, format, from: x.dims4()?, to: y.dims4()? };
    let operands = [&format.arrange(x)?, &format.arrange(y)?, &format.arrange(gradient)?];
    let found = for_kernel_float!(x.dtype(), gradient_of(&call, operands)).transpose()?;
    found.map(|found| format.view(&found)).transpose()
}

struct PoolGradient {
    kind: PoolKind,
    /// Rows and columns of a window, and from one to the next.
    kernel: [usize; 2],
    stride: [usize; 2],
    format: Format,
    from: (usize, usize, usize, usize),
    to: (usize, usize, usize, usize),
}

fn gradient_of<T: CudaDType + WithDType + DeviceRepr>(of: &PoolGradient, operands: [&Tensor; 3]) -> Result<Tensor> {
    let &PoolGradient { kind, kernel, stride, format, from: (_, channels, h, w), to: (_, _, oh, ow) } = of;
    let device = operands[0].device().as_cuda_device()?;
    let (numel, results) = (operands[0].elem_count(), operands[1].elem_count());
    let dx = with_elements::<T, _, 3>(operands.map(Some), |operands| {
        let [Some(x), Some(y), Some(gradient)] = &operands else { bail!("a pool without an operand") };
        let (kind, is_last, from, to) = (kind.code(), (format == Format::Nhwc).into(), [h, w], [oh, ow]);
        written::<T>(device, numel, |dx| {
            let dx = dx.as_view_mut();
            let call = launch::PoolGradient {
                numel,
                results,
                kind,
                channels,
                from,
                to,
                kernel,
                stride,
                is_last,
                x,
                y,
                gradient,
                dx,
            };
            call.launch(device, T::DTYPE.as_str(), ptx::POOL_GRADIENT, blocks(numel))
        })
    })?;
    tensor_of(dx, device, operands[0].shape())
}

fn run(x: &Tensor, to: (usize, usize), windows: Windows) -> Result<Option<Tensor>> {
    if !is_known(x.dtype()) {
        return Ok(None);
    }
    let (x, format, pitch) = operand_layout(x)?;
    let plane = Plane::new(x.dims4()?, to, format == Format::Nhwc)?;
    Ok(Some(format.view(&launched(Pool { plane, windows, pitch }, &x, plane.shape())?)?))
}

/// The operand, its memory layout, and its strides of image, plane and row in elements. It is copied only if neither
/// its pixels nor its channels are contiguous.
fn operand_layout(x: &Tensor) -> Result<(Tensor, Format, [usize; 3])> {
    let channels = x.dim(1)?;
    let pitch = |stride: &[usize]| [stride[0], stride[1], stride[2]];
    let whole = |pitch: usize| pitch.is_multiple_of(channels);
    Ok(match *x.stride() {
        [image, 1, row, column] if column == channels && whole(image) && whole(row) => {
            (x.clone(), Format::Nhwc, pitch(x.stride()))
        }
        [.., 1] => (x.clone(), Format::Nchw, pitch(x.stride())),
        _ => {
            let x = x.contiguous()?;
            let pitch = pitch(x.stride());
            (x, Format::Nchw, pitch)
        }
    })
}

struct Pool {
    plane: Plane,
    windows: Windows,
    /// Strides of image, plane and row of the operand, in elements.
    pitch: [usize; 3],
}

impl Kernel for Pool {
    const NAME: &'static str = "pool2d";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        launch::pool(device, dtype, &self.plane, &self.windows, self.pitch, &x, y)
    }
}

struct PlaneSums {
    sums: Sums,
    factor: f64,
}

impl Kernel for PlaneSums {
    const NAME: &'static str = "plane_sums";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        launch::plane_sums(device, dtype, &self.sums, self.factor, &x, y)
    }
}
