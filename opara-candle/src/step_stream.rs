//! Steps that run ahead of the host: tokens as they come.

use std::collections::VecDeque;

use candle::{DType, Tensor};

use crate::state::Carry;
use crate::step::StepExecutor;
use crate::{cuda, Error, Result};

/// An iterator over the tokens that steps give; made by [`StepExecutor::stream`].
///
/// Each item is the first output of one step, flattened: for a batch one token a row. When the stream is dropped, the
/// state is as it is after [`steps`](Self::steps) steps, up to `ahead` more than were taken from it.
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
    /// What steps have given and nobody has taken, the oldest first.
    given: VecDeque<Given>,
    /// Host memory of downloads that were taken.
    free: Vec<cuda::Download>,
}

/// The tokens of one step.
enum Given {
    Tokens(Vec<u32>),
    /// So many that are on their way.
    Coming(cuda::Download, usize),
}

impl<S: Carry> StepExecutor<S> {
    /// Steps again and again, all [with the same inputs](StepStream::on), if any; the first output of each are tokens, of u32.
    ///
    /// On a GPU so many steps as `ahead` says, at least one, are enqueued before the host waits for the tokens of the first:
    /// it takes them while the next ones run, and the GPU does not wait for the host. On the CPU a step runs when its tokens
    /// are asked for.
    ///
    /// Limit the steps with [`at_most`](StepStream::at_most) where a state has an end, such as a cache's length:
    /// [`Iterator::take`] does not keep those from running that are ahead.
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

    /// Ends when each row has given one of these tokens: the item in which the last one does is the last item.
    pub fn until(mut self, stops: impl Into<Vec<u32>>) -> Self {
        self.stops = stops.into();
        self
    }

    /// Runs no more than so many steps.
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

    /// How many steps the state has gone on by: those taken, and those that are ahead.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether all rows have had a stop token, with these.
    fn stops_with(&mut self, tokens: &[u32]) -> bool {
        self.stopped.resize(tokens.len(), false);
        for (stopped, token) in self.stopped.iter_mut().zip(tokens) {
            *stopped |= self.stops.contains(token);
        }
        self.stopped.iter().all(|stopped| *stopped)
    }
}

impl<S: Carry> StepStream<'_, S> {
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
            // What is there already is not ahead of anybody.
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

/// The tokens among the outputs of a step.
fn given(outputs: &[Tensor], free: &mut Vec<cuda::Download>) -> Result<Given> {
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

impl<S: Carry> Iterator for StepStream<'_, S> {
    type Item = Result<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let tokens = self.tokens();
        match &tokens {
            Ok(Some(tokens)) if !self.stops.is_empty() => self.is_over = self.stops_with(tokens),
            Ok(Some(_)) => {}
            // After an error the state may be anything.
            Ok(None) | Err(_) => self.is_over = true,
        }
        tokens.transpose()
    }
}
