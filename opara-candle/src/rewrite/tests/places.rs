//! Steps over all places of what grows give what the recorded steps give, at both lengths. Recorded on one NVIDIA H100, from small
//! decoders of candle-transformers, behind 7 and 8 tokens.

use std::path::Path;

use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::{whole, Graph, Growth, Inputs, Source};
use opara_plan::trace::{Element, Trace};

use super::{evaluate, largest_difference, numbers};
use crate::rewrite::evaluate::Arithmetic;

const CAPACITY: usize = 12;

fn graph(model: &str, prompt: usize) -> anyhow::Result<Graph> {
    let file = format!("plan/tests/data/steps/{model}-{prompt}.trace");
    let trace = Trace::load(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
    Ok(whole(&trace, []).map_err(|op| anyhow::anyhow!("op {op}"))?.graph)
}

/// Some numbers for each input.
fn inputs(graph: &Graph) -> Result<Vec<Tensor>> {
    let of = |(at, input): (usize, &opara_plan::rewrite::Input)| match input.element {
        Element::F32 => numbers(input.len, 0.37 + 0.11 * at as f32)? * 0.3,
        element => Tensor::full(3u32, input.len as usize, &Device::Cpu)?.to_dtype(Arithmetic::Typed.dtype(element)),
    };
    graph.inputs.iter().enumerate().map(of).collect()
}

/// The inputs of the common step behind a text that a recorded step has these inputs of.
fn common(growth: &Growth, inputs: &[Tensor], length: usize) -> Result<Vec<Tensor>> {
    let source = |(at, source): (usize, &Source)| match *source {
        Source::Recorded(input) => Ok(inputs[input].clone()),
        Source::Position => Tensor::new(&[length as u32], &Device::Cpu),
        Source::Grown(at) => {
            let of = growth.grown[at];
            let (rows, step) = (of.rows as usize, of.step as usize);
            let all = Tensor::zeros((rows, CAPACITY, step), DType::F32, &Device::Cpu)?;
            all.slice_set(&inputs[of.input].reshape((rows, length, step))?, 1, 0)?;
            Ok(all)
        }
        Source::Row { table, first, between } => {
            inputs[table].narrow(0, first as usize + between as usize * length, growth.graph.inputs[at].len as usize)
        }
        source => candle::bail!("{source:?} is not expected"),
    };
    growth.sources.iter().enumerate().map(source).collect()
}

#[test]
fn steps_over_all_places_give_what_recorded_steps_give() -> anyhow::Result<()> {
    // Soft-capped scores; tokens before texts and heads; one head for several queries, and products of a cache's transpose; repeated heads.
    for model in ["gemma2-f32", "glm4-f32", "falcon-f32", "llama2_c-f32"] {
        let (a, b) = (graph(model, 6)?, graph(model, 7)?);
        let known = Inputs { capacity: CAPACITY as u64, outputs: 1, ..Inputs::default() };
        let growth = Growth::of([&a, &b], [7, 8], &known).map_err(anyhow::Error::msg)?;
        assert_eq!((growth.caches.len(), growth.grown.len()), (0, 4), "{model}");
        for (graph, length) in [(a, 7), (b, 8)] {
            let inputs = inputs(&graph)?;
            let expected = evaluate(&graph, &inputs, Arithmetic::Typed)?;
            let given = evaluate(&growth.graph, &common(&growth, &inputs, length)?, Arithmetic::Typed)?;
            let apart = largest_difference(&given[0], &expected[0])?;
            assert!(apart < 1e-5, "{model} behind {length} tokens: {apart}");
        }
    }
    Ok(())
}
