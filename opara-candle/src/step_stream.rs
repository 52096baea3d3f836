//! A stream of tokens from steps that run ahead of the host.

use std::collections::VecDeque;

use candle::{DType, Tensor};

use crate::state::StepState;
use crate::step::StepExecutor;
use crate::{cuda, Error, Result};

/// An iterator over the tokens of steps; made by [`StepExecutor::stream`].
///
/// Each item is the first output of one step, flattened: one token for each row of a batch. When the stream is dropped,
/// the state has advanced by [`steps`](Self::steps) steps: up to `ahead` more than the items taken.
pub struct StepStream<'a, S> {
    executor: &'a StepExecutor<S>,
    inputs: &'a [Tensor],
    state: &'a mut S,
    ahead: usize,
    at_most: usize,
    steps: usize,
    stops: Vec<u32>,
    /// For each row whether a stop token has come.
    stopped: Vec<bool>,
    is_over: bool,
    /// Tokens that were not taken yet, the oldest first.
    given: VecDeque<Given>,
    /// Host memory of finished downloads, for reuse.
    free: Vec<cuda::Download<u32>>,
}

/// The tokens of one step.
enum Given {
    Tokens(Vec<u32>),
    /// A pending download of this many tokens.
    Coming(cuda::Download<u32>, usize),
}

impl<S: StepState> StepExecutor<S> {
    /// Runs steps repeatedly, all [with the same inputs](StepStream::on) if there are any. The first output of a step must be u32
    /// tokens.
    ///
    /// On a GPU, `ahead` steps (at least one) are enqueued before the host waits for the tokens of the first. The host reads them
    /// while the next steps run, so the GPU does not wait for the host. On the CPU, a step runs when its tokens are requested.
    ///
    /// If a state has room for a limited number of steps, such as a cache's length, set
    /// [`at_most`](StepStream::at_most): [`Iterator::take`] does not stop the steps that run ahead.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use opara_candle::{ops, OparaExecutor};
    ///
    /// let count = |_: &[Tensor], token: &Tensor| {
    ///     ops::advance(token, 1)?;
    ///     Ok(vec![token.clone()])
    /// };
    /// let mut token = Tensor::zeros(1, DType::U32, &Device::Cpu)?;
    /// let step = OparaExecutor::builder().build_step(count, &[], &token)?;
    /// let tokens = step.stream(&mut token, 4).until([3]).at_most(10).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(tokens, [[1], [2], [3]]);
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    pub fn stream<'a>(&'a self, state: &'a mut S, ahead: usize) -> StepStream<'a, S> {
        StepStream {
            executor: self,
            inputs: &[],
            state,
            ahead: ahead.max(1),
            at_most: usize::MAX,
            steps: 0,
            stops: Vec::new(),
            stopped: Vec::new(),
            is_over: false,
            given: VecDeque::new(),
            free: Vec::new(),
        }
    }
}

impl<'a, S> StepStream<'a, S> {
    /// The inputs of each step. Default: none.
    pub fn on(mut self, inputs: &'a [Tensor]) -> Self {
        self.inputs = inputs;
        self
    }

    /// Ends after the item in which the last row has given one of these tokens.
    pub fn until(mut self, stops: impl Into<Vec<u32>>) -> Self {
        self.stops = stops.into();
        self
    }

    /// Limits the number of steps.
    pub fn at_most(mut self, steps: usize) -> Self {
        self.at_most = steps;
        self
    }

    /// Enqueues no more steps. Those that are ahead can still be taken.
    ///
    /// ```
    /// # use candle::{DType, Device, Tensor};
    /// # use opara_candle::{ops, OparaExecutor};
    /// # let count = |_: &[Tensor], token: &Tensor| ops::advance(token, 1).map(|()| vec![token.clone()]);
    /// # let mut token = Tensor::zeros(1, DType::U32, &Device::Cpu)?;
    /// # let step = OparaExecutor::builder().build_step(count, &[], &token)?;
    /// let mut stream = step.stream(&mut token, 4);
    /// let mut tokens: Vec<u32> = stream.next().transpose()?.unwrap_or_default();
    /// stream.enqueue_no_more();
    /// for ahead in stream.by_ref() {
    ///     tokens.extend(ahead?);
    /// }
    /// assert_eq!(tokens.len(), stream.steps()); // Up to four on a GPU, one on the CPU.
    /// # Ok::<(), opara_candle::Error>(())
    /// ```
    pub fn enqueue_no_more(&mut self) {
        self.at_most = self.steps;
    }

    /// Number of steps that the state has advanced by, including steps whose tokens were not taken yet.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Adds the tokens of a step. Have all rows had a stop token now?
    fn stops_with(&mut self, tokens: &[u32]) -> bool {
        self.stopped.resize(tokens.len(), false);
        for (stopped, token) in self.stopped.iter_mut().zip(tokens) {
            *stopped |= self.stops.contains(token);
        }
        self.stopped.iter().all(|stopped| *stopped)
    }
}

impl<S: StepState> StepStream<'_, S> {
    /// Runs or enqueues one more step.
    fn step(&mut self) -> Result<()> {
        let free = &mut self.free;
        let given = self.executor.call_zero_copy(self.inputs, self.state, |outputs| given(outputs, free))??;
        self.given.push_back(given);
        self.steps += 1;
        Ok(())
    }

    fn tokens(&mut self) -> Result<Option<Vec<u32>>> {
        let is_behind = |stream: &Self| stream.given.len() < stream.ahead && stream.steps < stream.at_most;
        while is_behind(self) {
            self.step()?;
            // On the CPU steps do not run ahead.
            if matches!(self.given.back(), Some(Given::Tokens(_))) {
                break;
            }
        }
        Ok(match self.given.pop_front() {
            None => None,
            Some(Given::Tokens(tokens)) => Some(tokens),
            Some(Given::Coming(download, elements)) => {
                let tokens = download.wait(elements)?;
                self.free.push(download);
                Some(tokens)
            }
        })
    }
}

/// The tokens of a step, from its outputs.
fn given(outputs: &[Tensor], free: &mut Vec<cuda::Download<u32>>) -> Result<Given> {
    let Some(tokens) = outputs.first().filter(|tokens| tokens.dtype() == DType::U32) else {
        return Err(Error::NotTokens { got: outputs.first().map(Tensor::dtype) });
    };
    let elements = tokens.elem_count();
    if !tokens.device().is_cuda() {
        return Ok(Given::Tokens(tokens.flatten_all()?.to_vec1()?));
    }
    let mut download = free.pop().map_or_else(|| cuda::Download::new(tokens.device(), elements), Ok)?;
    download.enqueue(&tokens.contiguous()?)?;
    Ok(Given::Coming(download, elements))
}

impl<S: StepState> Iterator for StepStream<'_, S> {
    type Item = Result<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let tokens = self.tokens();
        match &tokens {
            Ok(Some(tokens)) if !self.stops.is_empty() => self.is_over = self.stops_with(tokens),
            Ok(Some(_)) => {}
            // After an error the state may be partly updated.
            Ok(None) | Err(_) => self.is_over = true,
        }
        tokens.transpose()
    }
}
