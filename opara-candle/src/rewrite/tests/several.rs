//! A step of several tokens gives what as many steps of one give: the same logits, and the same caches. The steps are of small decoders of
//! candle-transformers, recorded on one NVIDIA H100.

use std::path::Path;

use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::{rules, whole, Graph, Growth, Input, Inputs, Source};
use opara_plan::trace::{Element, Trace};

use super::{evaluate, largest_difference, numbers};
use crate::rewrite::evaluate::{evaluate_joined, Arithmetic};
use crate::rewrite::join::join;

const CAPACITY: usize = 24;
const TOKENS: usize = 5;

fn graph(model: &str, prompt: usize) -> anyhow::Result<Graph> {
    let file = format!("plan/tests/data/steps/{model}-{prompt}.trace");
    let trace = Trace::load(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
    let mut graph = whole(&trace, []).map_err(|op| anyhow::anyhow!("op {op}"))?.graph;
    rules::apply(&mut graph, &[], &Default::default());
    Ok(graph)
}

fn dtype(element: Element) -> DType {
    Arithmetic::Typed.dtype(element)
}

/// A text without tokens: caches, and what else grows.
struct Text {
    caches: Vec<Tensor>,
    grown: Vec<Tensor>,
}

impl Text {
    fn of(growth: &Growth) -> Result<Self> {
        let zeros = |shape: &[usize], element| Tensor::zeros(shape, dtype(element), &Device::Cpu);
        let cache =
            |of: &opara_plan::rewrite::Cache| zeros(&[1, 2, of.heads as usize, CAPACITY, of.size as usize], of.element);
        let grown =
            |of: &opara_plan::rewrite::Grown| zeros(&[of.rows as usize, CAPACITY, of.step as usize], of.element);
        Ok(Self {
            caches: growth.caches.iter().map(cache).collect::<Result<_>>()?,
            grown: growth.grown.iter().map(grown).collect::<Result<_>>()?,
        })
    }
}

/// The weights and tables of a growth, in the place of its inputs.
fn weights(growth: &Growth, recorded: &Graph) -> Result<Vec<Tensor>> {
    let weight = |at: usize, len: u64| -> Result<Tensor> { numbers(len, 0.37 + 0.11 * at as f32)? * 0.1 };
    let source = |(source, input): (&Source, &Input)| match *source {
        Source::Recorded(of) => weight(of, recorded.inputs[of].len)?.to_dtype(dtype(input.element)),
        Source::Row { table, between, .. } => {
            let rows = weight(table, between * CAPACITY as u64)?.reshape((CAPACITY, between as usize))?;
            rows.narrow(1, 0, input.len as usize)?.contiguous()?.to_dtype(dtype(input.element))
        }
        _ => Tensor::zeros(1, DType::U32, &Device::Cpu),
    };
    growth.sources.iter().zip(&growth.graph.inputs).map(source).collect()
}

/// The inputs of a step at a position: of the tokens `ids`, the last one of which has this index.
fn inputs(of: &Growth, weights: &[Tensor], text: &Text, ids: &Tensor, [at, last]: [usize; 2]) -> Result<Vec<Tensor>> {
    let number = |number: usize| Tensor::new(&[number as u32], &Device::Cpu);
    let places = Tensor::arange(at as u32, (at + ids.elem_count()) as u32, &Device::Cpu)?;
    let source = |(index, source): (usize, &Source)| match *source {
        Source::Position => number(at),
        Source::Last => number(last),
        Source::Places => Ok(places.clone()),
        Source::Cache(of) => Ok(text.caches[of].clone()),
        Source::Grown(of) => Ok(text.grown[of].clone()),
        Source::Row { .. } => weights[index].index_select(&places, 0),
        Source::Unwritten(element) => {
            let all = Tensor::arange(0, CAPACITY as u32, &Device::Cpu)?.unsqueeze(0)?;
            let is_written = all.broadcast_le(&places.unsqueeze(1)?)?;
            let [seen, hidden] = [0., f32::NEG_INFINITY]
                .map(|bias| Tensor::full(bias, is_written.shape(), &Device::Cpu)?.to_dtype(dtype(element)));
            is_written.where_cond(&seen?, &hidden?)
        }
        Source::Recorded(_) if !of.graph.inputs[index].is_constant => ids.to_dtype(weights[index].dtype()),
        Source::Recorded(_) => Ok(weights[index].clone()),
        source => candle::bail!("{source:?} is not expected"),
    };
    of.sources.iter().enumerate().map(source).collect()
}

#[test]
fn several_tokens_give_what_as_many_steps_give() -> anyhow::Result<()> {
    for (model, prompts, tolerance) in [
        ("qwen3-f32", [7, 8], 1e-5),
        ("gemma-f32", [7, 8], 1e-5),
        ("phi-f32", [7, 8], 1e-5),
        // Attention over all places.
        ("gemma2-f32", [6, 7], 1e-5),
        ("glm4-f32", [6, 7], 1e-5),
        ("falcon-f32", [6, 7], 1e-5),
        ("llama2_c-f32", [6, 7], 1e-5),
        ("qwen2-f16", [7, 8], 2e-2),
        ("phi3-f16", [7, 8], 2e-2),
        ("mistral-f16", [7, 8], 2e-2),
        ("gemma3-f16", [7, 8], 2e-2),
        ("llama-bf16", [7, 8], 1e-1),
    ] {
        let (a, b) = (graph(model, prompts[0])?, graph(model, prompts[1])?);
        let known = Inputs { capacity: CAPACITY as u64, outputs: 1, ..Inputs::default() };
        let lengths = prompts.map(|prompt| prompt as u64 + 1);
        let growth = Growth::of([&a, &b], lengths, &known).map_err(|why| anyhow::anyhow!("{model}: {why}"))?;
        let (weights, text) = (weights(&growth, &a)?, Text::of(&growth)?);
        let joined = join(&growth.graph, &weights)?;
        let ids = Tensor::arange(1u32, 1 + 2 * TOKENS as u32, &Device::Cpu)?;
        let mut logits = Vec::new();
        for at in 0..2 * TOKENS {
            let inputs = inputs(&growth, &weights, &text, &ids.narrow(0, at, 1)?, [at, 0])?;
            logits.push(evaluate(&growth.graph, &inputs, Arithmetic::Typed)?.remove(0).flatten_all()?);
        }
        // Two pieces. The second one has two tokens more than count, which lie behind the text.
        for is_each in [false, true] {
            let of = growth.several(TOKENS as u64, &known, is_each);
            let of = of.map_err(|why| anyhow::anyhow!("{model}: {why}"))?;
            let own = Text::of(&growth)?;
            for (first, last) in [(0, TOKENS - 1), (TOKENS, TOKENS - 3)] {
                let inputs = inputs(&of, &weights, &own, &ids.narrow(0, first, TOKENS)?, [first, last])?;
                let given = evaluate_joined(&of.graph, &inputs, &joined);
                let given = given.map_err(|why| anyhow::anyhow!("{model}: {why}"))?.remove(0).flatten_all()?;
                let vocabulary = logits[0].elem_count();
                // Those of tokens that do not count say nothing.
                let given = if is_each { given.narrow(0, 0, (last + 1) * vocabulary)? } else { given };
                let from = if is_each { first } else { first + last };
                let expected = Tensor::cat(&logits[from..=first + last], 0)?;
                assert_eq!(given.dims(), expected.dims(), "{model}");
                let apart = largest_difference(&given, &expected)?;
                assert!(apart < tolerance, "{model} behind {first} tokens: {apart}");
            }
            let counted = 2 * TOKENS - 2;
            let pairs = own.caches.iter().zip(&text.caches).map(|pair| (pair, 3));
            for ((own, of_steps), dim) in pairs.chain(own.grown.iter().zip(&text.grown).map(|pair| (pair, 1))) {
                let [own_tokens, of_steps] = [own, of_steps].map(|all| all.narrow(dim, 0, counted));
                let apart = largest_difference(&own_tokens?, &of_steps?)?;
                assert!(apart < tolerance, "{model}: what is kept of tokens is {apart} apart");
                let behind = own.narrow(dim, counted, CAPACITY - counted)?.to_dtype(DType::F32)?;
                assert!(
                    dim == 3 || behind.abs()?.sum_all()?.to_scalar::<f32>()? == 0.,
                    "{model}: zeros are behind a text"
                );
            }
        }
    }
    Ok(())
}
