//! Nets for pictures of 32 by 32 pixels, with batch norms in training mode, which candle-transformers' nets do not have. All begin with a
//! convolution of 3 by 3 of stride 1.

use candle::{Module, ModuleT, Result, Tensor};
use candle_nn::{
    conv2d, conv2d_no_bias, linear, Activation, BatchNorm, Conv2d, Conv2dConfig, Init, Linear, VarBuilder,
};

/// From pictures to ten numbers each.
pub type Net = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// A convolution: its channels, and its kernel, stride and groups.
struct Shape([usize; 2], [usize; 3]);

/// A convolution and its norm.
struct Normed(Conv2d, BatchNorm);

impl Normed {
    fn new(Shape([from, to], [kernel, stride, groups]): Shape, vb: VarBuilder) -> Result<Self> {
        let config = Conv2dConfig { stride, padding: kernel / 2, groups, ..Default::default() };
        let (conv, vb) = (conv2d_no_bias(from, to, kernel, config, vb.pp("conv"))?, vb.pp("norm"));
        // candle's statistics have 32 bits where its images have 16.
        let wide = vb.clone().set_dtype(super::wide(vb.dtype()));
        let of = |vb: &VarBuilder, name: &str, number: f64| vb.get_with_hints(to, name, Init::Const(number));
        let [mean, variance] = [of(&wide, "running_mean", 0.)?, of(&wide, "running_var", 1.)?];
        let (weight, bias) = (of(&vb, "weight", 1.)?, of(&vb, "bias", 0.)?);
        Ok(Self(conv, BatchNorm::new(to, mean, variance, weight, bias, 1e-5)?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward_t(&self.0.forward(x)?, true)
    }
}

fn first(to: usize, vb: &VarBuilder) -> Result<Normed> {
    Normed::new(Shape([3, to], [3, 1, 1]), vb.pp("stem"))
}

/// The mean of each channel, and ten numbers of these.
fn ended(head: &Linear, x: &Tensor) -> Result<Tensor> {
    head.forward(&x.mean((2, 3))?)
}

pub fn resnet18(vb: VarBuilder) -> Result<Net> {
    resnet([2, 2, 2, 2], 1, vb)
}

pub fn resnet50(vb: VarBuilder) -> Result<Net> {
    resnet([3, 4, 6, 3], 4, vb)
}

/// Residual blocks; `stages` has the number of blocks of each stage. A block has two convolutions. If `wider` is above 1 it has three, the
/// last with `wider` times the channels.
fn resnet(stages: [usize; 4], wider: usize, vb: VarBuilder) -> Result<Net> {
    struct Block(Vec<Normed>, Option<Normed>);
    let stem = first(64, &vb)?;
    let (mut blocks, mut from) = (Vec::new(), 64);
    for (stage, count) in stages.into_iter().enumerate() {
        let (inside, to) = (64 << stage, (64 << stage) * wider);
        for at in 0..count {
            let (stride, vb) = (if at == 0 && stage > 0 { 2 } else { 1 }, vb.pp(format!("{stage}.{at}")));
            let is_other = stride > 1 || from != to;
            let shortcut = is_other.then(|| Normed::new(Shape([from, to], [1, stride, 1]), vb.pp("shortcut")));
            let shapes = match wider {
                1 => vec![Shape([from, to], [3, stride, 1]), Shape([to, to], [3, 1, 1])],
                _ => vec![
                    Shape([from, inside], [1, 1, 1]),
                    Shape([inside, inside], [3, stride, 1]),
                    Shape([inside, to], [1, 1, 1]),
                ],
            };
            let all = shapes.into_iter().enumerate().map(|(at, shape)| Normed::new(shape, vb.pp(at)));
            blocks.push(Block(all.collect::<Result<_>>()?, shortcut.transpose()?));
            from = to;
        }
    }
    let head = linear(from, 10, vb.pp("head"))?;
    Ok(Box::new(move |x| {
        let mut x = stem.forward(x)?.relu()?;
        for Block(all, shortcut) in &blocks {
            let beside = shortcut.as_ref().map_or_else(|| Ok(x.clone()), |shortcut| shortcut.forward(&x))?;
            let mut y = all[0].forward(&x)?;
            for normed in &all[1..] {
                y = normed.forward(&y.relu()?)?;
            }
            x = (y + beside)?.relu()?;
        }
        ended(&head, &x)
    }))
}

/// Blocks of one kind: how many times the channels they have inside, the channels behind them, their number, and the first one's stride
/// and kernel.
type Blocks = (usize, usize, usize, usize, usize);

pub fn mobilenet2(vb: VarBuilder) -> Result<Net> {
    const ALL: [Blocks; 7] = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 1, 3),
        (6, 32, 3, 2, 3),
        (6, 64, 4, 2, 3),
        (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3),
        (6, 320, 1, 1, 3),
    ];
    inverted(&ALL, Activation::Relu6, false, vb)
}

pub fn efficientnet0(vb: VarBuilder) -> Result<Net> {
    const ALL: [Blocks; 7] = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ];
    inverted(&ALL, Activation::Silu, true, vb)
}

/// Inverted residual blocks, squeezed and excited if that is asked for.
fn inverted(all: &[Blocks], activation: Activation, is_squeezed: bool, vb: VarBuilder) -> Result<Net> {
    struct Block {
        wide: Option<Normed>,
        inside: Normed,
        squeezed: Option<[Conv2d; 2]>,
        narrow: Normed,
        is_residual: bool,
    }
    let stem = first(32, &vb)?;
    let (mut blocks, mut from) = (Vec::new(), 32);
    for (kind, &(wider, to, count, stride, kernel)) in all.iter().enumerate() {
        for at in 0..count {
            let (stride, inside, vb) = (if at == 0 { stride } else { 1 }, from * wider, vb.pp(format!("{kind}.{at}")));
            let wide = (wider > 1).then(|| Normed::new(Shape([from, inside], [1, 1, 1]), vb.pp("wide")));
            let pixel = |from, to, name: &str| conv2d(from, to, 1, Conv2dConfig::default(), vb.pp(name));
            let squeezed = match is_squeezed {
                true => Some([pixel(inside, from / 4, "squeeze")?, pixel(from / 4, inside, "excite")?]),
                false => None,
            };
            blocks.push(Block {
                wide: wide.transpose()?,
                inside: Normed::new(Shape([inside, inside], [kernel, stride, inside]), vb.pp("inside"))?,
                squeezed,
                narrow: Normed::new(Shape([inside, to], [1, 1, 1]), vb.pp("narrow"))?,
                is_residual: stride == 1 && from == to,
            });
            from = to;
        }
    }
    let last = Normed::new(Shape([from, 1280], [1, 1, 1]), vb.pp("last"))?;
    let head = linear(1280, 10, vb.pp("head"))?;
    Ok(Box::new(move |x| {
        let mut x = activation.forward(&stem.forward(x)?)?;
        for Block { wide, inside, squeezed, narrow, is_residual } in &blocks {
            let mut y = match wide {
                Some(wide) => activation.forward(&wide.forward(&x)?)?,
                None => x.clone(),
            };
            y = activation.forward(&inside.forward(&y)?)?;
            if let Some([squeeze, excite]) = squeezed {
                let means = y.mean_keepdim(2)?.mean_keepdim(3)?;
                let gate = excite.forward(&activation.forward(&squeeze.forward(&means)?)?)?;
                y = y.broadcast_mul(&candle_nn::ops::sigmoid(&gate)?)?;
            }
            y = narrow.forward(&y)?;
            x = if *is_residual { (x + y)? } else { y };
        }
        ended(&head, &activation.forward(&last.forward(&x)?)?)
    }))
}
