//! Outputs as elements on the host.

use candle::{DType, Tensor};
use parking_lot::Mutex;

use crate::{cuda, Result};

/// Host memory of finished copies, for reuse: as many as there were copies at a time.
#[derive(Default)]
pub(crate) struct HostCopies(Mutex<Vec<cuda::Download<f32>>>);

/// The elements of one output.
pub(crate) enum Given {
    Elements(Vec<f32>),
    /// A pending copy of so many elements.
    Coming(cuda::Download<f32>, usize),
}

impl HostCopies {
    /// Elements of an output, or of its first `rows` rows, or a copy of them under way.
    ///
    /// # Errors
    /// An output that is no number or has fewer rows, and failed calls of the driver.
    pub fn begin(&self, output: &Tensor, rows: Option<usize>) -> Result<Given> {
        let whole = output.elem_count();
        let output = rows.map_or_else(|| Ok(output.clone()), |rows| output.narrow(0, 0, rows))?.to_dtype(DType::F32)?;
        if !output.device().is_cuda() {
            return Ok(Given::Elements(output.flatten_all()?.to_vec1()?));
        }
        // There is room for all rows, so that calls with other numbers of them take the same memory.
        let mut copy = match self.free(whole) {
            Some(copy) => copy,
            None => cuda::Download::new(output.device(), whole)?,
        };
        copy.enqueue(&output.contiguous()?)?;
        Ok(Given::Coming(copy, output.elem_count()))
    }

    /// Waits for the elements.
    ///
    /// # Errors
    /// Those of the call that computes them.
    pub fn end(&self, given: Given) -> Result<Vec<f32>> {
        match given {
            Given::Elements(elements) => Ok(elements),
            Given::Coming(copy, count) => {
                let elements = copy.wait(count)?;
                self.0.lock().push(copy);
                Ok(elements)
            }
        }
    }

    /// Memory with room for so many elements. If all that is free is too small, the smallest makes way for what comes.
    fn free(&self, elements: usize) -> Option<cuda::Download<f32>> {
        let mut free = self.0.lock();
        if let Some(at) = free.iter().position(|copy| copy.room() >= elements) {
            return Some(free.swap_remove(at));
        }
        if let Some(smallest) = (0..free.len()).min_by_key(|&at| free[at].room()) {
            free.swap_remove(smallest);
        }
        None
    }
}
