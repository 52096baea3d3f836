//! candle's kernels on a GPU beside what they are said to compute. Without one each test says that it skips.

use std::collections::BTreeSet;

use candle::quantized::{cuda::set_force_dmmv, GgmlDType, QMatMul, QTensor};
use candle::scalar::Scalar;
use candle::{DType, Device, Module, Result, Shape, Tensor, D};

use opara_plan::kernel_catalog::{KernelEntry, Means, ENTRIES, LINKED};

use super::*;
use crate::ops::BLOCK_TYPES;
use crate::rewrite::evaluate::{evaluate, Numbers};
use crate::test_device::gpu;

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INTEGERS: [DType; 3] = [DType::U8, DType::U32, DType::I64];

/// How far results of a type may be from double precision, relative to the largest.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        DType::F32 => 1e-5,
        DType::F64 => 1e-12,
        _ => 0.,
    }
}

/// Different numbers of both signs, which depend only on the shape.
fn waves(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    let all = (Tensor::arange(0f32, shape.elem_count() as f32, &Device::Cpu)? * 0.7)?.sin()?;
    ((all * 2.5)? + 0.1)?.reshape(shape)?.to_device(device)?.to_dtype(dtype)
}

/// Integers below a number.
fn integers(count: usize, below: u32, dtype: DType, device: &Device) -> Result<Tensor> {
    let all = (0..count as u32).map(|at| (at * 7 + at / 3) % below);
    Tensor::from_iter(all, &Device::Cpu)?.to_device(device)?.to_dtype(dtype)
}

fn largest(t: &Tensor) -> Result<f64> {
    t.to_dtype(DType::F64)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// Captures a module on these inputs. Each launch has a meaning, and what the meanings give, in their types and in double precision, is
/// what the module gives, but for the roundings of its type.
fn check(
    said: &str,
    inputs: &[Tensor],
    tolerance: f64,
    module: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let function: Function = Arc::new(module);
    let expected = function(inputs)?;
    let pass = WholePass::of(&function, inputs).map_err(|error| anyhow::anyhow!("{said}: {error}"))?;
    let given = pass.places.iter().enumerate().map(|(at, place)| {
        Ok(match place {
            Place::Argument(i) => inputs[*i].contiguous()?,
            _ => pass.copied(at)?.expect("it is no argument"),
        })
    });
    let given = given.collect::<crate::Result<Vec<_>>>()?;
    let launches = pass.launches.iter().map(|[name, _]| name.clone());
    LAUNCHED.lock().extend(launches);
    for arithmetic in [Arithmetic::Typed, Arithmetic::In(DType::F64)] {
        let got = evaluate(&pass.graph, &given, arithmetic, Numbers::All)
            .map_err(|error| anyhow::anyhow!("{said}, {arithmetic:?}: {error}"))?;
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let of = |t: &Tensor| t.to_dtype(DType::F64)?.flatten_all();
            let apart = largest(&(of(got)? - of(expected)?)?)? / largest(expected)?.max(1e-30);
            // Integers are what they are, unless what they follow from was rounded.
            anyhow::ensure!(apart <= tolerance, "{said}, output {at}, {arithmetic:?}: {apart:e} apart");
        }
    }
    Ok(())
}

/// The kernels that gave a value of a pass.
static LAUNCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Does all of these; says all that failed.
fn all(checks: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let failed: Vec<String> = checks.into_iter().filter_map(|of| of.err().map(|error| error.to_string())).collect();
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

fn elements_of_floats(device: &Device) -> anyhow::Result<()> {
    all(FLOATS.map(|dtype| {
        let x = [waves((4, 6), dtype, device)?, (waves((4, 6), dtype, device)? * 0.3)?.t()?.reshape((4, 6))?];
        check(&format!("elements in {dtype:?}"), &x, 4. * tolerance(dtype), |t| {
            let (x, y) = (&t[0], &t[1]);
            let above = (x.abs()? + 1.)?;
            let one = [
                x.sqr()?,
                above.sqrt()?,
                x.neg()?,
                above.recip()?,
                x.relu()?,
                x.exp()?,
                above.log()?,
                x.sin()?,
                x.cos()?,
                x.tanh()?,
                x.silu()?,
                x.gelu()?,
                x.gelu_erf()?,
                x.erf()?,
                x.ceil()?,
                x.floor()?,
                x.round()?,
                x.sign()?,
                candle_nn::ops::sigmoid(x)?,
                x.elu(0.3)?,
                above.powf(1.5)?,
                x.affine(0.7, -0.3)?,
            ];
            let two = [
                (x + y)?,
                (x - y)?,
                (x * y)?,
                (x / &above)?,
                x.minimum(y)?,
                x.maximum(y)?,
                x.t()?.contiguous()?,
                x.broadcast_add(&y.narrow(0, 1, 1)?)?,
                x.eq(y)?,
                x.ne(y)?,
                x.lt(y)?,
                x.le(y)?,
                x.gt(y)?,
                x.ge(y)?.where_cond(x, y)?,
                Tensor::full(0.5f32, (4, 6), x.device())?.to_dtype(x.dtype())?.add(x)?,
            ];
            Ok(one.into_iter().chain(two).collect())
        })
    }))
}

fn elements_of_integers_and_conversions(device: &Device) -> anyhow::Result<()> {
    let of_integers = INTEGERS.map(|dtype| {
        let x = [integers(24, 11, dtype, device)?, integers(24, 5, dtype, device)?];
        check(&format!("elements in {dtype:?}"), &x, 1e-6, move |t| {
            let (x, y) = (&t[0], &t[1]);
            let rows = x.reshape((4, 6))?;
            let floats = [DType::F32, DType::F64].map(|to| x.to_dtype(to));
            let [narrow, wide] = floats;
            Ok(vec![
                (x + y)?,
                (x * y)?,
                x.minimum(y)?,
                x.maximum(y)?,
                x.affine(3., 1.)?,
                x.lt(y)?,
                x.eq(y)?,
                x.ge(y)?.where_cond(x, y)?,
                x.where_cond(&narrow?, &y.to_dtype(DType::F32)?)?,
                (wide? * 0.5)?,
                x.to_dtype(DType::U8)?.to_dtype(DType::U32)?,
                rows.t()?.contiguous()?,
                rows.sum(1)?,
                rows.max(1)?,
                rows.min(1)?,
                rows.argmax(1)?,
                rows.argmin(1)?,
                Tensor::cat(&[&rows, &rows.narrow(1, 2, 3)?.contiguous()?], 1)?,
            ])
        })
    });
    let of_floats = FLOATS.map(|dtype| {
        let x = [waves(24, dtype, device)?.abs()?];
        check(&format!("from {dtype:?}"), &x, 4e-3, |t| {
            let to = [DType::F32, DType::F64, DType::U8, DType::U32, DType::F16];
            to.into_iter().map(|to| t[0].to_dtype(to)).collect()
        })
    });
    all(of_integers.into_iter().chain(of_floats))
}

fn rows(device: &Device) -> anyhow::Result<()> {
    let mut checks = Vec::new();
    for dtype in FLOATS {
        let tolerance = 4. * tolerance(dtype);
        let x = [waves((3, 40), dtype, device)?];
        checks.push(check(&format!("reductions in {dtype:?}"), &x, tolerance, |t| {
            let x = &t[0];
            let (sorted, order) = x.narrow(1, 0, 9)?.contiguous()?.sort_last_dim(true)?;
            Ok(vec![
                x.sum(1)?,
                x.sum(0)?,
                x.narrow(1, 3, 8)?.sum(1)?,
                x.max(1)?,
                x.min(0)?,
                x.argmax(1)?,
                x.argmin(0)?,
                sorted,
                order,
                x.narrow(1, 0, 9)?.contiguous()?.arg_sort_last_dim(false)?,
                x.cumsum(1)?,
            ])
        }));
        for columns in [40, 5000] {
            let x = [waves((3, columns), dtype, device)?];
            let (weight, bias) = (waves(columns, dtype, device)?, waves(columns, dtype, device)?);
            // Norms and softmax in f64 have constants, and sums, in f32.
            checks.push(check(&format!("norms of {columns} in {dtype:?}"), &x, tolerance.max(1e-5), move |t| {
                Ok(vec![
                    candle_nn::ops::softmax_last_dim(&t[0])?,
                    candle_nn::ops::rms_norm(&t[0], &weight, 1e-5)?,
                    candle_nn::ops::layer_norm(&t[0], &weight, &bias, 1e-5)?,
                ])
            }));
        }
        let angles = [waves((5, 4), dtype, device)?, waves((5, 4), dtype, device)?];
        let x = [waves((2, 3, 5, 8), dtype, device)?];
        checks.push(check(&format!("rotary embeddings in {dtype:?}"), &x, tolerance, move |t| {
            let [cos, sin] = &angles;
            let by_tokens = t[0].transpose(1, 2)?.contiguous()?;
            Ok(vec![
                candle_nn::rotary_emb::rope(&t[0], cos, sin)?,
                candle_nn::rotary_emb::rope_i(&t[0], cos, sin)?,
                candle_nn::rotary_emb::rope_thd(&by_tokens, cos, sin)?,
            ])
        }));
    }
    all(checks)
}

fn places_that_integers_name(device: &Device) -> anyhow::Result<()> {
    let mut checks = Vec::new();
    for dtype in FLOATS.into_iter().chain(INTEGERS) {
        for of_ids in INTEGERS {
            let new = match dtype.is_float() {
                true => waves((2, 3, 4), dtype, device)?,
                false => integers(24, 9, dtype, device)?.reshape((2, 3, 4))?,
            };
            let x = new.repeat((1, 2, 1))?;
            let (ids, each) = (integers(3, 5, of_ids, device)?, integers(24, 6, of_ids, device)?);
            let inputs = [x, new, ids, each.reshape((2, 3, 4))?];
            let tolerance = 4. * tolerance(dtype);
            checks.push(check(&format!("places by {of_ids:?} in {dtype:?}"), &inputs, tolerance, |t| {
                let [x, new, ids, each] = t else { candle::bail!("four inputs") };
                Ok(vec![
                    x.index_select(ids, 1)?,
                    x.gather(each, 1)?,
                    x.index_add(ids, new, 1)?,
                    x.scatter(each, new, 1)?,
                    x.scatter_add(each, new, 1)?,
                ])
            }));
        }
    }
    all(checks)
}

fn images(device: &Device) -> anyhow::Result<()> {
    let mut checks = Vec::new();
    for dtype in FLOATS {
        let tolerance = 4. * tolerance(dtype);
        let x = [waves((2, 3, 8, 6), dtype, device)?];
        // Weights that are not contiguous are for candle's own kernels.
        let weight = waves((3, 3, 3, 4), dtype, device)?.permute((3, 0, 1, 2))?;
        let of_line = waves((3, 3, 4), dtype, device)?.permute((2, 0, 1))?;
        let transposed = waves((3, 4, 3, 3), dtype, device)?;
        let line = waves((3, 4, 5), dtype, device)?;
        checks.push(check(&format!("images in {dtype:?}"), &x, tolerance, move |t| {
            let x = &t[0];
            let rows = x.narrow(3, 0, 1)?.squeeze(3)?;
            Ok(vec![
                x.conv2d(&weight, 1, 2, 1, 1)?,
                x.conv2d(&weight, 2, 1, 2, 1)?,
                rows.conv1d(&of_line, 1, 2, 1, 1)?,
                x.conv_transpose2d(&transposed, 1, 1, 2, 1)?,
                rows.contiguous()?.conv_transpose1d(&line, 0, 0, 2, 1, 1)?,
                rows.contiguous()?.conv_transpose1d(&line, 1, 1, 2, 2, 1)?,
                x.max_pool2d_with_stride((2, 3), (1, 2))?,
                x.avg_pool2d_with_stride((2, 2), (2, 1))?,
                x.upsample_nearest2d(11, 12)?,
                x.upsample_bilinear2d(11, 9, false)?,
                x.upsample_bilinear2d(3, 13, true)?,
                x.upsample_bilinear2d_with_scale(1.7, 2.3, false)?,
            ])
        }));
    }
    for dtype in [DType::U8, DType::U32] {
        let x = [integers(96, 7, dtype, device)?.reshape((1, 2, 8, 6))?];
        checks.push(check(&format!("images in {dtype:?}"), &x, 0., |t| {
            Ok(vec![t[0].max_pool2d(2)?, t[0].upsample_nearest2d(16, 9)?])
        }));
    }
    all(checks)
}

fn numbers_that_fill(device: &Device) -> anyhow::Result<()> {
    all(FLOATS.map(|dtype| {
        check(&format!("fills in {dtype:?}"), &[waves((4, 6), dtype, device)?], 0., move |t| {
            let ones = Tensor::ones((4, 6), dtype, t[0].device())?;
            let zeros = t[0].zeros_like()?;
            let parts = Tensor::zeros((4, 6), dtype, t[0].device())?;
            parts.const_set(Scalar::one(dtype))?;
            Ok(vec![(&t[0] * ones)?, (&t[0] + zeros)?, parts, Tensor::cat(&[&t[0], &t[0]], 1)?])
        })
    }))
}

/// A weight of rows of 256 elements.
fn weight(rows: usize, dtype: GgmlDType, device: &Device) -> Result<QTensor> {
    QTensor::quantize(&(waves((rows, 256), DType::F32, device)? * 0.05)?, dtype)
}

fn blocks(device: &Device) -> anyhow::Result<()> {
    let mut checks = Vec::new();
    for dtype in BLOCK_TYPES {
        // The few rows are rounded to eight bits.
        let product = QMatMul::from_qtensor(weight(96, dtype, device)?)?;
        for rows in [1, 4, 8, 9, 130] {
            let (x, product) = ([waves((rows, 256), DType::F32, device)?], product.clone());
            checks.push(check(&format!("{rows} rows by {dtype:?}"), &x, 0.03, move |t| {
                Ok(vec![product.forward(&t[0])?])
            }));
        }
        let table = weight(17, dtype, device)?;
        let ids = [integers(9, 17, DType::U32, device)?];
        checks.push(check(&format!("elements of {dtype:?}"), &ids, 2e-3, move |t| {
            let device = t[0].device();
            Ok(vec![table.embedding(&t[0])?, table.dequantize(device)?, table.dequantize_f16(device)?])
        }));
    }
    // By candle's older kernels, and products with the elements.
    set_force_dmmv(true);
    for dtype in BLOCK_TYPES {
        let product = QMatMul::from_qtensor(weight(96, dtype, device)?)?;
        for rows in [1, 5] {
            let (x, product) = ([waves((rows, 256), DType::F32, device)?], product.clone());
            let said = format!("{rows} rows by elements of {dtype:?}");
            checks.push(check(&said, &x, 0.03, move |t| Ok(vec![product.forward(&t[0])?])));
        }
    }
    set_force_dmmv(false);
    all(checks)
}

fn experts(device: &Device) -> anyhow::Result<()> {
    let (experts, columns, each) = (4usize, 64usize, 2usize);
    let mut checks = Vec::new();
    for items in [3usize, 40] {
        let ids = integers(items * each, experts as u32, DType::U32, device)?;
        let factors = waves(items * each, DType::F32, device)?;
        // Rows in the order of their experts.
        let (by_expert, order) = ids.reshape((1, ()))?.sort_last_dim(true)?;
        let (by_expert, order) = (by_expert.flatten_all()?, order.flatten_all()?);
        // Of Q8_0 candle's kernel for indices has no meaning, and of halves the one for rows in order.
        let blocks = [GgmlDType::Q8_0, GgmlDType::Q2K, GgmlDType::Q3K, GgmlDType::Q4K, GgmlDType::Q5K, GgmlDType::Q6K];
        for dtype in blocks {
            let of_experts = || -> Result<QTensor> {
                let weights = (waves((experts, columns, 256), DType::F32, device)? * 0.05)?;
                QTensor::quantize(&weights, dtype)
            };
            let (weights, ids) = (of_experts()?, ids.reshape((items, each))?);
            let x = [waves((items, 1, 256), DType::F32, device)?, ids];
            if dtype != GgmlDType::Q8_0 {
                checks.push(check(&format!("{items} items by experts of {dtype:?}"), &x, 0.03, move |t| {
                    Ok(vec![weights.indexed_moe_forward(&t[0], &t[1])?])
                }));
            }
            for has_factors in [false, true] {
                let weights = of_experts()?;
                let factors = has_factors.then(|| factors.clone());
                let rows = if has_factors { items * each } else { items };
                let x = [waves((rows, 256), DType::F32, device)?, order.clone(), by_expert.clone()];
                let said = format!("{rows} rows by experts of {dtype:?} in order");
                checks.push(check(&said, &x, 0.03, move |t| {
                    let factors = &factors;
                    let y =
                        candle_nn::moe::moe_gemm_gguf(&t[0], &weights, factors, &t[1], &t[2], each, false, DType::F16)?;
                    Ok(vec![y])
                }));
            }
        }
        let weights = (waves((experts, columns, 256), DType::BF16, device)? * 0.05)?;
        let x = [waves((items, 256), DType::BF16, device)?, order.clone(), by_expert.clone()];
        checks.push(check(&format!("{items} items by experts"), &x, 0.03, move |t| {
            Ok(vec![candle_nn::moe::moe_gemm(&t[0], &weights, &None, &t[1], &t[2], each, false)?])
        }));
    }
    all(checks)
}

/// Each row of a batch is multiplied by itself.
fn products_of_matrices(device: &Device) -> anyhow::Result<()> {
    all([DType::F16, DType::BF16, DType::F32].map(|dtype| {
        let x = [waves((2, 5, 6), dtype, device)?];
        check(&format!("products in {dtype:?}"), &x, 4. * tolerance(dtype), |t| {
            Ok(vec![t[0].matmul(&t[0].t()?)?, t[0].sum_keepdim(D::Minus1)?])
        })
    }))
}

/// Rows of the catalogue that no launch here is of, and why.
const NOT_LAUNCHED: &[(&str, &str)] = &[
    ("im2col1d_", "with cuDNN candle launches it nowhere"),
    ("im2col_", "with cuDNN candle launches it nowhere"),
    ("fill_", "candle launches it nowhere"),
    ("unormcdf_", "candle launches it nowhere"),
    ("mul_mat_vec_", "candle takes its newer kernels in all ten types"),
    ("mul_mat_q", "candle takes its newer kernels in all ten types"),
    ("moe_gemm_gguf_prefill_kernel", "it is for the rows of prompts, which no check here has"),
    ("flash_fwd_kernel", "candle-flash-attn is no dependency"),
    ("flash_fwd_splitkv_kernel", "candle-flash-attn is no dependency"),
];

#[test]
fn every_kernel_computes_what_it_means() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let checks: [fn(&Device) -> anyhow::Result<()>; 9] = [
        elements_of_floats,
        elements_of_integers_and_conversions,
        rows,
        places_that_integers_name,
        images,
        numbers_that_fill,
        blocks,
        experts,
        products_of_matrices,
    ];
    all(checks.map(|check| check(&device)))?;
    let launched = LAUNCHED.lock();
    // Launches that belong together are one value, which is the last one's.
    let has_value = |row: &&KernelEntry| {
        let is_part = matches!(
            row.means,
            Means::Rounding | Means::LinkedRounding | Means::LinkedRoundingOfMany | Means::LinkedMatrix | Means::Unused
        );
        !is_part && !NOT_LAUNCHED.iter().any(|(prefix, _)| row.prefix == *prefix)
    };
    let in_ptx = |row: &&KernelEntry| !launched.iter().any(|name| KernelEntry::of_any(name) == Some(row));
    let identifier = |row: &KernelEntry| row.prefix.rsplit("::").next().unwrap_or_default().to_string();
    let in_program = |row: &&KernelEntry| !launched.iter().any(|name| name.contains(&identifier(row)));
    let missing = ENTRIES.iter().filter(has_value).filter(in_ptx);
    let missing = missing.chain(LINKED.iter().filter(has_value).filter(in_program)).map(|row| row.prefix);
    let missing: Vec<&str> = missing.collect();
    anyhow::ensure!(missing.is_empty(), "kernels that no check launches: {missing:?}, of {launched:?}");
    Ok(())
}
