//! Outputs as elements on the host.

use candle::{DType, Tensor};
use parking_lot::Mutex;

use crate::{cuda, OparaExecutor, Result};

/// Host memory of finished copies, for reuse: as many as there were copies at a time.
#[derive(Default)]
pub(crate) struct HostCopies(Mutex<Vec<cuda::Download<f32>>>);

/// The elements of one output.
enum Given {
    Elements(Vec<f32>),
    /// A pending copy of so many elements.
    Coming(cuda::Download<f32>, usize),
}

impl OparaExecutor {
    /// [`call`](Self::call), with the elements of each output on the host, in f32.
    ///
    /// On a GPU this is for several threads that keep it busy. A thread waits here for its own call alone, and others enqueue theirs
    /// meanwhile. While the driver copies a tensor to memory that is not page-locked, as [`Tensor::to_vec1`] has it do, other threads
    /// enqueue nothing, so that the GPU pauses between calls.
    ///
    /// ```
    /// # use candle::{Device, Tensor};
    /// # use opara_candle::{ops, OparaExecutor};
    /// let x = Tensor::new(&[[1f32, -2.], [-3., 4.]], &Device::Cpu)?;
    /// let fast = OparaExecutor::new(|x: &Tensor| ops::relu(x), &x)?;
    /// assert_eq!(fast.call_to_host(&[x])?, [[1., 0., 0., 4.]]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`call_zero_copy`](Self::call_zero_copy).
    pub fn call_to_host(&self, inputs: &[Tensor]) -> Result<Vec<Vec<f32>>> {
        let copies = &self.host_copies;
        let given = |outputs: &[Tensor]| outputs.iter().map(|output| copies.begin(output)).collect::<Result<Vec<_>>>();
        let given = self.call_zero_copy(inputs, given)??;
        given.into_iter().map(|given| copies.end(given)).collect()
    }
}

impl HostCopies {
    fn begin(&self, output: &Tensor) -> Result<Given> {
        let output = output.to_dtype(DType::F32)?;
        if !output.device().is_cuda() {
            return Ok(Given::Elements(output.flatten_all()?.to_vec1()?));
        }
        let elements = output.elem_count();
        let mut copy = match self.free(elements) {
            Some(copy) => copy,
            None => cuda::Download::new(output.device(), elements)?,
        };
        copy.enqueue(&output.contiguous()?)?;
        Ok(Given::Coming(copy, elements))
    }

    fn end(&self, given: Given) -> Result<Vec<f32>> {
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
        if let Some(at) = (0..free.len()).min_by_key(|&at| free[at].room()) {
            free.swap_remove(at);
        }
        None
    }
}
