//! Convolutions of few channels as convolutions of many channels, on a GPU.

pub(super) mod launch;

use candle::cuda_backend::CudaDType;
use candle::{bail, Layout, Result, Tensor};
use cudarc::driver::DeviceRepr;

use self::launch::Squares;
use super::{ConvConfig, Padding};
use crate::cuda::driver::kernels::{ptx, wide_blocks};
use crate::cuda::operator::format::Format;
use crate::cuda::operator::{launched, Call, Kernel};

/// A convolution with the same result as one of few channels, and more of them.
///
/// Tensor cores need many channels, and a image has three: padding them would multiply mostly zeros. Taking squares
/// of stride x stride pixels as pixels ("space to depth") fills the tensor cores better, and the convolution then has
/// stride 1, for which libraries are fastest.
pub(super) struct Deeper {
    image: Squares,
    window: Squares,
    pub config: ConvConfig,
}

impl Deeper {
    /// `None` where that would be mostly zeros, or has channels enough.
    pub fn of(x: &Tensor, weight: &Tensor, config: &ConvConfig) -> Result<Option<Self>> {
        let (batch, channels, h, w) = x.dims4()?;
        let (_, _, kh, kw) = weight.dims4()?;
        let (side, padding) = (config.stride, config.padding);
        let is_deep = channels * x.dtype().size_in_bytes() >= 16;
        // Squares larger than the window, and very few channels, would be almost all zeros.
        let is_sparse = side > kh.max(kw) || channels * side * side < 3;
        if Format::of(x.dtype()) != Format::Nhwc || is_deep || is_sparse || config.groups > 1 || config.dilation > 1 {
            return Ok(None);
        }
        let (oh, ow) = config.output((h, w), (kh, kw))?;
        let (kh, kw) = (kh.div_ceil(side), kw.div_ceil(side));
        let window = Squares { side, before: (0, 0), to: (kh, kw) };
        let image = Squares { side, before: (padding.top, padding.left), to: (oh + kh - 1, ow + kw - 1) };
        let config = ConvConfig { stride: 1, padding: Padding::default(), ..*config };
        Ok(image.elements(batch, channels).is_some().then_some(Self { image, window, config }))
    }

    /// Its operand.
    ///
    /// # Errors
    /// A failed launch.
    pub fn image(&self, x: &Tensor) -> Result<Tensor> {
        squares(x, self.image)
    }

    /// Its weight.
    ///
    /// # Errors
    /// A failed launch.
    pub fn weight(&self, weight: &Tensor) -> Result<Tensor> {
        squares(weight, self.window)
    }
}

/// Gathers the squares of an image into pixels, in [`Format::Nhwc`].
fn squares(x: &Tensor, squares: Squares) -> Result<Tensor> {
    let (batch, channels, _, _) = x.dims4()?;
    let shape = (batch, squares.to.0, squares.to.1, squares.depth(channels));
    Format::Nhwc.view(&launched(SpaceToDepth { squares, layout: x.layout().clone() }, x, shape)?)
}

struct SpaceToDepth {
    squares: Squares,
    /// Layout of the operand.
    layout: Layout,
}

impl Kernel for SpaceToDepth {
    const NAME: &'static str = "space_to_depth";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let ((batch, channels, h, w), &[image, plane, row, column]) =
            (self.layout.shape().dims4()?, self.layout.stride())
        else {
            bail!("{:?} is not of images", self.layout)
        };
        let Squares { side, before: (top, left), to: (rows, columns) } = self.squares;
        let depth = self.squares.depth(channels);
        let Some(numel) = self.squares.elements(batch, channels) else {
            bail!("{:?} of {:?}: the kernel indexes with 31 bits", self.squares, self.layout)
        };
        if numel == 0 {
            return Ok(());
        }
        let (of_x, x, y) = ([image, plane, row, column], &x, y.as_view_mut());
        let config = wide_blocks(numel, dtype);
        launch::SpaceToDepth { batch, numel, side, top, left, rows, columns, depth, channels, h, w, of_x, x, y }.launch(
            device,
            &format!("nhwc_{}", dtype.as_str()),
            ptx::SPACE_TO_DEPTH,
            config,
        )
    }
}
