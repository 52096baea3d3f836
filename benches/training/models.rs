//! The models, unchanged from candle where it has them, with the loss of a batch.

use candle::{DType, Device, IndexOp, Module, Result, Tensor, Var, D};
use candle_nn::{embedding, layer_norm, linear, loss, ops, LayerNorm, Linear, VarBuilder, VarMap};
use candle_transformers::models::{bert, vit};
use opara_examples::variables;

// The example of training has this file by its path, too.
#[path = "images.rs"]
mod images;
#[path = "llama.rs"]
mod llama;

/// The loss of a batch.
pub type Loss = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A model of a published size, with random weights.
pub struct Model {
    pub name: &'static str,
    pub make: fn(VarBuilder) -> Result<Loss>,
    /// A batch of this number of items.
    pub batch: fn(usize, DType, &Device) -> Result<[Tensor; 2]>,
}

/// A part of the name of each weight that stays: no gradient reaches it.
pub const STAYS: &str = "stays";

/// The variables that are trained, in the order of their names.
pub fn trained(weights: &VarMap) -> Result<Vec<(String, Var)>> {
    let mut all = variables(weights)?;
    all.retain(|(name, _)| !name.split('.').any(|part| part == STAYS));
    Ok(all)
}

/// Tokens of BERT's texts.
const TOKENS: usize = 128;

/// Tokens of GPT-2's texts, and of its vocabulary.
const LONG: usize = 1024;
const WORDS: usize = 50_257;

/// A model for pictures of 32 by 32 pixels.
const fn of_pictures(name: &'static str, make: fn(VarBuilder) -> Result<Loss>) -> Model {
    Model {
        name,
        make,
        batch: |rows, dtype, device| Ok([numbers((rows, 3, 32, 32), dtype, device)?, kinds(rows, 10, device)?]),
    }
}

pub const MODELS: [Model; 9] = [
    Model {
        name: "mlp",
        make: mlp,
        batch: |rows, dtype, device| Ok([numbers((rows, 784), dtype, device)?, kinds(rows, 10, device)?]),
    },
    of_pictures("resnet18-32", |vb| classify(images::resnet18(vb)?)),
    of_pictures("resnet50-32", |vb| classify(images::resnet50(vb)?)),
    of_pictures("mobilenet2-32", |vb| classify(images::mobilenet2(vb)?)),
    of_pictures("efficientnet0-32", |vb| classify(images::efficientnet0(vb)?)),
    Model {
        name: "bert-base",
        make: bert_base,
        batch: |rows, _, device| {
            let ids = kinds(rows * TOKENS, 30_000, device)?.reshape((rows, TOKENS))?;
            Ok([ids, kinds(rows, 2, device)?])
        },
    },
    Model {
        name: "gpt2",
        make: gpt2,
        batch: |rows, _, device| {
            let ids = kinds(rows * LONG, WORDS, device)?;
            Ok([ids.reshape((rows, LONG))?, ids])
        },
    },
    Model {
        name: "llama-1b-lora",
        make: llama_lora,
        batch: |rows, _, device| {
            let ids = kinds(rows * llama::TOKENS, llama::WORDS, device)?;
            Ok([ids.reshape((rows, llama::TOKENS))?, ids])
        },
    },
    Model {
        name: "vit-small",
        make: vit_small,
        batch: |rows, dtype, device| Ok([numbers((rows, 3, 224, 224), dtype, device)?, kinds(rows, 1000, device)?]),
    },
];

/// f32 for types of 16 bits.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Numbers between -1 and 1.
fn numbers(shape: impl Into<candle::Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    let mut rng = fastrand::Rng::with_seed(1);
    let numbers = (0..shape.elem_count()).map(|_| 2. * rng.f32() - 1.);
    Tensor::from_iter(numbers, device)?.reshape(shape)?.to_dtype(dtype)
}

/// A kind for each row, below the number of kinds.
fn kinds(rows: usize, kinds: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_iter((0..rows).map(|row| (row * 7919 % kinds) as u32), device)
}

/// The cross entropy, in f32 at least.
fn entropy(logits: &Tensor, right: &Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![loss::cross_entropy(&logits.to_dtype(wide(logits.dtype()))?, right)?])
}

fn classify(net: images::Net) -> Result<Loss> {
    Ok(Box::new(move |batch| entropy(&net(&batch[0])?, &batch[1])))
}

fn mlp(vb: VarBuilder) -> Result<Loss> {
    let sizes = [784, 256, 256, 10];
    let layers = sizes.windows(2).enumerate().map(|(at, of)| linear(of[0], of[1], vb.pp(at)));
    let layers = layers.collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move |batch| {
        let (last, hidden) = layers.split_last().expect("three layers");
        let x = hidden.iter().try_fold(batch[0].clone(), |x, layer| layer.forward(&x)?.relu())?;
        entropy(&last.forward(&x)?, &batch[1])
    }))
}

/// BERT-base with a layer of two kinds on the first token. candle's own mask is NaN in 16 bits: zero times the least number of f32, which is
/// infinite there. So its encoder has a mask of zeros.
fn bert_base(vb: VarBuilder) -> Result<Loss> {
    let config = bert::Config { hidden_dropout_prob: 0., ..Default::default() };
    let of = vb.pp("bert.embeddings");
    let table = |rows: usize, name: &str| embedding(rows, config.hidden_size, of.pp(name));
    let (words, types) = (table(config.vocab_size, "word_embeddings")?, table(2, "token_type_embeddings")?);
    let places = table(config.max_position_embeddings, "position_embeddings")?;
    let norm = layer_norm(config.hidden_size, config.layer_norm_eps, of.pp("LayerNorm"))?;
    let encoder = bert::BertEncoder::load(vb.pp("bert.encoder"), &config)?;
    let head: Linear = linear(config.hidden_size, 2, vb.pp("head"))?;
    let mask = Tensor::zeros((1, 1, 1, TOKENS), vb.dtype(), vb.device())?;
    let numbers = Tensor::arange(0, TOKENS as u32, vb.device())?;
    Ok(Box::new(move |batch| {
        let x = (words.forward(&batch[0])? + types.forward(&batch[0].zeros_like()?)?)?;
        let x = norm.forward(&x.broadcast_add(&places.forward(&numbers)?)?)?;
        let hidden = encoder.forward(&x, &mask)?;
        entropy(&head.forward(&hidden.i((.., 0))?.contiguous()?)?, &batch[1])
    }))
}

/// GPT-2 of 124 million weights, which candle-transformers does not have.
fn gpt2(vb: VarBuilder) -> Result<Loss> {
    const WIDTH: usize = 768;
    const HEADS: usize = 12;
    struct Layer([LayerNorm; 2], [Linear; 4]);
    let (words, places) =
        (embedding(WORDS, WIDTH, vb.pp("wte"))?, embedding(LONG, WIDTH, vb.pp("wpe"))?.embeddings().clone());
    let mut layers = Vec::new();
    for at in 0..12 {
        let vb = vb.pp(at);
        let norm = |name: &str| layer_norm(WIDTH, 1e-5, vb.pp(name));
        let of = |from: usize, to: usize, name: &str| linear(WIDTH * from, WIDTH * to, vb.pp(name));
        let products = [of(1, 3, "qkv")?, of(1, 1, "out")?, of(1, 4, "up")?, of(4, 1, "down")?];
        layers.push(Layer([norm("ln_1")?, norm("ln_2")?], products));
    }
    let last = layer_norm(WIDTH, 1e-5, vb.pp("ln_f"))?;
    let hidden = (0..LONG * LONG).map(|at| if at % LONG > at / LONG { f32::NEG_INFINITY } else { 0. });
    let mask = Tensor::from_iter(hidden, vb.device())?.reshape((1, 1, LONG, LONG))?.to_dtype(vb.dtype())?;
    let heads = |x: &Tensor| -> Result<Tensor> {
        let (rows, tokens, _) = x.dims3()?;
        x.reshape((rows, tokens, HEADS, ()))?.transpose(1, 2)?.contiguous()
    };
    Ok(Box::new(move |batch| {
        let mut x = words.forward(&batch[0])?.broadcast_add(&places)?;
        for Layer([one, two], [qkv, out, up, down]) in &layers {
            let all = qkv.forward(&one.forward(&x)?)?.chunk(3, D::Minus1)?;
            let (q, k, v) = (heads(&all[0])?, heads(&all[1])?, heads(&all[2])?);
            let scores = (q.matmul(&k.t()?)? * ((WIDTH / HEADS) as f64).powf(-0.5))?.broadcast_add(&mask)?;
            let mixed = ops::softmax_last_dim(&scores)?.matmul(&v)?;
            x = (x + out.forward(&mixed.transpose(1, 2)?.flatten_from(2)?)?)?;
            x = (&x + down.forward(&up.forward(&two.forward(&x)?)?.gelu()?)?)?;
        }
        let logits = last.forward(&x)?.flatten_to(1)?.matmul(&words.embeddings().t()?)?;
        entropy(&logits, &batch[1])
    }))
}

/// Changes of rank 16 in Llama 3.2 1B.
fn llama_lora(vb: VarBuilder) -> Result<Loss> {
    let model = llama::llama(vb)?;
    Ok(Box::new(move |batch| entropy(&model(&batch[0])?, &batch[1])))
}

/// ViT-S/16.
fn vit_small(vb: VarBuilder) -> Result<Loss> {
    let config = vit::Config {
        hidden_size: 384,
        num_attention_heads: 6,
        intermediate_size: 1536,
        ..vit::Config::vit_base_patch16_224()
    };
    let model = vit::Model::new(&config, 1000, vb)?;
    Ok(Box::new(move |batch| entropy(&model.forward(&batch[0])?, &batch[1])))
}
