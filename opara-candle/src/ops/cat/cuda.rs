//! Concatenation in one launch.

use candle::cuda_backend::CudaDType;
use candle::{Result, Tensor};
use cudarc::driver::DeviceRepr;

use super::launch;
use crate::cuda::operator::format::Format;
use crate::cuda::operator::{is_known, launched, takes, with_elements, Call, Kernel};
use crate::ops::format::is_channels_last;
use crate::ops::Activation;

/// Concatenates the parts along `dim`. `None` if the kernel does not support the operands: the caller then runs
/// candle's operator.
pub(super) fn cat(parts: &[&Tensor], dim: usize) -> Result<Option<Tensor>> {
    let Some(kernel) = Cat::new(parts, dim)? else { return Ok(None) };
    kernel.launch()
}

/// Like [`cat`], with an optional tensor of the same shape added to each part, followed by `activation`.
pub(super) fn cat_sums(
    parts: &[&Tensor],
    others: &[Option<&Tensor>],
    dim: usize,
    activation: Activation,
) -> Result<Option<Tensor>> {
    let relu = match activation {
        Activation::None => false,
        Activation::Relu => true,
        _ => return Ok(None),
    };
    if !parts.iter().zip(others).all(|(part, other)| takes(part, &[*other])) {
        return Ok(None);
    }
    let Some(cat) = Cat::new(parts, dim)? else { return Ok(None) };
    let others = others.iter().map(|other| other.map(|other| cat.format.arrange(other)).transpose());
    let sums = Sums { others: others.collect::<Result<_>>()?, relu };
    Cat { sums: Some(sums), ..cat }.launch()
}

struct Cat {
    /// The memory layout of parts and result.
    format: Format,
    parts: Vec<Tensor>,
    rows: usize,
    /// Elements of each part in a row.
    widths: Vec<usize>,
    /// Shape of the result as it lies in memory.
    shape: Vec<usize>,
    /// Tensors to add to the parts, if any.
    sums: Option<Sums>,
}

struct Sums {
    /// For each part the tensor to add to it.
    others: Vec<Option<Tensor>>,
    relu: bool,
}

impl Cat {
    fn new(parts: &[&Tensor], dim: usize) -> Result<Option<Self>> {
        let Some((first, rest)) = parts.split_first() else { return Ok(None) };
        let alike = |part: &&Tensor| {
            let sizes = part.dims().iter().zip(first.dims()).enumerate();
            part.rank() == first.rank()
                && part.dtype() == first.dtype()
                && part.device().same_device(first.device())
                && sizes.into_iter().all(|(at, (a, b))| at == dim || a == b)
        };
        if !is_known(first.dtype())
            || rest.is_empty()
            || parts.len() > launch::MAX_PARTS
            || dim >= first.rank()
            || !rest.iter().all(alike)
        {
            return Ok(None);
        }
        // If the parts' layouts differ, the result takes the layout that most operators here produce: channels last, if
        // any part has it.
        let (format, dim) = match (parts.iter().any(|part| is_channels_last(part)), dim) {
            (true, 1) => (Format::Nhwc, 3),
            (true, 0) => (Format::Nhwc, 0),
            (true, inner) => (Format::Nhwc, inner - 1),
            (false, dim) => (Format::Nchw, dim),
        };
        let parts = parts.iter().map(|part| format.arrange(part)).collect::<Result<Vec<_>>>()?;
        let widths = parts.iter().map(|part| part.dims()[dim..].iter().product()).collect::<Vec<usize>>();
        let rows = parts[0].dims()[..dim].iter().product::<usize>();
        if rows * widths.iter().sum::<usize>() == 0 {
            return Ok(None);
        }
        let mut shape = parts[0].dims().to_vec();
        shape[dim] = parts.iter().map(|part| part.dims()[dim]).sum();
        Ok(Some(Self { format, parts, rows, widths, shape, sums: None }))
    }

    fn launch(self) -> Result<Option<Tensor>> {
        let (format, first, shape) = (self.format, self.parts[0].clone(), self.shape.clone());
        Ok(Some(format.view(&launched(self, &first, shape)?)?))
    }
}

impl Kernel for Cat {
    const NAME: &'static str = "cat";

    fn launch<T: CudaDType + DeviceRepr>(&self, Call { device, dtype, y, .. }: Call<T>) -> Result<()> {
        const MAX: usize = launch::MAX_PARTS;
        let sums = self.sums.as_ref();
        let other = |i: usize| sums.and_then(|sums| sums.others.get(i)?.as_ref());
        let operands = std::array::from_fn(|i| if i < MAX { self.parts.get(i) } else { other(i - MAX) });
        with_elements::<T, _, { 2 * MAX }>(operands, |operands| {
            let mut operands = operands.into_iter();
            let parts: Vec<_> = operands.by_ref().take(MAX).flatten().collect();
            let others: Vec<_> = operands.take(parts.len()).collect();
            match sums {
                None => launch::cat(device, self.rows, &self.widths, &parts, y),
                Some(Sums { relu, .. }) => {
                    launch::cat_sums(device, dtype, self.rows, &self.widths, &parts, &others, *relu, y)
                }
            }
        })
    }
}
