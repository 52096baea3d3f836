//! Which rules of rewriting fit the recorded passes of candle-transformers' models, recorded on one NVIDIA H100 by
//! `--example zoo -- --unchanged accurate --traces FOLDER`.

use std::path::Path;

use anyhow::{Context, Result};
use opara_plan::rewrite::{matched, regions, rules, whole, Segments, Value};
use opara_plan::trace::Trace;

/// A model, how often each rule fits, and how many launches are in no run.
type Expected = (&'static str, &'static [(&'static str, usize)], usize);

const DINOV2: &[(&str, usize)] = &[
    ("convolution", 1),
    ("convolution-bias", 1),
    ("softmax", 12),
    ("attention", 12),
    ("copied-heads", 12),
    ("product-bias", 49),
    ("product-activation", 12),
    ("residual-norm", 1),
];

const BEIT: &[(&str, usize)] = DINOV2.split_at(7).0;

const BERT: &[(&str, usize)] = &[
    ("softmax", 12),
    ("attention", 12),
    ("copied-heads", 12),
    ("product-bias", 72),
    ("product-activation", 12),
    ("products-of-one", 12),
    ("residual-norm", 25),
];

const EVA2: &[(&str, usize)] = &[
    ("convolution", 1),
    ("convolution-bias", 1),
    ("softmax", 12),
    ("attention", 12),
    ("copied-heads", 12),
    ("product-bias", 73),
    ("product-concat", 12),
    ("gated-unit", 12),
];

const MOBILENET: &[(&str, usize)] = &[
    ("grouped-convolution", 15),
    ("convolution", 31),
    ("convolution-norm", 184),
    ("convolution-residual", 10),
    ("convolution-activation", 30),
    ("product-bias", 1),
    ("row-mean", 1),
];

const EFFICIENTNET: &[(&str, usize)] = &[
    ("grouped-convolution", 16),
    ("convolution", 65),
    ("convolution-padding", 17),
    ("convolution-bias", 32),
    ("convolution-norm", 196),
    ("convolution-residual", 9),
    ("convolution-activation", 16),
    ("pixel-product", 32),
    ("product-bias", 1),
    ("product-activation", 16),
    ("row-mean", 17),
];

const VIT: &[(&str, usize)] = &[
    ("convolution", 1),
    ("convolution-bias", 1),
    ("attention", 12),
    ("copied-heads", 12),
    ("product-bias", 73),
    ("product-activation", 12),
    ("products-of-one", 12),
];

const HIERA: &[(&str, usize)] = &[
    ("convolution", 1),
    ("convolution-bias", 1),
    ("softmax", 11),
    ("attention", 11),
    ("copied-heads", 11),
    ("product-bias", 52),
    ("product-activation", 12),
    ("residual-norm", 3),
];

const QWEN2: &[(&str, usize)] = &[
    ("attention", 24),
    ("grouped-heads", 24),
    ("product-bias", 72),
    ("gated-unit", 24),
    ("products-of-one", 24),
    ("residual-norm", 48),
];

const MODELS: &[Expected] = &[
    // Twelve layers of attention and two products with GELU between, each with a norm of a sum behind it; the mask is an input's, and
    // queries, keys and values are products of their own.
    ("bert-base-f16", BERT, 5),
    ("dinov2-small-f16", DINOV2, 3),
    // The bias of the scores is looked up in a table; the patches' weight is copied before.
    ("beit-base-f16", BEIT, 3),
    ("eva2-base-f16", EVA2, 3),
    ("vit-base-f32", VIT, 3),
    // Seven heads share keys and values, which are copied seven times; a rotary embedding is no part of a rule, and ends no run.
    ("qwen2-0.5b-f16", QWEN2, 1),
    // Heads of 96.
    ("hiera-tiny-f16", HIERA, 0),
    // One convolution a channel, 9,529 launches.
    ("mobilenetv4-small-f32", MOBILENET, 0),
    // Images between zeros, means of planes, and a squeeze of them that is multiplied with each channel; 18,518 launches.
    ("efficientnet-b0-f16", EFFICIENTNET, 0),
];

fn trace(model: &str) -> Result<Trace> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/meanings/{model}.trace"));
    Trace::load(&file).with_context(|| format!("{}", file.display()))
}

#[test]
fn rules_fit_recorded_models() -> Result<()> {
    for (model, expected, outside) in MODELS {
        let trace = trace(model)?;
        let inside: usize = regions(&trace).iter().map(|region| region.ops.len()).sum();
        let counted: Vec<_> = matched(&trace).into_iter().map(|(name, applied)| (name, applied.times)).collect();
        assert_eq!((&counted[..], trace.ops.len() - inside), (*expected, *outside), "{model}");
    }
    Ok(())
}

/// A rule that is left out fits nowhere, and no other rule fits more often for it but those that it takes nodes from.
#[test]
fn rules_that_are_left_out_fit_nowhere() -> Result<()> {
    for (model, ..) in MODELS {
        for region in regions(&trace(model)?) {
            for rule in rules::RULES.iter() {
                let fits = rules::apply(&mut region.graph.clone(), &[rule.name], &Default::default());
                assert!(fits.iter().all(|fit| fit.rule != rule.name), "{model}: {}", rule.name);
            }
        }
    }
    Ok(())
}

/// Where a rule is refused at every node it fits nowhere, and the graph stays as it was.
#[test]
fn rules_that_are_refused_everywhere_change_nothing() -> Result<()> {
    for (model, ..) in MODELS {
        for region in regions(&trace(model)?) {
            let nodes = || rules::RULES.iter().flat_map(|rule| (0..region.graph.nodes.len()).map(|at| (rule.name, at)));
            let mut graph = region.graph.clone();
            assert!(rules::apply(&mut graph, &[], &nodes().collect()).is_empty());
            assert_eq!(graph, region.graph, "{model}");
        }
    }
    Ok(())
}

/// Of all that are one graph: segments keep each value that a later one reads, and eight take less than half of the memory.
#[test]
fn segments_of_models_keep_the_values_that_later_ones_read() -> Result<()> {
    let graphs = MODELS.iter().map(|(model, ..)| Ok((model, whole(&trace(model)?, []).ok())));
    let graphs = graphs.collect::<Result<Vec<_>>>()?;
    let graphs: Vec<_> = graphs.into_iter().filter_map(|(model, whole)| Some((model, whole?.graph))).collect();
    assert!(graphs.len() * 2 > MODELS.len(), "{} models are one graph", graphs.len());
    for (model, graph) in graphs {
        let live = graph.live();
        for count in [1, 2, 8, 64] {
            let of = Segments::of(&graph, count);
            for range in of.ranges() {
                let is_there = |value| match value {
                    Value::Node(from) => range.contains(&from) || of.is_kept(from),
                    Value::Input(_) => true,
                };
                for at in range.clone().filter(|&at| live[at]) {
                    assert!(graph.nodes[at].operands.iter().all(|operand| is_there(operand.value)), "{model}: {at}");
                }
            }
        }
        let [one, eight] = [1, 8].map(|count| Segments::of(&graph, count).bytes());
        assert!(eight * 2 < one, "{model}: {eight} of {one} bytes");
    }
    Ok(())
}
