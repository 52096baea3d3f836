//! Small products on a GPU.

use candle::{bail, DType, Result, Tensor};

use super::gradients::SmallGradients;
use super::launch::{self, of_blocks, FEW, MANY};
use crate::activation::Activation;
use crate::cuda::driver::kernels::{ptx, written, Capabilities};
use crate::cuda::operator::{takes, tensor_of, with_elements};

/// Multiplications of a product that is small: libraries need as long for fewer.
const MOST: usize = 1 << 24;

/// Rows, elements of a row, and rows of the weight, of operands whose product is small. `None` for others.
fn sizes(x: &Tensor, weight: &Tensor, others: &[Option<&Tensor>]) -> Result<Option<[usize; 3]>> {
    let is_known = x.dtype() == DType::F32 && takes(x, &[Some(weight)]) && takes(x, others);
    let ([rows, inner], [columns, of_weight]) = (<[usize; 2]>::from(x.dims2()?), <[usize; 2]>::from(weight.dims2()?));
    if inner != of_weight {
        bail!("rows of {:?} do not match a weight of {:?}", x.dims(), weight.dims())
    }
    let is_small = rows.saturating_mul(inner).saturating_mul(columns) <= MOST && rows * inner * columns > 0;
    // A grid has no more rows.
    let is_short = rows <= 1 << 16;
    if !(is_known && is_small && is_short) {
        return Ok(None);
    }
    let of = Capabilities::of(x.device().as_cuda_device()?, ptx::SMALL_PRODUCT)?;
    let shared = [FEW.shared(FEW.depth(inner.max(columns))), MANY.shared(MANY.depth(rows))];
    Ok(shared.iter().all(|&shared| of.has_shared(shared)).then_some([rows, inner, columns]))
}

/// Whether there is a kernel for the operands' product, which needs no longer than a library's.
pub(in crate::ops) fn is_small(x: &Tensor, weight: &Tensor) -> Result<bool> {
    Ok(sizes(x, weight, &[])?.is_some())
}

/// The product with its activations. `None` if the kernel does not support the operands, or a library is faster.
pub(super) fn product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    [before, after]: [Activation; 2],
) -> Result<Option<Tensor>> {
    let Some([rows, inner, columns]) = sizes(x, weight, &[bias])? else { return Ok(None) };
    let device = x.device().as_cuda_device()?;
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let y = with_elements([Some(&x.contiguous()?), Some(&weight.contiguous()?), bias.as_ref()], |operands| {
        let [Some(x), Some(weight), bias] = &operands else { bail!("a product without an operand") };
        written::<f32>(device, rows * columns, |y| {
            let ([down, across], depth) = (FEW.tiles([rows, columns]), FEW.depth(inner));
            launch::SmallProduct {
                rows,
                inner,
                columns,
                depth,
                before: before.code(),
                after: after.code(),
                x,
                weight,
                bias: bias.as_ref(),
                y: y.as_view_mut(),
            }
            .launch(device, "f32", ptx::SMALL_PRODUCT, of_blocks([across, down], FEW.shared(depth)))
        })
    })?;
    tensor_of(y, device, (rows, columns)).map(Some)
}

/// Its gradients, without an activation behind it. `None` as there.
pub(super) fn gradients(
    x: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    before: Activation,
    is_x_asked: bool,
) -> Result<Option<SmallGradients>> {
    let Some([rows, inner, columns]) = sizes(x, weight, &[Some(gradient)])? else { return Ok(None) };
    if gradient.dims() != [rows, columns] {
        bail!("a gradient of {:?} for {rows} rows of {columns}", gradient.dims())
    }
    let (device, before) = (x.device().as_cuda_device()?, before.code());
    let [down, across] = MANY.tiles([columns, inner]);
    let (depth, depth_of_x, tiles) = (MANY.depth(rows), FEW.depth(columns), FEW.tiles([rows, inner]));
    let (blocks, shared) = match is_x_asked {
        true => (down * across + tiles.iter().product::<usize>(), MANY.shared(depth).max(FEW.shared(depth_of_x))),
        false => (down * across, MANY.shared(depth)),
    };
    let config = of_blocks([blocks, 1], shared);
    let of_both = columns * inner + columns;
    let all = of_both + if is_x_asked { rows * inner } else { 0 };
    let operands = [&gradient.contiguous()?, &x.contiguous()?, &weight.contiguous()?];
    let y = with_elements(operands.map(Some), |operands| {
        let [Some(gradient), Some(x), Some(weight)] = &operands else { bail!("a product without an operand") };
        written::<f32>(device, all, |y| {
            let (variant, code, y) = ("f32", ptx::SMALL_PRODUCT, y.as_view_mut());
            if is_x_asked {
                let of =
                    launch::SmallGradients { rows, inner, columns, depth, depth_of_x, before, gradient, x, weight, y };
                return of.launch(device, variant, code, config);
            }
            let of = launch::SmallWeightGradient { rows, inner, columns, depth, before, gradient, x, y };
            of.launch(device, variant, code, config)
        })
    })?;
    let y = tensor_of(y, device, all)?;
    let of_x = is_x_asked.then(|| y.narrow(0, of_both, rows * inner)?.reshape((rows, inner))).transpose()?;
    Ok(Some(SmallGradients {
        x: of_x,
        weight: y.narrow(0, 0, columns * inner)?.reshape((columns, inner))?,
        bias: y.narrow(0, columns * inner, columns)?,
    }))
}

#[cfg(test)]
mod tests {
    use candle::{Device, Module};

    use super::*;
    use crate::ops::{activation_derivative, test_numbers};
    use crate::test_device::gpu;

    fn numbers(seed: usize, shape: (usize, usize)) -> Result<Tensor> {
        test_numbers::numbers(seed, shape, DType::F32)
    }

    fn check(name: &str, got: &Tensor, expected: &Tensor) -> Result<()> {
        let expected = expected.flatten_all()?;
        let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?;
        let most = expected.abs()?.max_all()?.to_scalar::<f64>()?.max(1.);
        let error = (got - expected)?.abs()?.max_all()?.to_scalar::<f64>()?;
        assert!(error <= 2e-6 * most, "{name}: off by {error:.1e} of {most}");
        Ok(())
    }

    /// Needs a GPU; skips without one.
    #[test]
    fn small_products_and_their_gradients_agree_with_f64() -> Result<()> {
        let Some(device) = gpu() else { return Ok(()) };
        let wide = |t: &Tensor| t.to_dtype(DType::F64);
        for (rows, inner, columns) in
            [(1, 1, 1), (64, 784, 256), (64, 256, 10), (70, 37, 52), (300, 20, 19), (3, 1500, 5)]
        {
            let (x, weight) = (numbers(1, (rows, inner))?, numbers(2, (columns, inner))?);
            let (bias, g) = (numbers(3, (1, columns))?.flatten_all()?, numbers(4, (rows, columns))?);
            let [on_x, on_weight, on_bias, on_g] =
                [&x, &weight, &bias, &g].map(|t| t.to_device(&device)).map(|t| t.expect("it is copied"));
            for before in [Activation::None, Activation::Relu, Activation::GeluErf] {
                let name = format!("{rows} x {inner} x {columns} of {before:?}");
                let of_x = before.forward(&wide(&x)?)?;
                let z = of_x.matmul(&wide(&weight)?.t()?)?;
                let expected = Activation::Silu.forward(&z.broadcast_add(&wide(&bias)?)?)?;
                let y = product(&on_x, &on_weight, Some(&on_bias), [before, Activation::Silu])?.expect("it is small");
                check(&name, &y, &expected)?;
                let got = gradients(&on_x, &on_weight, &on_g, before, true)?.expect("it is small");
                let slope = activation_derivative(&wide(&x)?, before)?;
                check(&name, &got.x.expect("it is asked for"), &(wide(&g)?.matmul(&wide(&weight)?)? * slope)?)?;
                check(&name, &got.weight, &wide(&g)?.t()?.matmul(&of_x)?)?;
                check(&name, &got.bias, &wide(&g)?.sum(0)?)?;
                let got = gradients(&on_x, &on_weight, &on_g, before, false)?.expect("it is small");
                assert!(got.x.is_none());
                check(&name, &got.weight, &wide(&g)?.t()?.matmul(&of_x)?)?;
                check(&name, &got.bias, &wide(&g)?.sum(0)?)?;
            }
        }
        Ok(())
    }
}
