//! Sentence similarity with BERT, replayed as one parallel schedule.
//!
//!     cargo run --release --features cudnn --example bert -- --model sentence-transformers/all-MiniLM-L6-v2
//!
//! On a GPU the model is candle-transformers', unchanged; `--native` selects opara-models' instead. On the CPU it is
//! always opara-models', because the executor there captures only operators that record themselves.

use std::process::ExitCode;

use anyhow::{ensure, Result};
use candle::{DType, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert as candle_bert;
use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};
use opara_examples::{exit_code, Model, Options, Show, Tokenizer, Tokens};
use opara_models::bert::{BertModel, Config, HiddenAct};
use opara_weights::Loaded;

const SENTENCES: [&str; 6] = [
    "A cat sleeps on the warm windowsill.",
    "Streams of a GPU can run kernels at the same time.",
    "The kitten dozes in the sun by the window.",
    "Parallel execution hides the latency of small kernels.",
    "She bakes bread every Sunday morning.",
    "On Sundays a fresh loaf comes out of her oven.",
];

/// Default tokens per sentence.
const SEQ_LEN: usize = 128;

/// Computes sentence similarity with BERT.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    show: Show,

    /// Tokens per sentence: shorter sentences are padded, longer ones truncated. Default: 128, or the model's maximum if
    /// that is smaller.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    seq_len: Option<usize>,

    /// Size of the model if there is no config.json.
    #[arg(long, value_enum, default_value = "base")]
    size: Size,

    /// Run opara-models' BERT on the GPU too.
    #[arg(long)]
    native: bool,

    /// Sentences to compare with each other.
    sentences: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Tiny,
    MiniLm,
    Base,
    Large,
}

impl Size {
    fn config(self) -> Config {
        match self {
            Size::Tiny => Config::tiny(),
            Size::MiniLm => Config::mini_lm(),
            Size::Base => Config::base(),
            Size::Large => Config::large(),
        }
    }
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let args = Args::parse();
    let options = &args.options;
    ensure!(args.sentences.len() != 1, "give two sentences or more: they are compared with each other");
    options.start();
    let mut out = options.out();

    let device = options.device();
    let checkpoint = options.checkpoint()?;
    let config = options.config(checkpoint.as_ref(), Config::of_checkpoint, || args.size.config())?;
    let positions = config.max_position_embeddings;
    let seq_len = args.seq_len.unwrap_or(positions.min(SEQ_LEN));
    ensure!(seq_len <= positions, "--seq-len {seq_len} is more than the model's {positions}");
    let tokenizer = Tokenizer::of(checkpoint.as_ref(), config.vocab_size, seq_len)?;

    let native = args.native || device.is_cpu();
    let check = |loaded: &Loaded| loaded.check(BertModel::is_head);
    let model = options.load(checkpoint.as_ref(), &device, |vb| load(native, vb, &config), check)?;

    let sentences: Vec<&str> = match args.sentences.as_slice() {
        [] => SENTENCES.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let batches = tokenizer.batches(&sentences, options.batch, &device)?;
    let batches = batches.into_iter().map(inputs).collect::<candle::Result<Vec<_>>>()?;
    let example = &batches[0];
    let fast = model.executor(options.builder(), example)?;
    let embeddings =
        batches.iter().map(|inputs| embed(&fast.call(inputs)?[0], &inputs[2])).collect::<Result<Vec<_>>>()?;
    let embeddings = Tensor::cat(&embeddings, 0)?.narrow(0, 0, sentences.len())?;
    let cosines = embeddings.matmul(&embeddings.t()?)?.to_vec2::<f32>()?;
    write!(out, "{}", similarities(&sentences, &cosines))?;
    if !native && options.dtype() == DType::F16 {
        eprintln!("candle-transformers' attention mask overflows in f16: --native takes a model whose mask does not");
    }

    args.show.run(out, options, &model, &fast, example)
}

/// Loads a function from token ids, token types and attention mask to the last hidden state.
fn load(native: bool, vb: VarBuilder, config: &Config) -> candle::Result<Model> {
    Ok(if native {
        let model = BertModel::load(vb, config)?;
        Model::new(move |inputs| Ok(vec![model.forward(&inputs[0], &inputs[1], Some(&inputs[2]))?]))
    } else {
        let model = candle_bert::BertModel::load(vb, &candle_config(config))?;
        Model::new(move |inputs| Ok(vec![model.forward(&inputs[0], &inputs[1], Some(&inputs[2]))?]))
    })
}

fn candle_config(config: &Config) -> candle_bert::Config {
    candle_bert::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        intermediate_size: config.intermediate_size,
        hidden_act: match config.hidden_act {
            HiddenAct::Gelu => candle_bert::HiddenAct::Gelu,
            HiddenAct::GeluNew => candle_bert::HiddenAct::GeluApproximate,
            HiddenAct::Relu => candle_bert::HiddenAct::Relu,
        },
        max_position_embeddings: config.max_position_embeddings,
        type_vocab_size: config.type_vocab_size,
        layer_norm_eps: config.layer_norm_eps,
        ..Default::default()
    }
}

/// The model's inputs: token ids, token types and attention mask.
fn inputs(Tokens { ids, mask }: Tokens) -> candle::Result<Vec<Tensor>> {
    let types = ids.zeros_like()?;
    Ok(vec![ids, types, mask])
}

/// Computes one embedding of length 1 per sentence: the mean of its tokens' hidden states, normalized.
fn embed(hidden: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let mask = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
    let sum = hidden.to_dtype(DType::F32)?.broadcast_mul(&mask)?.sum(1)?;
    let mean = sum.broadcast_div(&mask.sum(1)?)?;
    Ok(mean.broadcast_div(&mean.sqr()?.sum_keepdim(1)?.sqrt()?)?)
}

/// Lists all pairs, the most similar first.
fn similarities(sentences: &[&str], cosines: &[Vec<f32>]) -> String {
    let pairs = (0..sentences.len()).flat_map(|i| (i + 1..sentences.len()).map(move |j| (i, j)));
    let mut pairs: Vec<_> = pairs.map(|(i, j)| (cosines[i][j], sentences[i], sentences[j])).collect();
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs.iter().map(|(cosine, a, b)| format!("{cosine:>7.4}  {a} | {b}\n")).collect()
}
