//! Modules on the CPU whose host code learns of values without a word: it goes on where a read fails, prints tensors, looks at memory or at
//! the shape of a result.

use std::sync::{Arc, Mutex};

use candle::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};
use opara_candle::{ops, Error, Mode, OparaExecutor};

use super::common::{assert_same, same_bits, waves, CPU};

type Inputs<'a> = &'a [Tensor];
type Module = fn(Inputs) -> Result<Vec<Tensor>>;

/// Small positive numbers, three ids and a mode.
fn example() -> Result<Vec<Tensor>> {
    Ok(vec![(waves(0, (3, 4))?.abs()? * 0.1)?, Tensor::new(&[1u32, 0, 2], CPU)?, Tensor::new(0u8, CPU)?])
}

/// Inputs on which each module takes another way than on the example.
fn others() -> Result<Vec<Vec<Tensor>>> {
    let rising = (Tensor::arange(0f32, 12., CPU)?.reshape((3, 4))? * 100.)?;
    let mut all = Vec::new();
    for (factor, id) in [1., -1., 1e-9, 3.7, 250., -4e4, 1e12, f64::NAN, f64::INFINITY]
        .into_iter()
        .zip([0u32, 1, 2].into_iter().cycle())
    {
        for x in [&example()?[0], &rising] {
            all.push(vec![(x * factor)?, Tensor::new(&[id; 3], CPU)?, Tensor::new(id as u8 + 1, CPU)?]);
        }
    }
    Ok(all)
}

fn either(first: bool, x: &Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![if first { ops::relu(x)? } else { ops::tanh(x)? }])
}

/// Is there such a number in memory that can be read?
fn first_that(x: &Tensor, is: impl Fn(f32) -> bool) -> bool {
    match &*x.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::F32(values)) => values.iter().copied().any(is),
        _ => false,
    }
}

/// Says whether there is no number in what it can read.
struct Peek(Arc<Mutex<bool>>);

impl CustomOp1 for Peek {
    fn name(&self) -> &'static str {
        "peek"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let found = matches!(x, CpuStorage::F32(values) if values.iter().any(|x| x.is_nan()));
        *self.0.lock().expect("no panic holds it") = found;
        Ok((x.clone(), layout.shape().clone()))
    }
}

fn reading() -> Vec<(&'static str, Module)> {
    vec![
        ("one id that may fail", |t| either(t[1].get(1)?.to_scalar::<u32>().is_ok_and(|id| id == 2), &t[0])),
        ("a mode that may fail", |t| match t[2].to_scalar::<u8>().unwrap_or(0) {
            1 => Ok(vec![ops::sqr(&t[0])?]),
            mode => either(mode == 3, &t[0]),
        }),
        ("a band that may fail", |t| {
            let x = t[0].get(2)?.get(3).and_then(|x| x.to_scalar::<f32>()).unwrap_or(0.);
            either((10. ..20_000.).contains(&x), &t[0])
        }),
        ("no number, or a read that may fail", |t| {
            either(t[0].sum_all().and_then(|x| x.to_scalar::<f32>()).unwrap_or(0.).is_nan(), &t[0])
        }),
        ("what a tensor prints", |t| either(t[0].to_string().contains("NaN"), &t[0])),
        ("what a debugger sees", |t| either(format!("{:?}", t[0].get(0)?.get(1)?).contains("NaN"), &t[0])),
        ("what a debugger sees of ids", |t| either(format!("{:?}", t[1]).contains("2, 2, 2"), &t[0])),
        ("its memory", |t| either(first_that(&t[0], |x| (10. ..20_000.).contains(&x)), &t[0])),
        ("its memory, by an operator of one's own", |t| {
            let found = Arc::new(Mutex::new(false));
            t[0].apply_op1_no_bwd(&Peek(found.clone()))?;
            let found = *found.lock().expect("no panic holds it");
            either(found, &t[0])
        }),
        ("a copy of its bytes", |t| {
            let file = tempfile::NamedTempFile::new()?;
            t[0].save_safetensors("x", file.path())?;
            either(std::fs::read(file.path())?.windows(4).any(|bytes| bytes == f32::INFINITY.to_le_bytes()), &t[0])
        }),
        ("a thread's answer", |t| {
            let x = t[0].clone();
            let read = move || x.max_all().and_then(|x| x.to_scalar::<f32>()).unwrap_or(0.);
            let answer = std::thread::spawn(read).join().map_err(|_| candle::Error::Msg("a panic".into()))?;
            either((10. ..20_000.).contains(&answer), &t[0])
        }),
    ]
}

#[test]
fn a_module_that_goes_on_where_a_read_fails_is_never_replayed_on_the_wrong_side() -> anyhow::Result<()> {
    let example = example()?;
    for (name, module) in reading() {
        let fast = OparaExecutor::builder().build_fn(module, &example)?;
        let report = fast.report();
        assert_eq!(report.mode(), Mode::Eager, "{name}: {report}");
        let promised = OparaExecutor::builder().assume_pure(true).verify(false).build_fn(module, &example)?;
        let mut is_wrong = false;
        for inputs in others()? {
            let expected = module(&inputs)?;
            assert_same(&fast.call(&inputs)?, &expected, name);
            is_wrong |= !same_bits(&promised.call(&inputs)?[0], &expected[0])?;
        }
        assert!(is_wrong, "{name} takes the same way everywhere");
    }
    Ok(())
}

/// The large elements.
fn large_ones(x: &Tensor) -> Result<Tensor> {
    ops::custom("large_ones", &[x], |t| {
        let large: Vec<f32> = t[0].flatten_all()?.to_vec1::<f32>()?.into_iter().filter(|x| *x > 1000.).collect();
        Tensor::new(large, CPU)
    })
}

fn is_large(x: &Tensor) -> Result<bool> {
    Ok(x.max_all()?.to_scalar::<f32>()? > 1000.)
}

/// An operator whose result has another shape, dtype or layout for other values is replayed until it does.
#[test]
fn results_of_another_shape_are_not_replayed() -> anyhow::Result<()> {
    let modules: [(&str, Module); 5] =
        [
            ("a branch on a length", |t| either(large_ones(&t[0])?.dim(0)? > 2, &t[0])),
            ("a length as a number", |t| Ok(vec![ops::affine(&t[0], 1., large_ones(&t[0])?.dim(0)? as f64)?])),
            ("a length of an output", |t| Ok(vec![ops::tanh(&large_ones(&t[0])?)?])),
            ("a branch on a dtype", |t| {
                let y = ops::custom("wide", &[&t[0]], |t| {
                    if is_large(t[0])? {
                        t[0].to_dtype(DType::F64)
                    } else {
                        t[0].copy()
                    }
                })?;
                either(y.dtype() == DType::F64, &t[0])
            }),
            ("a branch on a layout", |t| {
                let y = ops::custom("turned", &[&t[0]], |t| {
                    if is_large(t[0])? {
                        t[0].t()?.contiguous()?.t()
                    } else {
                        t[0].copy()
                    }
                })?;
                either(y.is_contiguous(), &t[0])
            }),
        ];
    for (name, module) in modules {
        let fast = OparaExecutor::builder().build_fn(module, &example()?)?;
        assert_eq!(fast.report().mode(), Mode::Threads, "{name}");
        for inputs in others()? {
            assert_same(&fast.call(&inputs)?, &module(&inputs)?, name);
            fast.call_zero_copy(&inputs, |outputs| assert_same(outputs, &module(&inputs).expect("outputs"), name))?;
        }
        let report = fast.report();
        assert_eq!(report.mode(), Mode::Eager, "{name}");
        assert!(report.reason().is_some_and(|reason| reason.contains("depends on input values")), "{name}");
    }
    let of_state = |t: Inputs, state: &Tensor| {
        ops::assign(state, &ops::sum_keepdim(&large_ones(&t[0])?, 0)?)?;
        Ok(vec![])
    };
    let (mut state, x) = (Tensor::zeros(1, DType::F32, CPU)?, example()?.swap_remove(0));
    let fast = OparaExecutor::builder().build_step(of_state, std::slice::from_ref(&x), &state)?;
    let large = [(x * 1e9)?];
    assert!(matches!(fast.step(&large, &mut state), Err(Error::OtherResult { .. })));
    let expected = Tensor::zeros(1, DType::F32, CPU)?;
    of_state(&large, &expected)?;
    fast.step(&large, &mut state)?;
    assert_same(&[state], &[expected], "a step");
    Ok(())
}

/// What an operator's function holds of the arguments is not what later calls give.
#[test]
fn functions_of_operators_that_hold_an_input_are_not_replayed() -> anyhow::Result<()> {
    let modules: [(&str, Module); 4] = [
        ("floats", |t| {
            let x = t[0].clone();
            Ok(vec![ops::custom("holds", &[&t[2]], move |_| x.sqr())?])
        }),
        ("ids", |t| {
            let ids = t[1].clone();
            Ok(vec![ops::custom("holds", &[&t[0]], move |t| t[0].index_select(&ids, 0))?])
        }),
        ("a view of ids", |t| {
            let ids = t[1].narrow(0, 1, 2)?;
            Ok(vec![ops::custom("holds", &[&t[0]], move |t| t[0].index_select(&ids, 0))?])
        }),
        ("a mode that is zero", |t| {
            let mode = t[2].clone();
            Ok(vec![ops::custom("holds", &[&t[0]], move |t| match mode.to_scalar::<u8>()? {
                0 => t[0].sqr(),
                _ => t[0].neg(),
            })?])
        }),
    ];
    for (name, module) in modules {
        let fast = OparaExecutor::builder().build_fn(module, &example()?)?;
        assert_eq!(fast.report().mode(), Mode::Eager, "{name}: {}", fast.report());
        for inputs in others()? {
            assert_same(&fast.call(&inputs)?, &module(&inputs)?, name);
        }
    }
    // Inputs that are outputs stay what they were.
    let passed_on: Module = |t| Ok(vec![t[1].clone(), ops::reshape(&t[2], 1)?, ops::tanh(&t[0])?]);
    let fast = OparaExecutor::builder().build_fn(passed_on, &example()?)?;
    assert_eq!(fast.report().mode(), Mode::Threads, "{}", fast.report());
    for inputs in others()? {
        assert_same(&fast.call(&inputs)?, &passed_on(&inputs)?, "inputs that are outputs");
    }
    Ok(())
}
