//! Sums, differences, products and quotients in f64 on a GPU, of operands that broadcast: candle's kernels take several times as long as
//! memory does, since they find each element by divisions.

pub(super) mod launch;
mod rows;

use candle::cuda_backend::CudaDType;
use candle::{DType, Result, Tensor};
use cudarc::driver::{DeviceRepr, LaunchConfig};

use self::rows::{Rows, THREADS};
use crate::cuda::driver::kernels::{expect_f64, ptx};
use crate::cuda::operator::{launched, with_elements, Call, Kernel};

/// `x + y`, or what else has this name: `add`, `sub`, `mul` or `div`. `None` if no kernel supports that name or the operands.
///
/// # Errors
/// Shapes that do not go together, and a failed launch.
pub(crate) fn double_binary(name: &str, x: &Tensor, y: &Tensor) -> Result<Option<Tensor>> {
    let Some(operation) = ["add", "sub", "mul", "div"].into_iter().find(|known| *known == name) else {
        return Ok(None);
    };
    let are_known = [x, y].iter().all(|operand| operand.dtype() == DType::F64 && operand.device().is_cuda());
    if !are_known || !x.device().same_device(y.device()) {
        return Ok(None);
    }
    let shape = x.shape().broadcast_shape_binary_op(y.shape(), "double_binary")?;
    let (x, y) = (x.broadcast_as(&shape)?, y.broadcast_as(&shape)?);
    let Some(rows) = Rows::of(shape.dims(), [x.stride(), y.stride()]) else { return Ok(None) };
    launched(DoubleBinary { operation, rows, y }, &x, shape).map(Some)
}

struct DoubleBinary {
    /// The kernel's variant.
    operation: &'static str,
    rows: Rows,
    y: Tensor,
}

impl Kernel for DoubleBinary {
    const NAME: &'static str = "double_binary";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, x, y: out, .. }: Call<T>) -> Result<()> {
        with_elements([Some(&self.y)], |[y]| {
            let Some(y) = y else { candle::bail!("there is no second operand") };
            expect_f64::<T>(self.operation)?;
            let Some(blocks) = self.rows.blocks() else { candle::bail!("no kernel for {:?}", self.rows) };
            let Rows { dims: [outer, middle, inner, columns], strides } = self.rows;
            let [[of_x @ .., x_step], [of_y @ .., y_step]] = strides;
            let (numel, x, y, out) = (self.rows.elements(), &x, &y, out.as_view_mut());
            let (grid_dim, block_dim) = ((blocks as u32, 1, 1), (THREADS as u32, 1, 1));
            let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
            launch::Binary { outer, numel, columns, middle, inner, of_x, x_step, of_y, y_step, x, y, out }.launch(
                device,
                &format!("{}_f64", self.operation),
                ptx::DOUBLE_BINARY,
                config,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn candles_bits() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let numbers = |dims: &[usize]| Tensor::randn(0f64, 1., dims, &device);
        let image = numbers(&[3, 4, 5, 70])?;
        let operands = [
            (image.clone(), numbers(&[1, 4, 1, 1])?),
            (numbers(&[1, 4, 1, 1])?, image.clone()),
            (image.clone(), numbers(&[70])?),
            (image.narrow(0, 1, 2)?, numbers(&[2, 1, 5, 70])?),
            (image.permute((1, 0, 2, 3))?, numbers(&[4, 3, 1, 1])?),
            (numbers(&[7, 1, 2100])?, numbers(&[7, 3, 1])?),
            (image.clone(), numbers(&[9, 1])?.narrow(0, 4, 5)?),
            (image.clone(), image.clone()),
            (numbers(&[64])?, numbers(&[64])?),
        ];
        for (x, y) in operands {
            let of = |name| Ok::<_, candle::Error>(double_binary(name, &x, &y)?.expect("rows of many elements"));
            for (got, expected) in [
                (of("add")?, x.broadcast_add(&y)?),
                (of("sub")?, x.broadcast_sub(&y)?),
                (of("mul")?, x.broadcast_mul(&y)?),
                (of("div")?, x.broadcast_div(&y)?),
            ] {
                assert_eq!(got.dims(), expected.dims());
                let [got, expected] = [got, expected].map(|t| t.flatten_all()?.to_vec1::<f64>());
                assert_eq!(got?, expected?, "{:?} and {:?}", x.layout(), y.layout());
            }
        }
        Ok(())
    }

    #[test]
    fn dimensions_that_go_together_are_one() {
        let rows = Rows::of(&[8, 320, 64, 64], [&[320 * 4096, 4096, 64, 1], &[0, 1, 0, 0]]);
        let expected = Rows { dims: [1, 8, 320, 4096], strides: [[0, 320 * 4096, 4096, 1], [0, 0, 1, 0]] };
        assert_eq!(rows, Some(expected));
        assert_eq!(expected.elements(), 8 * 320 * 4096);
    }

    #[test]
    fn what_has_no_long_rows_is_left() {
        assert_eq!(Rows::of(&[8, 32], [&[32, 1], &[0, 1]]), None, "short");
        assert_eq!(Rows::of(&[100, 100], [&[1, 100], &[100, 1]]), None, "transposed");
        assert_eq!(Rows::of(&[2, 2, 2, 2, 64], [&[1024, 512, 256, 128, 1], &[0, 1, 0, 1, 0]]), None, "more dimensions");
        let many = [1 << 16, 1 << 16, 64];
        assert_eq!(Rows::of(&many, [&[1 << 22, 64, 1], &[0, 1, 0]]), None, "more rows than blocks");
        assert_eq!(Rows::of(&[], [&[], &[]]), None, "one number");
        assert_eq!(Rows::of(&[0, 64], [&[64, 1], &[0, 1]]), None, "nothing");
    }
}
