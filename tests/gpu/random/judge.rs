//! Judges executors of modules.

use std::collections::BTreeMap;
use std::time::Instant;

use candle::{DType, Device, Result, Tensor};
use opara_candle::{Mode, OparaExecutor};

use super::errors::{unit, Errors};
use super::{Kind, Random, KINDS};
use crate::common::differing;

/// On how many other inputs a module is judged whose errors on one are too large. That one was chosen for its errors, which are a few roundings
/// that decide, where shares of nearly alike keys change places. So of it only the largest error counts, with twice the room.
const INPUTS_OF_DOUBT: u64 = 16;

/// Results that differ by no more than this part of their size, or by so many roundings, are one result: their errors are nearly the same, and
/// say no more together. So it is where all of an input vanishes, in zeros or beside a norm's epsilon or a bias: what is added on the way may be
/// some times as large as the result.
const ALIKE: f64 = 1e-6;
const ALIKE_ROUNDINGS: f64 = 4.;

/// What was found wrong, and how much was judged.
#[derive(Default)]
pub struct Verdicts {
    failed: Vec<String>,
    judged: usize,
    modules: usize,
    /// How often each rule was applied.
    rules: BTreeMap<&'static str, usize>,
    /// Seconds of each part, of all threads together.
    seconds: BTreeMap<String, f64>,
}

/// Modules that are built as one: each has its inputs and its output.
struct Group<'a> {
    modules: &'a [Random],
    device: &'a Device,
    exact: OparaExecutor,
    accurate: OparaExecutor,
}

impl Verdicts {
    /// Builds an exact executor and an accurate one of all these modules, and asks them for other inputs.
    pub fn of(modules: &[Random], device: &Device) -> Self {
        let mut verdicts = Self { modules: modules.len(), ..Self::default() };
        if let Err(error) = verdicts.judge(modules, device) {
            let seeds: Vec<u64> = modules.iter().map(|module| module.seed).collect();
            verdicts.failed.push(format!("seeds {seeds:?}: {error:#}"));
        }
        verdicts.failed.iter().for_each(|failed| println!("FAILED {failed}"));
        println!("  {} modules, seconds {:.2?}", verdicts.modules, verdicts.seconds);
        verdicts
    }

    /// Both.
    pub fn and(mut self, other: Self) -> Self {
        self.failed.extend(other.failed);
        other.rules.into_iter().for_each(|(rule, times)| *self.rules.entry(rule).or_default() += times);
        other.seconds.into_iter().for_each(|(part, seconds)| *self.seconds.entry(part).or_default() += seconds);
        Self { judged: self.judged + other.judged, modules: self.modules + other.modules, ..self }
    }

    fn judge(&mut self, modules: &[Random], device: &Device) -> anyhow::Result<()> {
        let group = self.group(modules, device, &[])?;
        let mut least = vec![[0.; 2]; modules.len()];
        for at in 0..3 {
            let kinds: Vec<&str> = modules.iter().map(|module| module.kind_of_inputs(at)).collect();
            let mut parts = vec![0.; modules.len()];
            let asked = group.ask(self, &kinds, at as u64, &parts)?;
            let doubted = self.failing(&kinds, &asked, &group, &mut least)?;
            if doubted.is_empty() {
                continue;
            }
            let mut errors = vec![Errors::default(); doubted.len()];
            let mut are_one = vec![true; doubted.len()];
            for more in 1..=INPUTS_OF_DOUBT {
                let others = group.ask(self, &kinds, 1000 * more + at as u64, &parts)?;
                for ((errors, is_one), (of, _)) in errors.iter_mut().zip(&mut are_one).zip(&doubted) {
                    let (first, other, module) = (&asked[*of], &others[*of], &modules[*of]);
                    let is_alike = are_alike(&first.in_double(module)?, &other.in_double(module)?, module.dtype)?;
                    if is_alike {
                        parts[*of] = module.part();
                    }
                    *is_one &= is_alike;
                    if other.wrong > 0 {
                        self.fail(module, kinds[*of], &format!("{} bits are not eager execution's", other.wrong));
                    }
                    match other.errors(module)? {
                        Ok(other) => *errors = errors.and(&other),
                        Err(reason) => self.fail(module, kinds[*of], &reason),
                    }
                }
            }
            for ((errors, is_one), (of, first)) in errors.into_iter().zip(are_one).zip(&doubted) {
                // Where no input reaches the result, sixteen inputs are one, and one rounding may move all numbers of a row together. Moved
                // inputs of those that vanish share many roundings, too.
                let luck = match (is_one, parts[*of] > 0.) {
                    (true, _) => 2.,
                    (false, true) => 1.5,
                    (false, false) => 1.,
                };
                let room = modules[*of].room(kinds[*of]) * luck;
                let one = first.reason(room, least[*of]).unwrap_or_default();
                println!("DOUBT seed {}, {}: {one}; then {errors:?}", modules[*of].seed, kinds[*of]);
                let on_others =
                    || errors.reason(room, least[*of]).map(|of| format!("on {INPUTS_OF_DOUBT} other inputs {of}"));
                let reason = match errors.tells() {
                    true => on_others().or_else(|| first.and(&errors).extreme(2. * room, least[*of])),
                    false => first.reason(room, least[*of]),
                };
                if let Some(reason) = reason {
                    self.fail(&modules[*of], kinds[*of], &reason);
                    explain(&group, *of, &kinds, (at as u64, &parts))?;
                }
            }
        }
        Ok(())
    }

    fn fail(&mut self, module: &Random, kind: &str, reason: &str) {
        self.failed.push(format!("{}\n  {kind}: {reason}", module.said()));
    }

    fn timed<T>(&mut self, part: &str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let made = work();
        *self.seconds.entry(part.into()).or_default() += start.elapsed().as_secs_f64();
        made
    }

    fn group<'a>(&mut self, modules: &'a [Random], device: &'a Device, without: &[&str]) -> anyhow::Result<Group<'a>> {
        let built: Vec<Tensor> =
            modules.iter().map(|module| module.inputs(1, "plain", device)).collect::<Result<Vec<_>>>()?.concat();
        let of = modules.to_vec();
        let forward = move |x: &[Tensor]| -> Result<Vec<Tensor>> {
            of.iter().zip(x.chunks(2)).map(|(module, x)| Ok(module.run(x, false)?.1)).collect()
        };
        // Kernels that are generated take longest to compile.
        let fuses = modules[0].seed.is_multiple_of(64);
        let builder = || OparaExecutor::builder().benchmark_challengers(false).cache_folder(None).fuse(fuses);
        let exact = self.timed("build exact", || builder().build_fn(forward.clone(), &built))?;
        let rewritten = without.iter().fold(builder().accurate(), |builder, rule| builder.without_rule(*rule));
        let accurate = self.timed("build accurate", || rewritten.build_fn(forward, &built))?;
        if exact.report().mode() != Mode::Graph {
            let all: Vec<String> = modules.iter().map(Random::said).collect();
            self.failed.push(format!("{}\n  is not replayed: {:?}", all.join("\n"), exact.report().reason()));
        }
        for rewrite in accurate.report().rewrites() {
            *self.rules.entry(rewrite.rule).or_default() += rewrite.times;
        }
        for (of, executor) in [("exact", &exact), ("accurate", &accurate)] {
            for (part, ms) in executor.report().build_ms() {
                *self.seconds.entry(format!("{of}: {part}")).or_default() += ms / 1e3;
            }
        }
        for module in modules {
            println!("{}", module.said());
        }
        println!("  {:?}", accurate.report().notes());
        Ok(Group { modules, device, exact, accurate })
    }

    /// The modules whose results are wrong, or may be: those are asked on more inputs. `least` has candle's errors that count at least, which
    /// plain inputs tell.
    fn failing(
        &mut self,
        kinds: &[&str],
        asked: &[Answer],
        group: &Group,
        least: &mut [[f64; 2]],
    ) -> Result<Vec<(usize, Errors)>> {
        let mut doubted = Vec::new();
        for (at, (module, answer)) in group.modules.iter().zip(asked).enumerate() {
            if answer.wrong > 0 {
                let again = differing(&module.run(&answer.inputs, false)?.1, &answer.candle)?;
                let reason = format!("{} bits are not eager execution's, {again} eager", answer.wrong);
                self.fail(module, kinds[at], &reason);
            }
            if !module.tells(kinds[at]) {
                continue;
            }
            self.judged += 1;
            let room = module.room(kinds[at]);
            match self.timed("double precision", || answer.errors(module))? {
                Err(reason) => self.fail(module, kinds[at], &reason),
                Ok(errors) => {
                    if kinds[at] == "plain" && module.may_round_to_tf32() {
                        least[at] = errors.candles();
                    }
                    if errors.reason(room, least[at]).is_some() {
                        doubted.push((at, errors));
                    }
                }
            }
        }
        Ok(doubted)
    }

    pub fn assert(self) {
        println!("{} modules, {} answers judged", self.modules, self.judged);
        println!("rules {:?}\nseconds {:.1?}", self.rules, self.seconds);
        assert!(self.failed.is_empty(), "{} of {}:\n{}", self.failed.len(), self.judged, self.failed.join("\n"));
    }
}

/// A module's results for inputs.
struct Answer {
    inputs: Vec<Tensor>,
    candle: Tensor,
    accurate: Tensor,
    /// Of the exact executor, bits that are not candle's.
    wrong: usize,
}

impl Answer {
    /// The errors beside double precision; the inner error says which element is wrong.
    fn errors(&self, module: &Random) -> Result<std::result::Result<Errors, String>> {
        // Exponentials that are all zeros have no shares in candle; here they are those of the same scores without a large number.
        let mends = ["without a maximum", "factors"].iter().any(|name| module.said().contains(name));
        Errors::of(module.dtype, mends, [&self.in_double(module)?, &self.candle, &self.accurate])
    }

    fn in_double(&self, module: &Random) -> Result<Tensor> {
        let wide =
            [self.inputs[0].to_device(&Device::Cpu)?.to_dtype(DType::F64)?, self.inputs[1].to_device(&Device::Cpu)?];
        Ok(module.run(&wide, true)?.1)
    }
}

impl Group<'_> {
    /// The answers of all modules for inputs of these kinds, each moved by noise of a part.
    fn ask(&self, verdicts: &mut Verdicts, kinds: &[&str], number: u64, parts: &[f64]) -> anyhow::Result<Vec<Answer>> {
        let inputs = self.modules.iter().zip(kinds).zip(parts).map(|((module, kind), part)| {
            let inputs = module.inputs(17 + module.seed + number, kind, self.device)?;
            if *part == 0. {
                return Ok(inputs);
            }
            let plain = module.inputs(18 + module.seed + number, "plain", self.device)?;
            let moved = (inputs[0].to_dtype(DType::F32)? + (plain[0].to_dtype(DType::F32)? * *part)?)?;
            Ok(vec![moved.to_dtype(module.dtype)?, inputs[1].clone()])
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let all = inputs.concat();
        let [exact, accurate] = [&self.exact, &self.accurate].map(|of| verdicts.timed("calls", || of.call(&all)));
        let (exact, accurate) = (exact?, accurate?);
        let mut answers = Vec::new();
        for (at, (module, inputs)) in self.modules.iter().zip(inputs).enumerate() {
            let candle = verdicts.timed("eager", || module.run(&inputs, false))?.1;
            let wrong = differing(&exact[at], &candle)?;
            answers.push(Answer { inputs, candle, accurate: accurate[at].clone(), wrong });
        }
        Ok(answers)
    }
}

/// Are two results one, but for what roundings hide?
fn are_alike(one: &Tensor, other: &Tensor, dtype: DType) -> Result<bool> {
    let size = one.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
    let apart = (one - other)?.sqr()?.mean_all()?.sqrt()?.to_scalar::<f64>()?;
    Ok(apart <= ALIKE.max(ALIKE_ROUNDINGS * unit(dtype)) * size)
}

/// Prints the errors of a module that fails, as it was built: on plain inputs, on its own, and then without one rule more each time. The rule
/// whose absence mends it is at fault, or those before it, too.
fn explain(group: &Group, of: usize, kinds: &[&str], (number, parts): (u64, &[f64])) -> anyhow::Result<()> {
    let Group { modules, device, .. } = *group;
    let rules: Vec<&'static str> = group.accurate.report().rewrites().iter().map(|rewrite| rewrite.rule).collect();
    let print = |group: &Group, kinds: &[&str], parts: &[f64], how: &str| -> anyhow::Result<()> {
        let answers = group.ask(&mut Verdicts::default(), kinds, number, parts)?;
        let errors = answers[of].errors(&modules[of])?;
        println!("EXPLAINED seed {}, {how}: {errors:?}", modules[of].seed);
        Ok(())
    };
    print(group, &vec!["plain"; modules.len()], &vec![0.; modules.len()], "plain inputs")?;
    print(group, kinds, parts, "as it was built")?;
    for (at, rule) in rules.iter().enumerate() {
        let without = Verdicts::default().group(modules, device, &rules[..=at])?;
        print(&without, kinds, parts, &format!("without {rule}"))?;
    }
    Ok(())
}

impl Random {
    /// A part of plain inputs that moves results by more than a rounding, and leaves what vanishes beside a norm's epsilon small.
    fn part(&self) -> f64 {
        (16. * unit(self.dtype)).max(2f64.powi(-14))
    }

    /// Where one of candle's convolutions rounds to TF32, others of the same run may do so as well. Some inputs do not show what candle's rounds.
    fn may_round_to_tf32(&self) -> bool {
        self.dtype == DType::F32 && self.kind != Kind::Tokens
    }

    /// Whether results on inputs of this kind tell errors.
    fn tells(&self, kind: &str) -> bool {
        let said = self.said();
        let has = |names: &[&str]| names.iter().any(|name| said.contains(name));
        // candle's maximum with zero in f32, and its pools of maxima, take NaN for the smaller number; others keep it. NaN has no place
        // in an order. Convolutions and what follows them may bring one to other elements than candle's do.
        let loses = ["relu", "squeeze", "max", "squared", "sorted", "larger ones", "smaller ones"];
        let is_least = |name: &str| name == "min";
        let loses_nan = has(&loses) || said.split(", ").any(is_least) || self.kind != Kind::Tokens;
        // Exponentials may overflow for candle alone, or be all zeros: also where factors drop the largest of scores that are far apart.
        let has_none = has(&["factors"]) && ["none counts", "few", "large", "a large mean"].contains(&kind);
        // Rows whose keys are all hidden by an infinity have none.
        let has_hidden = has(&["-inf"]) && ["none counts", "few"].contains(&kind);
        let has_nan = ["a NaN", "an infinity"].contains(&kind) || has(&["without a maximum"]) || has_none || has_hidden;
        // candle sums in f16: 64 squares of 50 are more than the largest number, and the norm of such rows is 0.
        let overflows = self.dtype == DType::F16 && kind == "a large mean" && has(&["rms norm, spelled"]);
        !(loses_nan && has_nan || overflows)
    }

    /// How many times the errors may be what they are by rule.
    fn room(&self, kind: &str) -> f64 {
        match (kind, self.dtype) {
            // The few rows in which two keys come close decide; and the few numbers of many that a clamp leaves as they are.
            ("large", _) if ["attention", "relu6"].iter().any(|name| self.said().contains(name)) => 4.,
            ("a large mean", _) if self.said().contains("relu6") => 4.,
            // Rows of a large mean share most roundings of their products, so that scores have few errors of their own.
            ("a large mean", _) if self.said().contains("attention") => 2.,
            // A gate is the exponential of its sum where that is far below zero, and shows each of the sum's bits: as below.
            ("large", DType::F32) if self.said().contains("squeeze") => 2.,
            // Equal terms round alike at each step of a sum. A sum of four parts has a fourth of the error of one that adds 70 terms one
            // after the other, and cuBLAS has both, by the layout of the operands.
            ("tokens alike" | "pairs alike", DType::F32) if self.said().contains("attention") => 2.,
            // Half of a number that has one bit left lies between two others, and `x * (1 + tanh(x)) / 2` is a little above it. Rounded once, all
            // such numbers go up, by a quarter of that bit on average. candle computes in 16 bits, where it is half, which goes either way.
            // Means of tokens show that.
            ("denormal", DType::F16 | DType::BF16) if self.halves() => 3.,
            // Where sums cancel, products of f32 show the two bits that three products of TF32 leave out.
            ("few" | "a large mean", DType::F32) => 2.,
            _ => 1.,
        }
    }

    /// Whether it has activations that are half of small numbers.
    fn halves(&self) -> bool {
        self.said().split(", ").any(|name| ["gelu", "gelu_erf", "silu", "swish"].contains(&name))
    }

    /// The kind of the inputs that it is asked for, one after the other.
    fn kind_of_inputs(&self, at: usize) -> &'static str {
        match at {
            0 => "plain",
            _ => KINDS[(self.seed as usize + 5 * at) % KINDS.len()],
        }
    }
}
