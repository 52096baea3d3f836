//! Modules on the CPU whose host code reads values by plain candle code: by default none of them is replayed. And modules that read
//! none, which are.

use std::sync::{Arc, Mutex, OnceLock};

use candle::{DType, IndexOp, Result, Tensor, D};
use opara_candle::{nn, ops, Error, Mode, OnUncapturable, OparaExecutor};

use super::common::{assert_same, waves, CPU};

type Inputs<'a> = &'a [Tensor];
type Module = fn(Inputs) -> Result<Vec<Tensor>>;

/// Small positive numbers, three ids and a mode: what the executors are built on.
fn example() -> Result<Vec<Tensor>> {
    let x = (waves(0, (3, 4))?.abs()? * 0.1)?;
    Ok(vec![x, Tensor::new(&[1u32, 0, 2], CPU)?, Tensor::new(0u8, CPU)?])
}

/// Inputs on which each module takes another way than on the example.
fn others() -> Result<Vec<Vec<Tensor>>> {
    let [x, ids, mode] = <[Tensor; 3]>::try_from(example()?).expect("three");
    let mut all = Vec::new();
    for factor in [1., -1., 1e-9, 3.7, 250., -4e4, 1e12, f64::NAN, f64::INFINITY] {
        all.push(vec![(&x * factor)?, ids.clone(), mode.clone()]);
    }
    let first = (Tensor::arange(0f32, 12., CPU)?.reshape((3, 4))? * 900.)?;
    all.push(vec![first.clone(), ids.clone(), mode.clone()]);
    all.push(vec![(first * -1.)?, Tensor::new(&[2u32, 2, 2], CPU)?, Tensor::new(1u8, CPU)?]);
    all.push(vec![x.zeros_like()?, Tensor::new(&[0u32, 1, 0], CPU)?, Tensor::new(3u8, CPU)?]);
    Ok(all)
}

fn number(x: &Tensor) -> Result<f32> {
    x.to_dtype(DType::F32)?.flatten_all()?.get(0)?.to_scalar()
}

fn either(first: bool, x: &Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![if first { ops::relu(x)? } else { ops::tanh(x)? }])
}

/// Each reads a value in another way.
fn reading() -> Vec<(&'static str, Module)> {
    vec![
        ("a maximum", |t| either(t[0].abs()?.max_all()?.to_scalar::<f32>()? > 1., &t[0])),
        ("a large maximum", |t| either(t[0].max_all()?.to_scalar::<f32>()? > 1000., &t[0])),
        ("a maximum beyond 16 times the example's", |t| either(t[0].max_all()?.to_scalar::<f32>()? > 17., &t[0])),
        ("a minimum", |t| either(t[0].min_all()?.to_scalar::<f32>()? < -1e3, &t[0])),
        ("a sum", |t| either(t[0].sum_all()?.to_scalar::<f32>()? > 123.456, &t[0])),
        ("a mean", |t| either(t[0].mean_all()?.to_scalar::<f32>()? > 77.7, &t[0])),
        ("a mean in double precision", |t| {
            either(t[0].to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>()? > std::f64::consts::E * 10., &t[0])
        }),
        ("a variance", |t| either(t[0].var(D::Minus1)?.max_all()?.to_scalar::<f32>()? > 50., &t[0])),
        ("a norm", |t| either(t[0].sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>()? > 99., &t[0])),
        ("a small norm", |t| either(t[0].sqr()?.sum_all()?.to_scalar::<f32>()? < 1e-12, &t[0])),
        ("one element", |t| either(t[0].i((0, 1))?.to_scalar::<f32>()? > 10., &t[0])),
        ("one element by get", |t| either(t[0].get(1)?.get(2)?.to_scalar::<f32>()? > 10., &t[0])),
        ("one element through a transposed view", |t| either(t[0].t()?.i((3, 2))?.to_scalar::<f32>()? > 10., &t[0])),
        ("one element through a recorded view", |t| either(number(&ops::narrow(&t[0], 1, 1, 1)?)? > 10., &t[0])),
        ("one element of a recorded reshape", |t| either(number(&ops::reshape(&t[0], 12)?)?.is_nan(), &t[0])),
        ("a row as a vector", |t| either(t[0].i(0)?.to_vec1::<f32>()?.iter().any(|x| *x > 20.), &t[0])),
        ("all rows", |t| either(t[0].to_vec2::<f32>()?.concat().iter().sum::<f32>() > 40., &t[0])),
        ("three dimensions", |t| either(t[0].unsqueeze(0)?.to_vec3::<f32>()?[0][0][3] > 9., &t[0])),
        ("a vector of halves", |t| {
            either(t[0].to_dtype(DType::F16)?.flatten_all()?.to_vec1::<half::f16>()?[5].to_f32() > 30., &t[0])
        }),
        ("a vector of bfloats", |t| {
            either(t[0].to_dtype(DType::BF16)?.flatten_all()?.to_vec1::<half::bf16>()?[5].to_f32() < -30., &t[0])
        }),
        ("integers made of floats", |t| either(t[0].to_dtype(DType::I64)?.max_all()?.to_scalar::<i64>()? > 5, &t[0])),
        ("a comparison with a constant", |t| {
            either(t[0].gt(55.5)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? > 2, &t[0])
        }),
        ("a comparison with zero", |t| either(t[0].eq(0f64)?.min_all()?.to_scalar::<u8>()? == 1, &t[0])),
        ("a comparison of two", |t| {
            let larger = t[0].gt(&(t[0].ones_like()? * 7.)?)?;
            either(larger.max_all()?.to_scalar::<u8>()? == 1, &t[0])
        }),
        ("whether something is no number", |t| either(t[0].ne(&t[0])?.max_all()?.to_scalar::<u8>()? == 1, &t[0])),
        ("the index of the largest", |t| {
            let row = t[0].sum(1)?.argmax(0)?.to_scalar::<u32>()? as usize;
            Ok(vec![ops::narrow(&t[0], 0, row, 1)?])
        }),
        ("the index of the smallest", |t| either(t[0].argmin(1)?.get(2)?.to_scalar::<u32>()? == 0, &t[0])),
        ("an order", |t| either(t[0].arg_sort_last_dim(true)?.get(0)?.to_vec1::<u32>()?[0] == 0, &t[0])),
        ("sorted values", |t| either(t[0].sort_last_dim(false)?.0.get(0)?.to_vec1::<f32>()?[0] > 15., &t[0])),
        ("a scale", |t| Ok(vec![ops::affine(&t[0], f64::from(t[0].sum_all()?.to_scalar::<f32>()?) + 1., 0.)?])),
        ("a shift by its sign", |t| {
            let shift = f64::from(t[0].max_all()?.to_scalar::<f32>()?).clamp(-1e3, 20.).floor();
            Ok(vec![ops::affine(&t[0], 1., shift)?])
        }),
        ("a number of rounds", |t| {
            let (mut y, mut left) = (t[0].clone(), t[0].abs()?.mean_all()?.to_scalar::<f32>()?);
            while left > 8. && left.is_finite() {
                (y, left) = (ops::affine(&y, 0.5, 0.)?, left / 2.);
            }
            Ok(vec![ops::tanh(&y)?])
        }),
        ("a number of rounds by an intermediate value", |t| {
            let mut y = ops::affine(&t[0], 1., 0.)?;
            for _ in 0..40 {
                let largest = y.abs()?.max_all()?.to_scalar::<f32>()?;
                if largest.is_nan() || largest <= 4. {
                    break;
                }
                y = ops::affine(&y, 0.25, 0.)?;
            }
            Ok(vec![y])
        }),
        ("an intermediate value", |t| {
            let y = ops::sqr(&t[0])?;
            either(y.max_all()?.to_scalar::<f32>()? > 6e4, &y)
        }),
        ("a value behind a product", |t| {
            let y = ops::matmul(&t[0], &ops::transpose(&t[0], 0, 1)?)?;
            either(y.get(0)?.get(0)?.to_scalar::<f32>()? > 500., &y)
        }),
        ("a value behind a softmax", |t| {
            let y = ops::softmax_last_dim(&t[0])?;
            either(y.max_all()?.to_scalar::<f32>()? > 0.99, &t[0])
        }),
        ("an id", |t| Ok(vec![ops::narrow(&t[0], 0, t[1].get(0)?.to_scalar::<u32>()? as usize, 1)?])),
        ("all ids", |t| either(t[1].to_vec1::<u32>()?.iter().all(|id| *id == 2), &t[0])),
        ("the largest id", |t| either(t[1].max_all()?.to_scalar::<u32>()? == 1, &t[0])),
        ("a mode", |t| either(t[2].to_scalar::<u8>()? > 0, &t[0])),
        ("one of several modes", |t| match t[2].to_scalar::<u8>()? {
            3 => Ok(vec![ops::sqr(&t[0])?]),
            mode => either(mode == 1, &t[0]),
        }),
        ("a mode as a float", |t| either(t[2].to_dtype(DType::F32)?.to_scalar::<f32>()? > 2.5, &t[0])),
        ("a mode of an operator's result", |t| {
            let mode = ops::to_dtype(&t[2], DType::U32)?;
            either(mode.to_scalar::<u32>()? == 3, &t[0])
        }),
        ("an index of an operator's result", |t| {
            let at = ops::argmax(&ops::reshape(&t[0], (1, 12))?, 1)?;
            either(at.to_vec1::<u32>()?[0] == 11, &t[0])
        }),
        ("a copy on another place", |t| {
            let copy = t[0].copy()?;
            either(copy.max_all()?.to_scalar::<f32>()? > 33., &t[0])
        }),
        ("a concatenation", |t| {
            let both = Tensor::cat(&[&t[0], &t[0]], 0)?;
            either(both.max_all()?.to_scalar::<f32>()? > 33., &t[0])
        }),
        ("a gathered value", |t| {
            let rows = t[0].index_select(&t[1], 0)?;
            either(rows.i((2, 3))?.to_scalar::<f32>()? > 44., &t[0])
        }),
        ("text", |t| either(t[0].flatten_all()?.to_vec1::<f32>().map(|x| format!("{x:?}").contains("e12"))?, &t[0])),
        ("a read that may fail", |t| {
            either(t[0].max_all().and_then(|x| x.to_scalar::<f32>()).unwrap_or(0.) > 1000., &t[0])
        }),
        ("a read that may fail, of a small number", |t| {
            either(t[0].min_all().and_then(|x| x.to_scalar::<f32>()).unwrap_or(0.) < -2e4, &t[0])
        }),
        ("an intermediate read that may fail", |t| {
            let y = ops::affine(&t[0], 2., 1.)?;
            either(matches!(y.get(0)?.get(0)?.to_scalar::<f32>(), Ok(value) if value > 5e3), &y)
        }),
        ("an id that may fail", |t| either(t[1].max_all()?.to_scalar::<u32>().is_ok_and(|id| id > 50), &t[0])),
    ]
}

#[test]
fn a_module_that_reads_a_value_is_never_replayed_on_the_wrong_side() -> anyhow::Result<()> {
    let modules = reading();
    assert!(modules.len() >= 50);
    let (mut wrong_by_promise, example) = (0, example()?);
    for (name, module) in modules {
        let fast = OparaExecutor::builder().build_fn(module, &example)?;
        let report = fast.report();
        assert_eq!(report.mode(), Mode::Eager, "{name}: {report}");
        assert!(report.reason().is_some_and(|reason| !reason.is_empty()), "{name}");
        let promised = OparaExecutor::builder().assume_pure(true).verify(false).build_fn(module, &example)?;
        let mut is_wrong = false;
        for inputs in others()? {
            let Ok(expected) = module(&inputs) else { continue };
            assert_same(&fast.call(&inputs)?, &expected, name);
            is_wrong |= promised.call(&inputs).is_ok_and(|got| {
                got.iter()
                    .zip(&expected)
                    .any(|(a, b)| a.dims() != b.dims() || !super::common::same_bits(a, b).unwrap_or(false))
            });
        }
        wrong_by_promise += usize::from(is_wrong);
    }
    // The inputs do take other ways than the example.
    assert!(wrong_by_promise >= 40, "{wrong_by_promise}");
    Ok(())
}

#[test]
fn the_reason_says_what_to_do() -> anyhow::Result<()> {
    let module: Module = |t| either(t[0].max_all()?.to_scalar::<f32>()? > 1000., &t[0]);
    let fast = OparaExecutor::builder().build_fn(module, &example()?)?;
    let reason = fast.report().reason().unwrap_or_default().to_owned();
    assert!(reason.contains("reads values") && reason.contains("assume_pure"), "{reason}");
    let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error).build_fn(module, &example()?);
    assert!(matches!(strict, Err(Error::NotCapturable { .. })));
    let promised = OparaExecutor::builder().assume_pure(true).build_fn(module, &example()?)?;
    assert_eq!(promised.report().mode(), Mode::Threads);
    Ok(())
}

#[test]
fn modules_that_read_no_value_are_replayed() -> anyhow::Result<()> {
    let weight = waves(7, (4, 5))?;
    let (table, kept): (OnceLock<Tensor>, Mutex<Option<Tensor>>) = Default::default();
    let last = Arc::new(kept);
    let latest = last.clone();
    let module = move |t: Inputs| {
        // Shapes, dtypes and layouts, and whatever a weight holds, may be read.
        let rows = ops::narrow(&t[0], 0, 0, t[0].dim(0)? - 1)?;
        let scale = if weight.max_all()?.to_scalar::<f32>()? > 0. { 2. } else { 3. };
        let turned = ops::transpose(&rows, 0, 1)?;
        let turned = if turned.is_contiguous() { turned } else { ops::contiguous(&turned)? };
        let table = match table.get() {
            Some(table) => table.clone(),
            None => {
                let made = ops::tanh(&weight)?;
                table.get_or_init(|| made.clone());
                made
            }
        };
        let product = ops::matmul(&rows, &table)?;
        let heads = ops::reshape(&ops::affine(&t[0], scale, 0.)?, (1, 2, 3, 2))?;
        let attended = ops::attention(&heads, &heads, &heads, None, 1.)?;
        *latest.lock().expect("no panic holds it") = Some(product.clone());
        Ok(vec![
            ops::linear(&turned, &ops::constant("ones", || Tensor::ones((3, 2), DType::F32, CPU))?, None)?,
            product,
            ops::merge_heads(&attended)?,
            ops::to_dtype(&ops::embedding(&weight, &t[1])?, DType::F64)?,
        ])
    };
    let module = Arc::new(module);
    let run = module.clone();
    let fast = OparaExecutor::builder().build_fn(move |t| run(t), &example()?)?;
    let report = fast.report();
    assert_eq!((report.mode(), &report.reason()), (Mode::Threads, &None), "{report}");
    for inputs in others()? {
        assert_same(&fast.call(&inputs)?, &module(&inputs)?, "a module that reads no value");
    }
    let kept = last.lock().expect("no panic holds it").clone();
    assert!(kept.is_some_and(|kept| kept.to_vec2::<f32>().is_ok()));
    Ok(())
}

#[test]
fn a_step_that_reads_its_position_runs_eagerly() -> anyhow::Result<()> {
    let step = |x: Inputs, state: &Vec<Tensor>| {
        let at = state[0].get(0)?.to_scalar::<u32>()?;
        ops::assign(&state[1], &ops::affine(&x[0], 1., f64::from(u8::from(at > 100)))?)?;
        ops::advance(&state[0], 60)?;
        Ok(vec![state[1].clone()])
    };
    let state = || Ok::<_, candle::Error>(vec![Tensor::zeros(1, DType::U32, CPU)?, Tensor::zeros(3, DType::F32, CPU)?]);
    let (x, mut own) = ([Tensor::ones(3, DType::F32, CPU)?], state()?);
    let fast = OparaExecutor::builder().build_step(step, &x, &own)?;
    assert_eq!(fast.report().mode(), Mode::Eager, "{}", fast.report());
    let expected = state()?;
    for _ in 0..4 {
        assert_same(&fast.step(&x, &mut own)?, &step(&x, &expected)?, "a step");
    }
    Ok(())
}

#[test]
fn layers_and_caches_read_no_value() -> anyhow::Result<()> {
    let vb = opara_weights::seeded(3, DType::F32, CPU);
    let (up, norm) = (nn::linear(4, 4, vb.pp("up"))?.packed()?, nn::layer_norm(4, 1e-5, vb.pp("norm"))?);
    let cache = nn::KvCache::new(1, (1, 1, 4), 16, DType::F32, CPU)?;
    let step = move |x: Inputs, cache: &nn::KvCache| {
        let x = norm.forward_add(&up.forward_act(&x[0], ops::Activation::Gelu)?, None, &x[0])?;
        let (k, v) = cache.append(0, &x, &x)?;
        let mask = cache.mask(x.dim(2)?, Some(4))?;
        cache.advance(x.dim(2)?)?;
        Ok(vec![ops::attention(&x, &k, &v, Some(&mask), 0.5)?])
    };
    let x = [ops::reshape(&waves(1, (3, 4))?, (1, 1, 3, 4))?];
    let fast = OparaExecutor::builder().build_step(step, &x, &cache)?;
    assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Threads, None));
    Ok(())
}
