//! Embedding lookup in one launch.

use candle::cuda_backend::CudaDType;
use candle::{bail, DType, Result, Tensor, WithDType};
use cudarc::driver::DeviceRepr;

use super::launch::{self, of_places};
use crate::cuda::driver::kernels::{ptx, wide_blocks, write_zeros};
use crate::cuda::operator::rows::Rows;
use crate::cuda::operator::{launched, takes, with_elements, Call, Kernel};

/// The rows of `table`, `(n, hidden)`, at `ids`. `None` if the kernel does not support the operands: the caller then
/// runs candle's operators, which also report errors.
pub(super) fn embedding(table: &Tensor, ids: &Tensor) -> Result<Option<Tensor>> {
    let (of_table, hidden) = table.dims2()?;
    let shape = [ids.dims(), &[hidden]].concat();
    let Some(rows) = Rows::of(&shape).filter(Rows::are_countable) else { return Ok(None) };
    let are_ids = matches!(ids.dtype(), DType::U8 | DType::U32 | DType::I64);
    let is_together = ids.device().same_device(table.device());
    if !takes(table, &[]) || !are_ids || !is_together || !table.is_contiguous() || shape.contains(&0) {
        return Ok(None);
    }
    launched(Embedding { rows, of_table, ids: ids.contiguous()? }, table, shape).map(Some)
}

/// The gradient of a table of so many rows, by that of its rows at `ids`. `None` if the kernel does not support the operands.
pub(super) fn gradient(gradient: &Tensor, ids: &Tensor, table: (usize, usize)) -> Result<Option<Tensor>> {
    let (rows, columns) = table;
    let Some(of) = Rows::of(gradient.dims()).filter(Rows::are_countable) else { return Ok(None) };
    let are_ids = matches!(ids.dtype(), DType::U8 | DType::U32 | DType::I64);
    let fit = of.columns() == columns && of.rows() == ids.elem_count() && of.elements() > 0;
    if !takes(gradient, &[]) || !are_ids || !ids.device().same_device(gradient.device()) || !fit {
        return Ok(None);
    }
    let kernel = EmbeddingGradient { of, rows, ids: ids.contiguous()? };
    launched(kernel, &gradient.contiguous()?, table).map(Some)
}

/// A launch by the ids' elements, whatever their type is, and the kernel's variant for them and elements of `dtype`.
macro_rules! by_ids {
    ($tensor:expr, $dtype:expr, |$ids:ident, $variant:ident| $launch:expr) => {{
        macro_rules! of {
            ($id:ty) => {
                with_elements::<$id, _, 1>([Some(&$tensor)], |[ids]| {
                    let Some($ids) = &ids else { bail!("an embedding without ids") };
                    let $variant = &format!("{}_{}", <$id>::DTYPE.as_str(), $dtype.as_str());
                    $launch
                })
            };
        }
        match $tensor.dtype() {
            DType::U8 => of!(u8),
            DType::U32 => of!(u32),
            DType::I64 => of!(i64),
            other => bail!("ids must be u8, u32 or i64, not {other:?}"),
        }
    }};
}

struct EmbeddingGradient {
    /// Rows of the result's gradient.
    of: Rows,
    /// Rows of the table.
    rows: usize,
    ids: Tensor,
}

impl Kernel for EmbeddingGradient {
    const NAME: &'static str = "embedding_gradient";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let (count, columns, rows) = (self.of.rows(), self.of.columns(), self.rows);
        write_zeros(device, y)?;
        by_ids!(self.ids, dtype, |ids, variant| {
            launch::EmbeddingGradient { count, columns, rows, ids, gradient: &x, y: y.as_view_mut() }.launch(
                device,
                variant,
                ptx::EMBEDDING_GRADIENT,
                of_places(count, columns),
            )
        })
    }
}

struct Embedding {
    /// Rows of the result.
    rows: Rows,
    /// Rows of the table. The table may be a view of a larger tensor.
    of_table: usize,
    ids: Tensor,
}

impl Kernel for Embedding {
    const NAME: &'static str = "embedding";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, x, y }: Call<T>) -> Result<()> {
        let (numel, columns, rows) = (self.rows.elements(), self.rows.columns(), self.of_table);
        by_ids!(self.ids, dtype, |ids, variant| {
            launch::Embedding { numel, columns, rows, ids, table: &x, y: y.as_view_mut() }.launch(
                device,
                variant,
                ptx::EMBEDDING,
                wide_blocks(numel, dtype),
            )
        })
    }
}
