//! Upsampling in one launch.

use candle::cuda_backend::CudaDType;
use candle::{DType, Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch;
use crate::cuda::driver::kernels::{address, blocks, ptx};
use crate::cuda::operator::format::Format;
use crate::cuda::operator::plane::Plane;
use crate::cuda::operator::{is_known, launched, Call, Kernel};
use crate::ops::format::is_channels_last;

/// The nearest pixels of `x`, whose channels come last, as those of the result then do. `None` for other layouts and dtypes:
/// candle's kernel writes planes.
pub(super) fn upsample_nearest2d(x: &Tensor, rows: usize, columns: usize) -> Result<Option<Tensor>> {
    let has_elements = x.elem_count() > 0 && rows > 0 && columns > 0;
    if !is_channels_last(x) || !is_known(x.dtype()) || x.dtype() == DType::F64 || !has_elements {
        return Ok(None);
    }
    let Ok(plane) = Plane::new(x.dims4()?, (rows, columns), true) else { return Ok(None) };
    let x = Format::Nhwc.arrange(x)?;
    Format::Nhwc.view(&launched(Upsample { plane }, &x, plane.shape())?).map(Some)
}

struct Upsample {
    plane: Plane,
}

impl Kernel for Upsample {
    const NAME: &'static str = "upsample_nearest2d";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let Self { plane } = self;
        let fits = |&n: &usize| plane.is_aligned(n, dtype.size_in_bytes(), &[address(&x, device)]);
        let (variant, threads) = plane.variant([8, 4, 2].into_iter().find(fits));
        let ((h, w), (rows, columns), numel) = (plane.from(), plane.to(), plane.results());
        let [down, right] = [(h, rows), (w, columns)].map(|(from, to)| from as f64 / to as f64);
        let (batch, channels, x, y) = (plane.batch(), plane.channels(), &x, y.as_view_mut());
        launch::Upsample { batch, numel, channels, h, w, rows, columns, down, right, x, y }.launch(
            device,
            &format!("{variant}_{}", dtype.as_str()),
            ptx::UPSAMPLE,
            blocks(threads),
        )
    }
}
