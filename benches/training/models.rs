//! The models, unchanged from candle where it has them, with the loss of a batch.

use candle::{DType, Device, IndexOp, Module, ModuleT, Result, Tensor};
use candle_nn::{batch_norm, conv2d_no_bias, linear, loss, BatchNorm, Conv2d, Conv2dConfig, Linear, VarBuilder};
use candle_transformers::models::{bert, vit};

/// The loss of a batch.
pub type Loss = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// A model of a published size, with random weights.
pub struct Model {
    pub name: &'static str,
    pub make: fn(VarBuilder) -> Result<Loss>,
    /// A batch of this number of items.
    pub batch: fn(usize, DType, &Device) -> Result<[Tensor; 2]>,
}

/// Tokens of BERT's texts.
const TOKENS: usize = 128;

pub const MODELS: [Model; 4] = [
    Model {
        name: "mlp",
        make: mlp,
        batch: |rows, dtype, device| Ok([numbers((rows, 784), dtype, device)?, kinds(rows, 10, device)?]),
    },
    Model {
        name: "resnet18-32",
        make: resnet18,
        batch: |rows, dtype, device| Ok([numbers((rows, 3, 32, 32), dtype, device)?, kinds(rows, 10, device)?]),
    },
    Model {
        name: "bert-base",
        make: bert_base,
        batch: |rows, _, device| {
            let ids = kinds(rows * TOKENS, 30_000, device)?.reshape((rows, TOKENS))?;
            Ok([ids, kinds(rows, 2, device)?])
        },
    },
    Model {
        name: "vit-small",
        make: vit_small,
        batch: |rows, dtype, device| Ok([numbers((rows, 3, 224, 224), dtype, device)?, kinds(rows, 1000, device)?]),
    },
];

/// Numbers between -1 and 1.
fn numbers(shape: impl Into<candle::Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    let numbers = (0..shape.elem_count()).map(|at| ((at * 7919 % 10_007) as f32 / 5_003.5) - 1.);
    Tensor::from_iter(numbers, device)?.reshape(shape)?.to_dtype(dtype)
}

/// A kind for each row, below the number of kinds.
fn kinds(rows: usize, kinds: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_iter((0..rows).map(|row| (row * 7919 % kinds) as u32), device)
}

/// The cross entropy, in f32.
fn entropy(logits: &Tensor, right: &Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![loss::cross_entropy(&logits.to_dtype(DType::F32)?, right)?])
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

/// A convolution and its norm, in training mode.
struct Normed(Conv2d, BatchNorm);

impl Normed {
    fn new(from: usize, to: usize, kernel: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig { stride, padding: kernel / 2, ..Default::default() };
        Ok(Self(conv2d_no_bias(from, to, kernel, config, vb.pp("conv"))?, batch_norm(to, 1e-5, vb.pp("norm"))?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward_t(&self.0.forward(x)?, true)
    }
}

/// ResNet-18 for pictures of 32 by 32 pixels: a first convolution of 3 by 3 and no pool, and norms in training mode, which
/// candle-transformers' does not have.
fn resnet18(vb: VarBuilder) -> Result<Loss> {
    struct Block([Normed; 2], Option<Normed>);
    let stem = Normed::new(3, 64, 3, 1, vb.pp("stem"))?;
    let mut blocks = Vec::new();
    let mut from = 64;
    for (stage, to) in [64, 128, 256, 512].into_iter().enumerate() {
        for at in 0..2 {
            let (stride, vb) = (if at == 0 && stage > 0 { 2 } else { 1 }, vb.pp(format!("{stage}.{at}")));
            let shortcut = (stride > 1).then(|| Normed::new(from, to, 1, stride, vb.pp("shortcut"))).transpose()?;
            let two = [Normed::new(from, to, 3, stride, vb.pp("one"))?, Normed::new(to, to, 3, 1, vb.pp("two"))?];
            blocks.push(Block(two, shortcut));
            from = to;
        }
    }
    let head = linear(512, 10, vb.pp("head"))?;
    Ok(Box::new(move |batch| {
        let mut x = stem.forward(&batch[0])?.relu()?;
        for Block([one, two], shortcut) in &blocks {
            let beside = shortcut.as_ref().map_or_else(|| Ok(x.clone()), |shortcut| shortcut.forward(&x))?;
            x = (two.forward(&one.forward(&x)?.relu()?)? + beside)?.relu()?;
        }
        entropy(&head.forward(&x.mean((2, 3))?)?, &batch[1])
    }))
}

/// BERT-base with a layer of two kinds on the first token.
fn bert_base(vb: VarBuilder) -> Result<Loss> {
    let config = bert::Config { hidden_dropout_prob: 0., ..Default::default() };
    let model = bert::BertModel::load(vb.pp("bert"), &config)?;
    let head: Linear = linear(config.hidden_size, 2, vb.pp("head"))?;
    Ok(Box::new(move |batch| {
        let hidden = model.forward(&batch[0], &batch[0].zeros_like()?, None)?;
        entropy(&head.forward(&hidden.i((.., 0))?.contiguous()?)?, &batch[1])
    }))
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
