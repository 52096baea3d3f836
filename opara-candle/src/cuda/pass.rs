//! Captures one forward pass with the CUDA driver.

use std::sync::Arc;

use super::driver::{
    address_of, bytes_of, noted_launches, position, Broken, CapturePool, CapturedGraph, NotedLaunches, Stream,
};
use crate::arguments::Rerun;
use crate::backend::Function;
use crate::trace::scope;
use crate::{Error, Result};

/// A captured pass.
pub(super) struct Pass {
    pub outputs: Vec<OutputSpec>,
    /// Its scopes.
    pub marks: Marks,
    /// Its launches whose numbers follow from the length of a text.
    pub noted: NotedLaunches,
    pub graph: CapturedGraph,
}

/// One output of the captured pass.
#[derive(Clone)]
pub(super) struct OutputSpec {
    pub shape: candle::Shape,
    pub dtype: candle::DType,
    pub address: u64,
    pub bytes: u64,
    /// Does it fill an allocation of its own, from the first byte to the last?
    pub whole: bool,
}

/// For each change of the label: the number of nodes before it, and the new label.
pub(super) type Marks = Vec<(usize, String)>;

/// Captures a pass. If the driver breaks the capture off, it is tried again, a few times.
pub(super) fn run(
    stream: &Stream,
    pool: &CapturePool,
    function: &Function,
    arguments: &Rerun,
    copied: &[usize],
) -> Result<Pass> {
    const ATTEMPTS: usize = 5;
    for _ in 1..ATTEMPTS {
        match run_once(stream, pool, function, arguments, copied) {
            Err(broken) if broken.by_driver => {}
            result => return result.map_err(|broken| broken.error),
        }
    }
    run_once(stream, pool, function, arguments, copied).map_err(|broken| broken.error)
}

fn run_once(
    stream: &Stream,
    pool: &CapturePool,
    function: &Function,
    arguments: &Rerun,
    copied: &[usize],
) -> std::result::Result<Pass, Broken> {
    // A pass that was broken off, or that has to be repeated, has changed the state.
    arguments.rewind().map_err(Error::from)?;
    let forward = || {
        let mut outputs = function(arguments.arguments()).map_err(|source| match Error::from(source) {
            lost @ Error::DeviceLost { .. } => lost,
            error => Error::FailsInCapture { source: error.into() },
        })?;
        for &i in copied {
            let fewer = || format!("it returned more than {i} tensors at one call and fewer at the next");
            let output = outputs.get_mut(i).ok_or_else(|| Error::stateful(fewer()))?;
            *output = output.force_contiguous()?;
        }
        // All outputs are still alive here, so no two have the same address.
        let mut specs = Vec::new();
        for output in &outputs {
            specs.push(OutputSpec {
                shape: output.shape().clone(),
                dtype: output.dtype(),
                address: address_of(output)?,
                bytes: bytes_of(output),
                whole: output.is_contiguous(),
            });
        }
        Ok(specs)
    };
    let (captured, marks) =
        scope::record(Some(Arc::new(position)), || noted_launches(|| stream.capture(pool, forward)));
    let (captured, noted) = captured;
    let (outputs, graph) = captured?;
    let from = graph.after(marks.iter().map(|(position, _)| *position))?;
    let marks = from.into_iter().zip(marks).map(|(from, (_, path))| (from, path)).collect();
    Ok(Pass { outputs, marks, noted, graph })
}

#[cfg(test)]
mod tests {
    use candle::{DType, Tensor};

    use super::*;
    use crate::arguments::StateArguments;
    use crate::cuda::driver::CapturedWork;
    use crate::ops::assign;
    use crate::test_device::gpu;

    /// Needs a GPU; skips without one.
    #[test]
    fn work_that_is_only_recorded_does_not_run() -> anyhow::Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let stream = Stream::of(&device)?;
        let x = Tensor::ones(4, DType::F32, &device)?;
        let mut nodes = Vec::new();
        for (work, expected) in [(CapturedWork::Runs, [2f32; 4]), (CapturedWork::IsRecorded, [0.; 4])] {
            let kept = x.zeros_like()?;
            let to = kept.clone();
            let function: Function = Arc::new(move |inputs| {
                let sum = (&inputs[0] + &inputs[0])?;
                assign(&to, &sum)?;
                Ok(vec![sum.sqr()?])
            });
            let pool = stream.capture_pool(work)?;
            let (state, arguments) = (StateArguments::default(), [x.clone()]);
            let pass = run(&stream, &pool, &function, &Rerun::new(&state, &arguments)?, &[])?;
            nodes.push(pass.graph.nodes()?.len());
            assert_eq!(kept.to_vec1::<f32>()?, expected, "{work:?}");
        }
        assert!(nodes[0] >= 3 && nodes[0] == nodes[1], "{nodes:?}");
        Ok(())
    }
}
