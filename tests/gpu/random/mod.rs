//! Modules that are composed at random from candle's operators. Exact executors give eager execution's bits, and accurate ones are no
//! farther from double precision than they promise, on inputs that they were not built on.
//!
//! `OPARA_MODULES` is how many are made, `OPARA_SEED` the first seed, `OPARA_TOGETHER` how many are built as one. A failure says the seed,
//! and what the module is made of. With `OPARA_TRACES=FOLDER` recorded traces are saved there, and all in one file, `random.traces`, for
//! `opara-plan`'s test `random`.

mod attention;
mod errors;
mod images;
mod judge;
mod masks;
mod pass;
mod shares;
mod tokens;
mod trained;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle::{DType, Device, Result, Tensor};
use opara_candle::OparaExecutor;
use rayon::prelude::*;

use self::judge::Verdicts;
use self::pass::{noise, Pass, Weights};

/// A module of one seed, its inputs `x` and the lengths of its items.
#[derive(Clone)]
struct Random {
    seed: u64,
    weights: Arc<Weights>,
    dtype: DType,
    /// Dimensions of `x`.
    shape: Vec<usize>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Tokens,
    Images,
    Sequences,
}

impl Random {
    fn new(seed: u64, dtype: DType, device: &Device) -> Self {
        let mut rng = fastrand::Rng::with_seed(!seed);
        let kind = [Kind::Tokens, Kind::Tokens, Kind::Tokens, Kind::Images, Kind::Sequences][rng.usize(..5)];
        let mut one_of = |of: &[usize]| of[rng.usize(..of.len())];
        let shape = match kind {
            Kind::Tokens => {
                vec![one_of(&[1, 1, 2, 3]), one_of(&[1, 7, 16, 33, 49, 64, 70, 128]), one_of(&[64, 96, 128])]
            }
            Kind::Images => vec![one_of(&[1, 2]), one_of(&[4, 8, 16]), one_of(&[8, 14, 15]), one_of(&[8, 14, 17])],
            Kind::Sequences => vec![one_of(&[1, 2]), one_of(&[4, 16]), one_of(&[40, 65])],
        };
        Self { seed, weights: Arc::new(Weights::new(seed, dtype, device)), dtype, shape, kind }
    }

    /// What it is made of, once it has run.
    fn said(&self) -> String {
        let made = self.weights.said.get().map_or("", String::as_str);
        format!("seed {}, {:?} of {:?} in {:?}: {made}", self.seed, self.kind, self.shape, self.dtype)
    }

    /// A pass; what it is made of, and its result.
    fn run(&self, inputs: &[Tensor], in_double: bool) -> Result<(String, Tensor)> {
        let mut pass = Pass::new(&self.weights, in_double, inputs[1].clone());
        let y = self.layers(&mut pass, &inputs[0])?;
        let said = pass.said.join(", ");
        self.weights.said.get_or_init(|| said.clone());
        Ok((said, y))
    }

    fn layers(&self, pass: &mut Pass, x: &Tensor) -> Result<Tensor> {
        match self.kind {
            Kind::Images => return images::image(pass, x),
            Kind::Sequences => return images::sequence(pass, x),
            Kind::Tokens => {}
        }
        let mut x = x.clone();
        for _ in 0..pass.rng.usize(1..4) {
            let before = if pass.rng.bool() { tokens::norm(pass, &x)? } else { x.clone() };
            let y = match pass.rng.usize(..11) {
                0..4 => attention::attention(pass, &before)?,
                4..6 => tokens::mlp(pass, &before)?,
                6 => tokens::shuffle(pass, &before)?,
                7 => tokens::reduce(pass, &before)?,
                8 | 9 => tokens::places(pass, &before)?,
                _ => tokens::elements(pass, &before)?,
            };
            x = if pass.rng.usize(..3) > 0 { (x + y)? } else { y };
        }
        Ok(x)
    }

    /// Inputs: `x` of numbers of this kind, and lengths.
    fn inputs(&self, of: u64, kind: &str, device: &Device) -> Result<Vec<Tensor>> {
        let len = self.shape.iter().product();
        let width = self.shape[self.shape.len() - 1];
        // Below the smallest normal number of 16 bits. Of f32, products of three TF32 products lose bits of numbers below 2^-112.
        let denormal = match self.dtype {
            DType::F16 => 2f64.powi(-17),
            DType::BF16 => 2f64.powi(-129),
            _ => 2f64.powi(-100),
        };
        let plain = noise(of, len);
        // One of its own: results of one mean share the roundings of its products.
        let mean = 50. + 4. * noise(!of, 1)[0];
        let numbers = plain.iter().enumerate().map(|(at, &x)| match kind {
            "rows of zeros" if (at / width).is_multiple_of(2) => 0.,
            "negative zeros" => {
                if at % 3 == 0 {
                    x
                } else {
                    -0.
                }
            }
            "denormal" => denormal * x,
            "large" => 60. * x,
            "tiny" => x / 1024.,
            "a large mean" => mean + x,
            "tokens alike" => plain[at % width],
            "pairs alike" => plain[at / (2 * width) * (2 * width) + at % width],
            "few" if at % 97 != 13 => 0.,
            "an infinity" if at == len / 2 => f64::INFINITY,
            "a NaN" if at == len / 3 => f64::NAN,
            _ => x,
        });
        let x = Tensor::from_vec(numbers.collect::<Vec<_>>(), &self.shape[..], &Device::Cpu)?.to_dtype(self.dtype)?;
        let (batch, tokens) = (self.shape[0], self.shape[1] as u64);
        // An item may have no token that counts.
        let length = |item: u64| match kind {
            "none counts" => 0,
            "few" => (of * 7 + item * 5) % tokens,
            _ => 1 + (of * 7 + item * 5) % tokens,
        };
        let lengths = (0..batch as u64).map(|item| length(item) as u32);
        Ok(vec![x.to_device(device)?, Tensor::from_iter(lengths, device)?])
    }
}

/// What inputs are, beside plain ones.
const KINDS: [&str; 12] = [
    "rows of zeros",
    "negative zeros",
    "denormal",
    "large",
    "tiny",
    "a large mean",
    "tokens alike",
    "pairs alike",
    "few",
    "none counts",
    "an infinity",
    "a NaN",
];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// Where recorded traces are saved.
fn traces() -> Option<PathBuf> {
    std::env::var_os("OPARA_TRACES").map(PathBuf::from)
}

/// Packs all traces of a folder: for each its length, four bytes, and the trace.
fn pack(folder: &Path) -> anyhow::Result<()> {
    let mut files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|of| of == "trace"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let bytes = fs::read(file)?;
        all.extend(u32::try_from(bytes.len())?.to_le_bytes());
        all.extend(bytes);
    }
    Ok(fs::write(folder.join("random.traces"), all)?)
}

/// Without a GPU, too: whatever is drawn is a module, the same at each pass, and in double precision.
#[test]
fn random_modules_are_modules() -> Result<()> {
    for seed in number("OPARA_SEED", 0)..number("OPARA_SEED", 0) + number("OPARA_MODULES", 60) {
        let module = Random::new(seed, DType::F32, &Device::Cpu);
        let inputs = module.inputs(1, "plain", &Device::Cpu)?;
        let (said, y) = module.run(&inputs, false)?;
        let (again, other) = module.run(&inputs, false)?;
        assert!(said == again && crate::common::same_bits(&y, &other)?, "{seed}: {said}");
        let wide = [inputs[0].to_dtype(DType::F64)?, inputs[1].clone()];
        let (_, reference) = module.run(&wide, true)?;
        assert_eq!(y.dims(), reference.dims(), "{seed}: {said}");
        let apart = (y.to_dtype(DType::F64)? - &reference)?.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
        let size = reference.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
        // Rows that are hidden as a whole are NaN in both.
        assert!(apart <= 1e-2 * size || apart.is_nan(), "{seed}: {apart} of {size}: {said}");
    }
    Ok(())
}

#[test]
fn executors_of_random_modules_give_what_they_promise() -> anyhow::Result<()> {
    let Some(device) = crate::common::gpu() else { return Ok(()) };
    let first = number("OPARA_SEED", 0);
    let seeds: Vec<u64> = (first..first + number("OPARA_MODULES", 100)).collect();
    if let Some(folder) = traces() {
        seeds.into_par_iter().try_for_each(|seed| record(seed, &device, &folder))?;
        return pack(&folder);
    }
    let groups = seeds.par_chunks(number("OPARA_TOGETHER", 4) as usize).map(|seeds| judged(seeds, &device));
    groups.try_reduce(Verdicts::default, |one, other| Ok(one.and(other)))?.assert();
    Ok(())
}

fn of_seed(seed: u64, device: &Device) -> Random {
    Random::new(seed, tokens::DTYPES[seed as usize % 3], device)
}

/// Saves the recorded pass of a module.
fn record(seed: u64, device: &Device, folder: &Path) -> anyhow::Result<()> {
    let module = of_seed(seed, device);
    let inputs = module.inputs(1, "plain", device)?;
    let forward = move |x: &[Tensor]| Ok(vec![module.run(x, false)?.1]);
    let builder = OparaExecutor::builder().benchmark_challengers(false).cache_folder(None).fuse(false);
    let exact = builder.build_fn(forward, &inputs)?;
    Ok(exact.trace(&inputs)?.save(folder.join(format!("{seed}.trace")))?)
}

/// The verdicts on modules, together but for those that give no finite number: they change how all that is built with them is judged.
fn judged(seeds: &[u64], device: &Device) -> Result<Verdicts> {
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    for &seed in seeds {
        let module = of_seed(seed, device);
        // candle's products take some layouts on a CPU alone.
        let y = match module.run(&module.inputs(1, "plain", device)?, false) {
            Ok((_, y)) => y,
            Err(error) => {
                println!("candle refuses {}: {error}", module.said());
                continue;
            }
        };
        let is_finite = y.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?.iter().any(|x| x.is_finite());
        if is_finite {
            together.push(module)
        } else {
            alone.push(module)
        }
    }
    let groups = alone.chunks(1).chain([&together[..]]).filter(|group| !group.is_empty());
    Ok(groups.map(|group| Verdicts::of(group, device)).fold(Verdicts::default(), Verdicts::and))
}
