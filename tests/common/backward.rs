//! Operators' backward passes, held against differences of their results, and against f64.

use candle::{DType, Device, Result, Shape, Tensor, Var};
use opara_candle::ops::{self, Activation, CrossEntropy};

use super::same_bits;

type Function = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// An operator of several operands.
pub struct Case {
    name: String,
    /// In f32.
    operands: Vec<Tensor>,
    run: Function,
}

fn case(
    name: impl Into<String>,
    operands: impl IntoIterator<Item = Result<Tensor>>,
    run: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Result<Case> {
    Ok(Case { name: name.into(), operands: operands.into_iter().collect::<Result<_>>()?, run: Box::new(run) })
}

/// Numbers from -1 to 1 without any order: sums of products of ordered ones cancel.
fn noise(at: usize, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let mut state = at as u64 + 1;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.
    };
    Tensor::from_vec((0..shape.elem_count()).map(|_| next()).collect::<Vec<_>>(), shape, &Device::Cpu)
}

/// Numbers that all differ, by more than a difference of a derivative moves them.
fn distinct(shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let of = |at: usize| (at * 1_031 % 1_201) as f32 / 600. - 1.;
    Tensor::from_iter((0..shape.elem_count()).map(of), &Device::Cpu)?.reshape(shape)
}

/// Ids that repeat, of which some are at several places in a row.
fn ids(count: usize, below: usize, device: &Device) -> Result<Tensor> {
    Tensor::from_iter((0..count).map(|at| (at * at / 3 % below) as u32), device)
}

/// A mask that hides later keys.
fn causal(queries: usize, keys: usize) -> Result<Tensor> {
    let of = |at: usize| if at % keys > at / keys + keys - queries.min(keys) { f32::NEG_INFINITY } else { 0. };
    Tensor::from_iter((0..queries * keys).map(of), &Device::Cpu)?.reshape((queries, keys))
}

const ACTIVATIONS: [Activation; 5] =
    [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluErf, Activation::Silu];

/// Every operator with a backward pass, on rows of `columns` elements. Heads of attention have 8 elements.
pub fn cases(rows: usize, columns: usize) -> Result<Vec<Case>> {
    let mut all = Vec::new();
    let (x, vector) = (|at| noise(at, (rows, columns)), |at| noise(at, columns));
    for activation in ACTIVATIONS {
        // Far out, too, where derivatives are 0 and 1.
        let weight = || noise(2, (9, columns))? * (9. / (columns as f64).sqrt());
        let name = format!("linear, {activation:?}");
        let run = move |t: &[Tensor]| ops::linear_act(&t[0], &t[1], t.get(2), activation);
        all.push(case(&name, [x(0), weight(), noise(4, 9)], run)?);
        all.push(case(&name, [noise(0, (2, rows, columns)), weight()], run)?);
    }
    let norm = |eps| move |t: &[Tensor]| ops::layer_norm(&t[0], &t[1], &t[2], eps);
    all.push(case("layer_norm", [x(0), vector(2), vector(3)], norm(1e-5))?);
    all.push(case("layer_norm of equal elements", [x(0)?.ones_like(), vector(2), vector(3)], norm(0.01))?);
    all.push(case("rms_norm", [x(1), vector(3)], |t| ops::rms_norm(&t[0], &t[1], 1e-5))?);
    all.push(case("add_rms_norm", [x(1), x(4), vector(3)], |t| {
        let (sum, normed) = ops::add_rms_norm(&t[0], &t[1], &t[2], 1e-5)?;
        sum.tanh()? * normed
    })?);
    all.push(case("add_layer_norm", [x(0), x(5), vector(2), vector(3), vector(6)], |t| {
        ops::add_layer_norm(&t[0], Some(&t[4]), &t[1], &t[2], &t[3], 1e-5)
    })?);
    for (ignored, smoothing) in [(None, 0.), (Some(1), 0.), (Some(1), 0.1)] {
        let run = move |t: &[Tensor]| {
            let targets = ids(rows, columns, t[0].device())?;
            let loss = ops::cross_entropy(&t[0], &targets, CrossEntropy { ignored, smoothing })?;
            (loss * 3.)?.to_dtype(t[0].dtype())
        };
        all.push(case(format!("cross_entropy, {ignored:?}, {smoothing}"), [x(0)? * 5.], run)?);
    }
    all.push(case("embedding", [x(2)], move |t| {
        let ids = ids(3 * rows, rows + rows / 2 + 1, t[0].device())?;
        // The largest one stands for a row of zeros.
        let is_row = ids.lt(rows as u32)?;
        let ids = is_row.where_cond(&ids, &Tensor::full(u32::MAX, ids.shape(), ids.device())?)?;
        ops::embedding(&t[0], &ids.reshape((3, rows))?)
    })?);
    all.push(case("softmax", [x(0)? * 4.], |t| ops::softmax_last_dim(&t[0]))?);
    all.push(case("softmax with a bias", [noise(0, (3, rows, columns)), noise(2, (3, 1, columns))], |t| {
        ops::add_softmax(&t[0], Some(&t[1]))
    })?);
    all.push(case("dropout", [x(0)], |t| {
        let step = Tensor::new(&[5f64], t[0].device())?;
        ops::dropout(&t[0], ops::Dropout { part: 0.3, seed: 1 << 40 | 9, site: 4 }, &step)
    })?);
    let heads = |at, heads, seq| noise(at, (2, heads, seq, 8));
    all.push(case("attention", [heads(0, 4, rows), heads(1, 4, columns), heads(2, 4, columns)], |t| {
        ops::attention(&t[0], &t[1], &t[2], None, 0.4)
    })?);
    for (queries, keys) in [(4, 2), (4, 1), (8, 2), (12, 3)] {
        let operands = [heads(0, queries, rows), heads(1, keys, columns), heads(2, keys, columns)];
        let name = format!("attention of {queries} heads that share {keys} behind a mask");
        all.push(case(&name, operands, move |t| {
            let mask = causal(rows, columns)?.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
            ops::attention(&t[0], &t[1], &t[2], Some(&mask), 0.4)
        })?);
    }
    let bias = noise(3, (1, 4, rows, columns));
    all.push(case(
        "attention with a bias",
        [heads(0, 4, rows), heads(1, 4, columns), heads(2, 4, columns), bias],
        |t| ops::attention(&t[0], &t[1], &t[2], Some(&t[3]), 1.),
    )?);
    all.push(case("split_heads", [noise(0, (2, rows, 12)), noise(1, 12)], |t| {
        ops::split_heads(&t[0], Some(&t[1]), 3, 0.5)
    })?);
    all.push(case("merge_heads", [noise(0, (2, 3, rows, 4))], |t| ops::merge_heads(&t[0]))?);
    for (name, of) in [("rope", ops::rope as fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>), ("rope_i", ops::rope_i)]
    {
        all.push(case(name, [heads(0, 3, rows)], move |t| {
            let angles = noise(3, (rows, 4))?.to_dtype(t[0].dtype())?.to_device(t[0].device())?;
            of(&t[0], &angles.cos()?, &angles.sin()?)
        })?);
    }
    all.extend(images()?);
    Ok(all)
}

/// Operators of images, and what decoders compute of few rows.
fn images() -> Result<Vec<Case>> {
    use ops::{ConvConfig, PoolConfig};
    let x = || noise(0, (2, 4, 7, 5));
    let exact = ConvConfig::default().precision(ops::ProductPrecision::High);
    let config = exact.padding(1).stride(2).activation(Activation::Silu);
    let uneven = ops::Padding { top: 0, bottom: 1, left: 2, right: 1 };
    let grouped = exact.groups(2).padding(uneven).activation(Activation::Relu);
    let mut all = vec![
        case("conv2d", [x(), noise(3, (6, 4, 3, 3)), noise(1, 6)], move |t| {
            ops::conv2d(&t[0], &t[1], Some(&t[2]), &config)
        })?,
        case("add_conv2d", [x(), noise(2, (6, 2, 3, 3)), noise(1, (2, 6, 6, 6))], move |t| {
            ops::add_conv2d(&t[0], &t[1], None, &t[2], &grouped)
        })?,
        case("conv2d, depthwise", [x(), noise(3, (4, 1, 3, 2)), noise(1, 4)], move |t| {
            ops::conv2d(&t[0], &t[1], Some(&t[2]), &exact.groups(4).dilation(2).activation(Activation::Relu))
        })?,
        case("group_norm", [x(), noise(1, 4), noise(2, 4)], |t| {
            ops::group_norm(&t[0], &t[1], &t[2], 2, 1e-5, Activation::Silu)
        })?,
        case("global_avg_pool2d", [x()], |t| ops::global_avg_pool2d(&t[0]))?,
        case("upsample_nearest2d", [x()], |t| ops::upsample_nearest2d(&t[0], 14, 10))?,
        case("cat", [x(), noise(1, (2, 1, 7, 5))], |t| ops::cat(&[&t[0], &t[1]], 1))?,
        case("norm_linear", [noise(0, (3, 16)), noise(1, 16), noise(2, (5, 16)), noise(3, (3, 5))], |t| {
            ops::norm_linear(&t[0], Some((&t[1], 1e-5)), &t[2], None, Some(&t[3]))
        })?,
        case("norm_gated", [noise(0, (3, 16)), noise(1, 16), noise(2, (10, 16))], |t| {
            ops::norm_gated(&t[0], Some((&t[1], 1e-5)), &t[2], None, Activation::Silu)
        })?,
    ];
    for config in [PoolConfig::new(2, 2), PoolConfig::new(3, 2).padding(uneven), PoolConfig::new(3, 1).ceil(true)] {
        all.push(case(format!("max_pool2d, {config:?}"), [distinct((2, 4, 7, 5))], move |t| {
            ops::max_pool2d(&t[0], &config)
        })?);
        all.push(case(format!("avg_pool2d, {config:?}"), [x()], move |t| ops::avg_pool2d(&t[0], &config))?);
    }
    Ok(all)
}

/// The gradients of the operands in the weighted sum of the result's elements, whose weights are rounded to a type.
fn gradients(case: &Case, dtype: DType, device: &Device, rounded: DType) -> Result<Vec<Tensor>> {
    let variable = |t: &Tensor| Var::from_tensor(&t.to_dtype(dtype)?.to_device(device)?);
    let variables = case.operands.iter().map(variable).collect::<Result<Vec<_>>>()?;
    let tensors: Vec<_> = variables.iter().map(|variable| variable.as_tensor().clone()).collect();
    let found = weighted(&(case.run)(&tensors)?, rounded)?.backward()?;
    let of = |variable: &Var| found.get(variable).cloned().unwrap_or_else(|| panic!("{}: no gradient", case.name));
    Ok(variables.iter().map(of).collect())
}

fn weighted(y: &Tensor, rounded: DType) -> Result<Tensor> {
    let weights = noise(7, y.shape().clone())?.to_dtype(rounded)?.to_dtype(y.dtype())?.to_device(y.device())?;
    (y * weights)?.sum_all()
}

/// In f64 on a CPU every derivative is that of differences.
pub fn assert_gradients_are_differences() -> Result<()> {
    for case in cases(5, 6)?.into_iter().chain(cases(3, 9)?) {
        let cpu = &Device::Cpu;
        let operands = case.operands.iter().map(|t| t.to_dtype(DType::F64)).collect::<Result<Vec<_>>>()?;
        for (at, gradient) in gradients(&case, DType::F64, cpu, DType::F64)?.iter().enumerate() {
            let values = operands[at].flatten_all()?.to_vec1::<f64>()?;
            let found = gradient.flatten_all()?.to_vec1::<f64>()?;
            for (place, found) in found.into_iter().enumerate() {
                let beside = |by: f64| {
                    let mut values = values.clone();
                    values[place] += by;
                    let mut operands = operands.clone();
                    operands[at] = Tensor::from_vec(values, operands[at].shape().clone(), cpu)?;
                    weighted(&(case.run)(&operands)?, DType::F64)?.to_scalar::<f64>()
                };
                const STEP: f64 = 1e-4;
                // Of fourth order.
                let near = beside(STEP)? - beside(-STEP)?;
                let difference = (8. * near - (beside(2. * STEP)? - beside(-2. * STEP)?)) / (12. * STEP);
                let error = (found - difference).abs() / difference.abs().max(1.);
                assert!(error < 1e-6, "{}, operand {at}, element {place}: {found} for {difference}", case.name);
            }
        }
    }
    Ok(())
}

/// On a device gradients are those of f64 on a CPU, and have the same bits twice.
pub fn assert_gradients_are_accurate(device: &Device) -> Result<()> {
    let mut wrong = Vec::new();
    for (dtype, most) in [(DType::F32, 1e-5), (DType::F16, 1.5e-2), (DType::BF16, 3e-2)] {
        for (rows, columns) in [(5, 6), (33, 65), (150, 776), (1, 2051)] {
            for case in cases(rows, columns)? {
                let of = format!("{}, {dtype:?}, {rows} x {columns}", case.name);
                match differences(case, dtype, device) {
                    Ok(found) => {
                        for (at, (error, size, is_same)) in found.into_iter().enumerate() {
                            println!("{of}, operand {at}: {:.1e}", error / size);
                            let is_near = error <= most * size + 1e-5;
                            if !is_same || !is_near {
                                wrong.push(format!(
                                    "{of}, operand {at}: off by {error:.1e} of {size:.1e}, same bits: {is_same}"
                                ));
                            }
                        }
                    }
                    Err(error) => wrong.push(format!("{of}: {error}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// For each operand the error of its gradient, the gradient's size, and whether it has the same bits twice.
fn differences(case: Case, dtype: DType, device: &Device) -> Result<Vec<(f64, f64, bool)>> {
    let (first, second) = (gradients(&case, dtype, device, dtype)?, gradients(&case, dtype, device, dtype)?);
    let rounded = case.operands.iter().map(|t| t.to_dtype(dtype)?.to_dtype(DType::F64));
    let exact = Case { operands: rounded.collect::<Result<_>>()?, ..case };
    let exact = gradients(&exact, DType::F64, &Device::Cpu, dtype)?;
    let norm = |t: &Tensor| t.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>();
    let of = |((a, b), exact): ((&Tensor, &Tensor), &Tensor)| {
        let on_host = a.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        Ok((norm(&(on_host - exact)?)?, norm(exact)?, same_bits(a, b)?))
    };
    first.iter().zip(&second).zip(&exact).map(of).collect()
}
