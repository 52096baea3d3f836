//! The gradient of a value while its readers give those of views of it.

use candle::{bail, Result, Tensor};
use opara_plan::rewrite::Operand;
use opara_plan::trace::Dim;

use super::super::strided::shaped;
use super::order;
use super::spread::spread;
use crate::ops;

/// Gradients of views of one value. Those of whole values are added at once, so that they need not stay; parts beside each other become one
/// tensor in the end.
#[derive(Default)]
pub(super) struct Sum {
    whole: Option<Tensor>,
    /// Whether products are in it, which may run beside another one.
    has_products: bool,
    parts: Vec<(Operand, Tensor)>,
}

impl Sum {
    /// Adds the gradient of a view.
    ///
    /// # Errors
    /// A failed launch.
    pub fn add(&mut self, view: Operand, gradient: Tensor, len: u64) -> Result<()> {
        if has_repeats(&view) || view.len() >= len {
            return self.add_whole(spread(&gradient, &view, len)?);
        }
        self.parts.push((view, gradient));
        Ok(())
    }

    fn add_whole(&mut self, gradient: Tensor) -> Result<()> {
        self.whole = Some(match self.whole.take() {
            Some(sum) => order::add(&sum, &shaped(&gradient, sum.dims())?)?,
            None => gradient,
        });
        Ok(())
    }

    /// The gradients of whole values so far, without them from then on; none if products are in them, unless these are asked for, too.
    pub fn take(&mut self, with_products: bool) -> Option<Tensor> {
        if with_products || !self.has_products {
            self.whole.take()
        } else {
            None
        }
    }

    /// Says that a product was added.
    pub fn note_product(&mut self) {
        self.has_products = true;
    }

    /// The gradient of all elements of the value, of which there are `len`.
    ///
    /// # Errors
    /// A failed launch.
    pub fn total(mut self, len: u64) -> Result<Tensor> {
        let parts = std::mem::take(&mut self.parts);
        match beside(&parts, len)? {
            Some(gradient) => self.add_whole(gradient)?,
            None => parts.iter().try_for_each(|(view, part)| self.add_whole(spread(part, view, len)?))?,
        }
        match self.whole {
            Some(whole) => Ok(whole),
            None => bail!("nothing gives a gradient of this value"),
        }
    }
}

fn has_repeats(view: &Operand) -> bool {
    view.dims.iter().any(|dim| dim.stride == 0 && dim.len > 1)
}

/// Parts of rows that lie beside each other and are all of the value, as one tensor.
fn beside(parts: &[(Operand, Tensor)], len: u64) -> Result<Option<Tensor>> {
    if parts.len() < 2 || parts.iter().map(|(view, _)| view.len()).sum::<u64>() != len {
        return Ok(None);
    }
    let mut all = Vec::new();
    for (view, gradient) in parts {
        let Some(part) = Part::of(view, gradient)? else { return Ok(None) };
        all.push(part);
    }
    all.sort_by_key(|part| part.first);
    let mut end = 0;
    for part in &all {
        if part.first != end || part.rows != all[0].rows {
            return Ok(None);
        }
        end += part.columns;
    }
    if all.iter().any(|part| part.pitch != end) || end * all[0].rows != len {
        return Ok(None);
    }
    let rows = |part: &Part| shaped(&part.gradient, &[part.rows as usize, part.columns as usize])?.contiguous();
    let rows = all.iter().map(rows).collect::<Result<Vec<_>>>()?;
    ops::cat(&rows.iter().collect::<Vec<_>>(), 1).map(Some)
}

/// A view as columns of rows, from `first` on.
struct Part {
    first: u64,
    rows: u64,
    columns: u64,
    /// Elements from one row to the next.
    pitch: u64,
    /// In the order in which the elements lie in the value.
    gradient: Tensor,
}

impl Part {
    fn of(view: &Operand, gradient: &Tensor) -> Result<Option<Self>> {
        let kept: Vec<Dim> = view.dims.iter().copied().filter(|dim| dim.len > 1).collect();
        let lens: Vec<usize> = kept.iter().map(|dim| dim.len as usize).collect();
        let mut order: Vec<usize> = (0..kept.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(kept[at].stride));
        let sorted: Vec<Dim> = order.iter().map(|&at| kept[at]).collect();
        // The innermost dimensions that continue each other are the columns, and all others the rows.
        let (mut columns, mut outer) = (1, sorted.len());
        while let Some(dim) = sorted[..outer].last().filter(|dim| dim.stride == columns) {
            columns *= dim.len;
            outer -= 1;
        }
        let outer = &sorted[..outer];
        let continues = |dims: &[Dim]| dims[0].stride == dims[1].stride * dims[1].len;
        let (Some(last), true) = (outer.last(), outer.windows(2).all(continues)) else { return Ok(None) };
        let rows = outer.iter().map(|dim| dim.len).product();
        let gradient = shaped(gradient, &lens)?.permute(order)?;
        Ok(Some(Self { first: view.first, rows, columns, pitch: last.stride, gradient }))
    }
}

#[cfg(test)]
mod tests {
    use candle::Device;
    use opara_plan::rewrite::Value;

    use super::*;

    /// Queries and keys as heads, `(2 items, 3 heads, 5 tokens, 4)`, of rows that hold both.
    #[test]
    fn heads_of_rows_lie_beside_each_other() -> Result<()> {
        let part = |first: u64| {
            let dims = [(2, 120), (3, 4), (5, 24), (4, 1)].map(|(len, stride)| Dim { len, stride });
            let elements = Tensor::arange(0., 240., &Device::Cpu)?.reshape((2, 5, 2, 3, 4))?;
            let own = elements.narrow(2, first as usize / 12, 1)?.squeeze(2)?.transpose(1, 2)?;
            Ok((Operand { value: Value::Input(0), first, dims: dims.to_vec() }, own.contiguous()?))
        };
        let parts = [part(12), part(0)].into_iter().collect::<Result<Vec<_>>>()?;
        let all = beside(&parts, 240)?.expect("they are all of the rows");
        assert_eq!(all.flatten_all()?.to_vec1::<f64>()?, (0..240).map(f64::from).collect::<Vec<_>>());
        assert!(beside(&parts[..1], 240)?.is_none());
        Ok(())
    }
}
