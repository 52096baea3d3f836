//! Layers of images, `(batch, channels, height, width)`, and of sequences of channels.

use candle::{Result, Tensor};
use candle_nn::ops::{sigmoid, silu};

use super::pass::Pass;

/// Some layers of images.
pub fn image(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for _ in 0..pass.rng.usize(2..6) {
        let y =
            match pass.named(&["convolution", "convolution", "pool", "upsampling", "transposed", "squeeze", "split"]) {
                "convolution" => block(pass, &x)?,
                "pool" => pool(pass, &x)?,
                "upsampling" if x.dim(2)? < 24 => {
                    let (h, w) = (x.dim(2)?, x.dim(3)?);
                    let [h, w] = pass.one_of(&[[2 * h, 2 * w], [h + 1, w + 3], [3 * h, w]]);
                    x.upsample_nearest2d(h, w)?
                }
                "transposed" if x.dim(2)? < 24 => transposed(pass, &x)?,
                "squeeze" => squeeze(pass, &x)?,
                "split" => {
                    let half = x.dim(1)? / 2;
                    let (one, other) = (x.narrow(1, 0, half)?, x.narrow(1, half, half)?);
                    Tensor::cat(&[&other.contiguous()?, &one.relu()?], 1)?
                }
                _ => {
                    pass.say("relu");
                    x.relu()?
                }
            };
        x = if y.dims() == x.dims() && pass.rng.bool() { (x + y)? } else { y };
    }
    Ok(x)
}

/// A convolution, a norm of channels and an activation, or some of them.
fn block(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let channels = x.dim(1)?;
    let (groups, out) = pass.one_of(&[(1, 16), (1, 24), (2, 16), (4, 24), (channels, channels), (channels, channels)]);
    let groups = if channels.is_multiple_of(groups) && out % groups == 0 { groups } else { 1 };
    let kernel = pass.one_of(&[1, 3, 3, 5]);
    let (padding, stride, dilation) =
        (pass.one_of(&[0, kernel / 2]), pass.one_of(&[1, 1, 2]), pass.one_of(&[1, 1, 1, 2]));
    let least = dilation * (kernel - 1) + 1;
    let is_small = x.dim(2)? + 2 * padding < least || x.dim(3)? + 2 * padding < least;
    let (kernel, padding) = if is_small { (1, 0) } else { (kernel, padding) };
    pass.say(format!("kernel {kernel} padding {padding} stride {stride} dilation {dilation} groups {groups} of {out}"));
    let deviation = 1. / ((channels / groups * kernel * kernel) as f64).sqrt();
    let weight = pass.weight((out, channels / groups, kernel, kernel), deviation)?;
    let mut y = x.conv2d(&weight, padding, stride, dilation, groups)?;
    let of_channels = |x: Tensor| x.reshape((1, (), 1, 1));
    if pass.rng.bool() {
        y = y.broadcast_add(&of_channels(pass.weight(out, 0.5)?)?)?;
    }
    match pass.named(&["no norm", "batch norm", "group norm"]) {
        "batch norm" => {
            let (mean, variance) = (pass.weight(out, 0.5)?, (pass.weight(out, 1.)?.abs()? + 0.5)?);
            y = y.broadcast_sub(&of_channels(mean)?)?.broadcast_div(&of_channels((variance + 1e-5)?.sqrt()?)?)?;
            y = y
                .broadcast_mul(&of_channels(pass.weight(out, 1.)?)?)?
                .broadcast_add(&of_channels(pass.weight(out, 0.5)?)?)?;
        }
        "group norm" => {
            let (batch, _, h, w) = y.dims4()?;
            let groups = y.reshape((batch, 4, out / 4 * h * w))?.to_dtype(pass.wide())?;
            let apart = groups.broadcast_sub(&groups.mean_keepdim(2)?)?;
            let variance = apart.sqr()?.mean_keepdim(2)?;
            let normed = apart.broadcast_div(&(variance + 1e-5)?.sqrt()?)?.to_dtype(pass.own())?;
            let normed = normed.reshape((batch, out, h, w))?;
            y = normed
                .broadcast_mul(&of_channels(pass.weight(out, 1.)?)?)?
                .broadcast_add(&of_channels(pass.weight(out, 0.5)?)?)?;
        }
        _ => {}
    }
    match pass.named(&["none", "relu", "silu", "gelu", "relu6"]) {
        "relu" => y.relu(),
        "silu" => silu(&y),
        "gelu" => y.gelu_erf(),
        "relu6" => y.clamp(0., 6.),
        _ => Ok(y),
    }
}

fn pool(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let (h, w) = (x.dim(2)?, x.dim(3)?);
    let (kernel, stride) = pass.one_of(&[(2, 2), (3, 2), (3, 1), (2, 1)]);
    if h < kernel || w < kernel {
        return Ok(x.clone());
    }
    let how = pass.named(&["max", "mean", "padded max", "padded mean"]);
    let padded = |number: f64| -> Result<Tensor> {
        let side = |x: &Tensor, dim: usize| {
            let edge = x.narrow(dim, 0, 1)?.zeros_like()?.affine(0., number)?;
            Tensor::cat(&[&edge, x, &edge], dim)
        };
        side(&side(x, 3)?, 2)
    };
    match how {
        "max" => x.max_pool2d_with_stride(kernel, stride),
        "mean" => x.avg_pool2d_with_stride(kernel, stride),
        "padded max" => padded(-6e4)?.max_pool2d_with_stride(kernel, stride),
        _ => x.pad_with_zeros(3, 1, 1)?.pad_with_zeros(2, 1, 1)?.avg_pool2d_with_stride(kernel, stride),
    }
}

fn transposed(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let channels = x.dim(1)?;
    let (kernel, stride, padding, more) = pass.one_of(&[(2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0)]);
    let out = pass.one_of(&[8, 16]);
    let weight = pass.weight((channels, out, kernel, kernel), 1. / ((channels * kernel) as f64).sqrt())?;
    let y = x.conv_transpose2d(&weight, padding, more, stride, 1)?;
    y.broadcast_add(&pass.weight(out, 0.5)?.reshape((1, (), 1, 1))?)
}

/// Channels scaled by what their means say.
fn squeeze(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let (batch, channels, _, _) = x.dims4()?;
    let mean = x.flatten_from(2)?.mean(2)?;
    let y = pass.linear(&mean, 8, true)?.relu()?;
    let gate = sigmoid(&pass.linear(&y, channels, true)?)?;
    x.broadcast_mul(&gate.reshape((batch, channels, 1, 1))?)
}

/// Convolutions of a sequence, `(batch, channels, length)`.
pub fn sequence(pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for _ in 0..pass.rng.usize(1..4) {
        let channels = x.dim(1)?;
        let y = match pass.named(&["convolution", "depthwise", "transposed", "dilated"]) {
            "transposed" if x.dim(2)? < 100 => {
                let (kernel, stride, padding) = pass.one_of(&[(4, 2, 1), (8, 4, 2), (3, 3, 0)]);
                let weight = pass.weight((channels, 12, kernel), 1. / ((channels * 2) as f64).sqrt())?;
                let of = |x: &Tensor| x.conv_transpose1d(&weight, padding, 0, stride, 1, 1);
                // Of several items without padding, candle's result on a CPU is wrong.
                let items = |x: &Tensor| x.chunk(x.dim(0)?, 0)?.iter().map(of).collect::<Result<Vec<_>>>();
                if pass.in_double || x.device().is_cpu() {
                    Tensor::cat(&items(&x)?, 0)?
                } else {
                    of(&x)?
                }
            }
            "depthwise" => x.conv1d(&pass.weight((channels, 1, 3), 0.6)?, 1, 1, 1, channels)?,
            "dilated" => {
                x.conv1d(&pass.weight((channels, channels, 3), 1. / ((channels * 3) as f64).sqrt())?, 2, 1, 2, 1)?
            }
            _ => {
                let stride = pass.one_of(&[1, 2]);
                x.conv1d(&pass.weight((16, channels, 3), 1. / ((channels * 3) as f64).sqrt())?, 1, stride, 1, 1)?
            }
        };
        let y = y.broadcast_add(&pass.weight((1, y.dim(1)?, 1), 0.5)?)?;
        let how = pass.named(&["none", "relu", "gelu", "snake"]);
        let y = match how {
            "relu" => y.relu()?,
            "gelu" => y.gelu_erf()?,
            "snake" => (&y + (&y * 2.)?.sin()?.sqr()?)?,
            _ => y,
        };
        x = if y.dims() == x.dims() && pass.rng.bool() { (x + y)? } else { y };
    }
    Ok(x)
}
