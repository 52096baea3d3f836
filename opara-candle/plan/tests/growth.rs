//! One step for every length of text, from recorded steps of candle-transformers' decoders: two layers, behind 8, 9 and 41 tokens,
//! recorded on one NVIDIA H100. The numbers in the files' names are the tokens of the prompts; another token was added before.

use std::path::Path;

use anyhow::{Context, Result};
use opara_plan::rewrite::{
    rules, whole, Compute, Counted, Graph, Growth, Input, Inputs, Mask, Node, Operand, Output, Source, Value,
};
use opara_plan::trace::{Dim, Element, Function, Trace};

const PROMPTS: [u64; 3] = [7, 8, 40];

/// Of modules with one output, whose texts have at most 64 tokens.
fn inputs() -> Inputs {
    Inputs { capacity: 64, outputs: 1, ..Inputs::default() }
}

fn step_of(graphs: [&Graph; 2], lengths: [u64; 2]) -> std::result::Result<Growth, String> {
    Growth::of(graphs, lengths, &inputs())
}

fn trace(model: &str, prompt: u64) -> Result<Trace> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/steps/{model}-{prompt}.trace"));
    Trace::load(&file).with_context(|| file.display().to_string())
}

/// The rewritten graph; buffers of different recordings have the same numbers.
fn graph(trace: &Trace) -> std::result::Result<Graph, usize> {
    let mut graph = whole(trace, [])?.graph;
    rules::apply(&mut graph, &[], &Default::default());
    graph.inputs.iter_mut().enumerate().for_each(|(at, input)| input.buffer = at);
    graph.outputs.iter_mut().enumerate().for_each(|(at, output)| output.buffer = at);
    Ok(graph)
}

fn graphs(model: &str) -> Result<[Graph; 3]> {
    let of = |prompt| -> Result<Graph> {
        let trace = trace(model, prompt)?;
        graph(&trace).map_err(|op| anyhow::anyhow!("{model}: op {op}, {}", trace.ops[op].name))
    };
    Ok([of(PROMPTS[0])?, of(PROMPTS[1])?, of(PROMPTS[2])?])
}

#[test]
fn decoders_have_one_step_for_every_length() -> Result<()> {
    // Heads of keys, elements of a head, whether tokens follow one another in keys and in values, and rows of tables.
    for (model, heads, size, by_token, expected) in [
        ("qwen2-f16", 2, 64, [false, true], 2),
        ("qwen3-f32", 8, 128, [false, false], 2),
        ("llama-bf16", 3, 64, [false, false], 2),
        ("phi3-f16", 8, 64, [false, true], 2),
        ("gemma-f32", 1, 64, [true, true], 2),
        ("mistral-f16", 2, 64, [false, false], 2),
        ("phi-f32", 8, 64, [true, true], 4),
        ("gemma3-f16", 1, 256, [true, true], 4),
    ] {
        let [a, b, c] = graphs(model)?;
        let of = |graphs, prompts: [u64; 2]| step_of(graphs, prompts.map(|n| n + 1)).map_err(anyhow::Error::msg);
        let growth = of([&a, &b], [PROMPTS[0], PROMPTS[1]]).context(model)?;
        assert!(growth == of([&a, &c], [PROMPTS[0], PROMPTS[2]])?, "{model}");
        assert!(growth == of([&b, &c], [PROMPTS[1], PROMPTS[2]])?, "{model}");
        assert_eq!(growth.caches.len(), 2, "{model}");
        for cache in &growth.caches {
            let found = (cache.heads, cache.size, [cache.keys.by_token, cache.values.by_token]);
            assert_eq!(found, (heads, size, by_token), "{model}");
        }
        // Cosines and sines of the position; Phi's layers have tables of their own.
        let rows = growth.sources.iter().filter(|source| matches!(source, Source::Row { .. })).count();
        assert_eq!(rows, expected, "{model}");
        let attend = growth.graph.nodes.iter().filter(|node| matches!(node.compute, Compute::CachedAttention { .. }));
        assert_eq!(attend.count(), 2, "{model}");
        assert_eq!(growth.graph.inputs.len(), growth.sources.len(), "{model}");
        // Nothing is left of the caches of one length.
        let old = growth.caches.iter().flat_map(|cache| [cache.keys.input, cache.values.input]);
        assert!(old.into_iter().all(|input| !growth.sources.contains(&Source::Recorded(input))), "{model}");
        let reads = |node: &Node| node.operands.iter().all(|of| exists(&growth.graph, of));
        assert!(growth.graph.nodes.iter().all(reads), "{model}");
    }
    Ok(())
}

fn exists(graph: &Graph, operand: &Operand) -> bool {
    match operand.value {
        Value::Input(at) => at < graph.inputs.len(),
        Value::Node(at) => at < graph.nodes.len() && graph.nodes[at].len > 0,
    }
}

#[test]
fn memory_that_is_overwritten_has_to_be_a_cache() -> Result<()> {
    let of =
        |prompt| -> Result<_> { whole(&trace("gemma3-f16", prompt)?, []).map_err(|op| anyhow::anyhow!("op {op}")) };
    let overwritten: Vec<usize> = of(7)?.overwritten.into_iter().map(|(input, _)| input).collect();
    // Keys and values of two layers.
    assert_eq!(overwritten.len(), 4);
    let [a, b, _] = graphs("gemma3-f16")?;
    let growth = step_of([&a, &b], [8, 9]).map_err(anyhow::Error::msg)?;
    assert_eq!(growth.explains(&overwritten), Ok(()));
    let other = (0..a.inputs.len()).find(|input| !overwritten.contains(input)).context("there are weights")?;
    assert!(growth.explains(&[overwritten[0], other]).is_err_and(|why| why.contains("no cache")));

    // Concatenated caches are not overwritten.
    let qwen2 = whole(&trace("qwen2-f16", 7)?, []).map_err(|op| anyhow::anyhow!("op {op}"))?;
    assert!(qwen2.overwritten.is_empty());
    Ok(())
}

/// A graph whose caches have room for so many tokens and are written at this place, of which attention reads all that are there.
fn with_room(graph: &Graph, room: u64, place: u64, tokens: u64) -> Result<Graph> {
    let mut graph = graph.clone();
    let is_cache = |node: &Node| matches!(node.compute, Compute::Concat { .. }) && node.operands.len() == 3;
    let caches: Vec<usize> = (0..graph.nodes.len()).filter(|&at| is_cache(&graph.nodes[at])).collect();
    for &at in &caches {
        let node = &mut graph.nodes[at];
        let Compute::Concat { widths, .. } = &mut node.compute else { continue };
        let step = widths[1];
        *widths = vec![place * step, step, (room - place - 1) * step];
        node.len = room * step;
        let Value::Input(input) = node.operands[0].value else { panic!("it overwrites an input") };
        graph.inputs[input].len = room * step;
        node.operands[2].first = (place + 1) * step;
        for (operand, width) in [(0, widths[0]), (2, widths[2])] {
            node.operands[operand].dims.last_mut().context("a row")?.len = width;
        }
        // Nothing lies before the first place, or behind the last one.
        let is_some: Vec<bool> = widths.iter().map(|width| *width > 0).collect();
        let mut keep = is_some.iter();
        node.operands.retain(|_| keep.next() == Some(&true));
        widths.retain(|width| *width > 0);
    }
    for node in &mut graph.nodes {
        let reads_cache = |of: &&mut Operand| matches!(of.value, Value::Node(at) if caches.contains(&at));
        if let Compute::Attention(_) = node.compute {
            for operand in node.operands.iter_mut().filter(reads_cache) {
                let at = operand.dims.len() - 2;
                operand.dims[at].len = tokens;
            }
        }
    }
    Ok(graph)
}

#[test]
fn a_cache_that_has_room_for_the_latest_tokens_is_a_window() -> Result<()> {
    let [a, b, c] = graphs("gemma3-f16")?;
    // Behind 8, 9 and 41 tokens; of the last ones the new token takes the place of the oldest, wherever that is.
    let (near, next, far) = (with_room(&a, 16, 8, 9)?, with_room(&b, 16, 9, 10)?, with_room(&c, 16, 5, 16)?);
    let of = |graphs, lengths| step_of(graphs, lengths).map_err(anyhow::Error::msg);
    let (short, growth) = (of([&near, &next], [8, 9])?, of([&near, &far], [8, 41])?);
    assert!(short.caches.iter().all(|cache| cache.window.is_none()));
    assert!(growth.caches.iter().all(|cache| cache.window == Some(16)));
    let sees = |node: &Node| match node.compute {
        Compute::CachedAttention { window, .. } => Some(window),
        _ => None,
    };
    assert!(growth.graph.nodes.iter().filter_map(sees).all(|window| window == Some(16)));
    let agrees = |own: &Growth, known, length| own.difference(known, length).is_none();
    assert!(agrees(&short, &growth, 9) && agrees(&growth, &growth, 41) && !agrees(&growth, &short, 41));
    assert!(!agrees(&short, &growth, 16), "a text of 16 tokens fills the window");
    assert_eq!(Growth::place(&far, growth.caches[0].keys.input), Some(5));
    let at_ends = [(0, with_room(&c, 16, 0, 16)?), (15, with_room(&c, 16, 15, 16)?)];
    for (place, at_end) in &at_ends {
        assert!(of([&near, at_end], [8, 41])? == growth);
        assert_eq!(Growth::place(at_end, growth.caches[0].keys.input), Some(*place));
    }

    // Room for others, fewer tokens read than there are, and a place that is not the next one while there is room.
    for (other, length) in
        [(with_room(&c, 20, 5, 20)?, 41), (with_room(&c, 16, 5, 15)?, 41), (with_room(&b, 16, 3, 10)?, 9)]
    {
        assert!(step_of([&near, &other], [8, length]).is_err());
    }
    Ok(())
}

#[test]
fn what_is_written_elsewhere_than_behind_the_text_is_no_cache() -> Result<()> {
    let [a, b, _] = graphs("gemma3-f16")?;
    let at = (0..b.nodes.len())
        .find(|&at| matches!(b.nodes[at].compute, Compute::Concat { .. }) && b.nodes[at].operands.len() == 3);
    let at = at.context("it writes in place")?;
    // The place of another token, and what lies behind from elsewhere.
    let mut earlier = b.clone();
    let Compute::Concat { widths, .. } = &mut earlier.nodes[at].compute else { panic!("it is one") };
    (widths[0], widths[2]) = (widths[0] - widths[1], widths[2] + widths[1]);
    let mut shifted = b.clone();
    shifted.nodes[at].operands[2].first -= 1;
    for other in [earlier, shifted] {
        assert!(step_of([&a, &other], [8, 9]).is_err());
    }
    Ok(())
}

#[test]
fn differences_that_the_length_does_not_explain_are_refused() -> Result<()> {
    let [a, b, c] = graphs("llama-bf16")?;
    let refused = |a: &Graph, b: &Graph, lengths| match step_of([a, b], lengths) {
        Ok(_) => panic!("it is not refused"),
        Err(why) => why,
    };
    // Of other lengths than those that are said.
    assert!(refused(&a, &c, [8, 9]).contains("is nothing that the new token is appended to"));
    assert!(refused(&a, &b, [9, 9]).contains("tell nothing"));

    // A factor that the host makes of the position.
    let mut other = b.clone();
    let is_sum = |compute: &Compute| matches!(compute, Compute::Recorded(Function::Matmul));
    let at = other.nodes.iter().position(|node| is_sum(&node.compute)).context("there is a product")?;
    other.nodes[at].compute = Compute::Recorded(Function::Affine(0.5, 0.));
    assert!(refused(&a, &other, [8, 9]).contains("what it computes"));

    // Another row than the next one.
    let is_row = |operand: &Operand| operand.first > 0 && matches!(operand.value, Value::Input(_));
    let mut other = b.clone();
    let row = other.nodes.iter_mut().flat_map(|node| &mut node.operands).find(|operand| is_row(operand));
    row.context("there is a row of a table")?.first -= 1;
    let known = step_of([&a, &c], [8, 41]).map_err(anyhow::Error::msg)?;
    assert!(step_of([&a, &other], [8, 9]).is_ok_and(|step| step != known), "a third length tells");

    // Other weights.
    let mut other = b.clone();
    let swapped =
        other.nodes.iter_mut().flat_map(|node| &mut node.operands).find(|operand| operand.value == Value::Input(0));
    swapped.context("it reads its first input")?.value = Value::Input(1);
    assert!(refused(&a, &other, [8, 9]).contains("what it reads"));

    // One step more.
    let mut other = b.clone();
    other.nodes.push(b.nodes[0].clone());
    assert!(refused(&a, &other, [8, 9]).contains("steps behind"));

    // What attends to something else than the cache.
    let mut other = b;
    let live = other.live();
    let attention = |at: &usize| live[*at] && matches!(other.nodes[*at].compute, Compute::Attention(_));
    let at = (0..live.len()).find(attention).context("there is attention")?;
    other.nodes[at].operands[1].first += 1;
    assert!(step_of([&a, &other], [8, 9]).is_ok_and(|step| step != known), "a third length tells");
    Ok(())
}

/// A step that adds its argument to a state, and to an older one.
fn with_states(inputs: usize) -> Graph {
    let input = |at| Input { buffer: at, element: Element::F32, len: 4, is_constant: at > 0 };
    let add = |a, b| {
        let operands = vec![Operand::whole(a, 4), Operand::whole(b, 4)];
        Node::new(Compute::Recorded(Function::Binary("add".into())), operands, Element::F32, 4)
    };
    let nodes = vec![add(Value::Input(0), Value::Input(1)), add(Value::Node(0), Value::Input(inputs - 1))];
    let outputs = vec![Output { value: Value::Node(1), buffer: 0 }, Output { value: Value::Node(0), buffer: 1 }];
    Graph { inputs: (0..inputs).map(input).collect(), nodes, outputs }
}

#[test]
fn what_a_step_leaves_in_the_same_size_is_a_state() -> Result<()> {
    let graph = with_states(3);
    // The older state is what the newer one was.
    let next = vec![None, Some(Value::Node(0)), Some(Value::Input(1))];
    let step = Growth::of([&graph, &graph], [7, 8], &Inputs { next, ..inputs() }).map_err(anyhow::Error::msg)?;
    assert_eq!((&step.states[..], step.caches.len(), step.grown.len()), (&[1, 2][..], 0, 0));
    let states: Vec<usize> =
        (0..2).filter_map(|at| step.sources.iter().position(|of| *of == Source::State(at))).collect();
    let left: Vec<Value> = step.graph.outputs.iter().map(|output| output.value).collect();
    assert_eq!(left, [Value::Node(1), Value::Node(0), Value::Input(states[0])]);
    // Without what it leaves, nothing grows and nothing is left.
    assert!(step_of([&graph, &graph], [7, 8]).is_err_and(|why| why.contains("leaves nothing")));
    Ok(())
}

#[test]
fn several_tokens_have_logits_of_each_or_of_the_last_one() -> Result<()> {
    for model in ["qwen2-f16", "llama-bf16", "gemma3-f16", "phi-f32"] {
        let [a, b, _] = graphs(model)?;
        let growth = step_of([&a, &b], [8, 9]).map_err(anyhow::Error::msg)?;
        let logits = |growth: &Growth| growth.graph.len(growth.graph.outputs[0].value);
        let of = |is_each| growth.several(32, &inputs(), is_each).map_err(anyhow::Error::msg).context(model);
        let (last, each) = (of(false)?, of(true)?);
        assert_eq!([logits(&last), logits(&each)], [logits(&growth), 32 * logits(&growth)], "{model}");
        assert!(last.sources.contains(&Source::Last) && !each.sources.contains(&Source::Last), "{model}");
        // Nothing behind the last attention is computed of all tokens.
        let elements = |of: &Growth| of.graph.nodes.iter().map(|node| node.len).sum::<u64>();
        assert!(elements(&last) < elements(&each) - 31 * logits(&growth), "{model}");
        for of in [last, each] {
            assert_eq!((of.graph.inputs.len(), of.caches.len()), (of.sources.len(), growth.caches.len()), "{model}");
            let live = of.graph.live();
            let reads = |at: usize| of.graph.nodes[at].operands.iter().all(|operand| exists(&of.graph, operand));
            assert!((0..live.len()).filter(|&at| live[at]).all(reads), "{model}");
        }
    }
    Ok(())
}

#[test]
fn numbers_of_the_position_are_those_of_each_token() -> Result<()> {
    // Logits times a number of the position, plus another one.
    let [a, b, c] = graphs("qwen2-f16")?;
    let with_numbers = |mut graph: Graph, length: f32| {
        let (len, at) = (graph.len(graph.outputs[0].value), graph.nodes.len());
        let node = |function, operands| Node::new(Compute::Recorded(function), operands, Element::F16, len);
        let logits = Operand::whole(graph.outputs[0].value, len);
        graph.nodes.push(node(Function::Affine(length * 0.1, -length), vec![logits]));
        let bits = (length.to_bits() >> 16).into();
        graph.nodes.push(Node { element: Element::Bf16, ..node(Function::Fill(bits), Vec::new()) });
        let both = [at, at + 1].map(|at| Operand::whole(Value::Node(at), len));
        graph.nodes.push(node(Function::Binary("add".into()), both.to_vec()));
        graph.outputs[0].value = Value::Node(at + 2);
        graph
    };
    let [a, b, c] = [with_numbers(a, 8.), with_numbers(b, 9.), with_numbers(c, 41.)];
    let (short, growth) = (step_of([&a, &b], [8, 9]), step_of([&a, &c], [8, 41]));
    let [short, growth] = [short, growth].map(|of| of.map_err(anyhow::Error::msg).unwrap());
    assert_eq!(short.difference(&growth, 9), None, "numbers are rounded");
    let of = |growth: &Growth| {
        let nodes = growth.graph.nodes.iter().filter(|node| matches!(node.compute, Compute::AffineAtPosition { .. }));
        nodes.map(|node| (node.operands.len(), node.len)).collect::<Vec<_>>()
    };
    let len = of(&growth)[0].1;
    assert_eq!(of(&growth), [(2, len), (1, len)]);
    let several = |is_each| growth.several(32, &inputs(), is_each).map_err(anyhow::Error::msg);
    assert_eq!(of(&several(true)?), [(2, 32 * len), (1, 32 * len)]);
    assert_eq!(of(&several(false)?), [(2, len), (1, len)]);
    Ok(())
}

#[test]
fn a_step_with_states_is_of_one_token() -> Result<()> {
    let graph = with_states(3);
    let next = vec![None, Some(Value::Node(0)), Some(Value::Input(1))];
    let known = Inputs { next, ..inputs() };
    let step = Growth::of([&graph, &graph], [7, 8], &known).map_err(anyhow::Error::msg)?;
    assert!(step.several(8, &known, false).is_err_and(|why| why.contains("states")));
    Ok(())
}

/// A graph whose attention adds a mask of all tokens that the caller gives, which is its last input.
fn with_mask(graph: &Graph, tokens: u64) -> Graph {
    let mut graph = graph.clone();
    let mask = Value::Input(graph.inputs.len());
    let element = graph.nodes.last().map_or(Element::F16, |node| node.element);
    graph.inputs.push(Input { buffer: graph.inputs.len(), element, len: tokens, is_constant: false });
    for node in &mut graph.nodes {
        let Compute::Attention(scores) = &mut node.compute else { continue };
        scores.masks.push(Mask::Added(1.));
        let queries = node.operands[0].dims.split_last().map(|(_, queries)| queries.to_vec()).unwrap_or_default();
        let mut dims: Vec<Dim> = queries.iter().map(|dim| Dim { len: dim.len, stride: 0 }).collect();
        dims.push(Dim { len: tokens, stride: 1 });
        node.operands.push(Operand { value: mask, first: 0, dims });
    }
    graph
}

#[test]
fn a_mask_that_the_caller_gives_has_all_places_and_is_the_same_for_all_tokens() -> Result<()> {
    for model in ["qwen2-f16", "llama-bf16"] {
        let [a, b, c] = graphs(model)?;
        let given = a.inputs.len();
        let counted = |is_given| vec![Counted { input: given, grows: Some([1, 1]), is_given }];
        let of = |is_given, graphs: [&Graph; 2], lengths: [u64; 2]| {
            let [x, y] = [0, 1].map(|at| with_mask(graphs[at], lengths[at] + 1));
            Growth::of([&x, &y], lengths, &Inputs { counted: counted(is_given), ..inputs() })
                .map_err(anyhow::Error::msg)
        };
        let growth = of(true, [&a, &b], [8, 9]).context(model)?;
        assert!(growth == of(true, [&a, &c], [8, 41])?, "{model}");
        let at = growth.sources.iter().position(|source| *source == Source::Given(given)).context("it is read")?;
        assert_eq!(growth.graph.inputs[at].len, 64, "{model}: as many places as there is capacity");
        // Keys and values are read at all places.
        assert_eq!((growth.caches.len(), growth.grown.len()), (0, 4), "{model}");
        let several = growth.several(8, &inputs(), true).map_err(anyhow::Error::msg).context(model)?;
        assert_eq!(several.graph.inputs[at].len, 64, "{model}: the same for all tokens");
        // Each token has its own end of the mask, which heads share.
        let hides =
            |node: &&Node| node.operands.first().is_some_and(|of| of.value == Value::Input(at)) && node.len == 8 * 64;
        assert_eq!(several.graph.nodes.iter().filter(hides).count(), 2, "{model}");
        // What the host uploads may differ from token to token.
        let uploaded = of(false, [&a, &b], [8, 9]).context(model)?;
        let known = Inputs { counted: counted(false), ..inputs() };
        assert!(uploaded.several(8, &known, false).is_err_and(|why| why.contains("host uploads")), "{model}");
    }
    Ok(())
}
