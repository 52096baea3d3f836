//! Optimizers' arithmetic on a CPU: every operation is rounded to the element type, as candle's operators are.

use candle::{bail, CpuStorage, Result, WithDType};

use super::rule::{place, Blend, Rule, Update};

/// Goes one step on: counts it, and computes its numbers from the sums of squares of the gradients.
pub(super) fn tick(control: &mut [f64], sums: &[f64]) {
    use place::*;
    control[IS_SKIPPED] = 1.;
    control[TAKEN] += 1.;
    if control[TAKEN] < control[BATCHES] {
        return;
    }
    control[TAKEN] = 0.;
    let parts = control[BATCHES] * control[SCALE];
    let norm = sums.iter().sum::<f64>().sqrt() / parts;
    control[NORM] = norm;
    if (control[MAX_NORM] > 0. || control[GROWTH] > 0.) && !norm.is_finite() {
        control[SKIPPED] += 1.;
        if control[GROWTH] > 0. {
            control[SCALE] /= 2.;
            control[GOOD] = 0.;
        }
        return;
    }
    control[IS_SKIPPED] = 0.;
    let is_long = control[MAX_NORM] > 0. && norm > control[MAX_NORM];
    control[FACTOR] = if is_long { control[MAX_NORM] / norm } else { 1. } / parts;
    if control[GROWTH] > 0. {
        control[GOOD] += 1.;
        if control[GOOD] >= control[GROWTH] {
            control[SCALE] *= 2.;
            control[GOOD] = 0.;
        }
    }
    control[STEPS] += 1.;
    let steps = control[STEPS] as i32;
    control[FIRST] = 1. / (1. - control[BETA1].powi(steps));
    control[SECOND] = 1. / (1. - control[BETA2].powi(steps));
    control[RATE] = control[BASE] * of_rate(control);
}

/// The part of the learning rate that a schedule gives this step.
fn of_rate(control: &[f64]) -> f64 {
    use place::*;
    // The first step has number 0.
    let (at, warm_up, remains) = (control[STEPS] - 1., control[WARM_UP], control[REMAINS]);
    if at < warm_up {
        return (at + 1.) / warm_up;
    }
    let done = ((at - warm_up) / (control[TOTAL] - warm_up).max(1.)).min(1.);
    match control[SCHEDULE] as u32 {
        1 => remains + (1. - remains) * (1. - done),
        2 => remains + (1. - remains) * 0.5 * (1. + (std::f64::consts::PI * done).cos()),
        3 => (warm_up.max(1.) / (at + 1.).max(1.)).sqrt(),
        _ => 1.,
    }
}

/// The sum of squares.
pub(super) fn square_sum(gradient: &CpuStorage, from: usize, len: usize) -> Result<f64> {
    fn of<T: WithDType>(gradient: &[T]) -> f64 {
        gradient.iter().map(|g| g.to_f64() * g.to_f64()).sum()
    }
    Ok(match gradient {
        CpuStorage::F32(g) => of(&g[from..from + len]),
        CpuStorage::F64(g) => of(&g[from..from + len]),
        CpuStorage::F16(g) => of(&g[from..from + len]),
        CpuStorage::BF16(g) => of(&g[from..from + len]),
        _ => bail!("a gradient is of floats"),
    })
}

/// Updates `len` elements of a value, which begin at `at[0]`, by those of a gradient, which begin at `at[1]`.
pub(super) fn update(
    of: (Rule, &Update),
    control: &[f64],
    (value, gradient): (&mut CpuStorage, &CpuStorage),
    (at, len): ([usize; 2], usize),
    moments: &mut CpuStorage,
) -> Result<()> {
    if control[place::IS_SKIPPED] != 0. {
        return Ok(());
    }
    macro_rules! of_types {
        ($($variant:ident),*) => {
            match (value, gradient, moments) {
                $((CpuStorage::$variant(v), CpuStorage::$variant(g), CpuStorage::$variant(m)) => {
                    Numbers::new(of, control).update(&mut v[at[0]..at[0] + len], &g[at[1]..at[1] + len], m)
                })*
                _ => bail!("values, gradients and moments are floats of one dtype"),
            }
        };
    }
    of_types!(F32, F64, F16, BF16);
    Ok(())
}

/// Blends `len` elements, which begin at `at[1]`, into those that begin at `at[0]`.
pub(super) fn blend(
    of: Blend,
    control: &[f64],
    (to, from): (&mut CpuStorage, &CpuStorage),
    (at, len): ([usize; 2], usize),
) -> Result<()> {
    let (kept, added) = match of {
        Blend::Sum if control[place::TAKEN] == 0. => (0., 1.),
        Blend::Sum => (1., 1.),
        Blend::Average(_) if control[place::IS_SKIPPED] != 0. => return Ok(()),
        Blend::Average(kept) => (kept, 1. - kept),
    };
    fn of_type<T: WithDType>(to: &mut [T], from: &[T], kept: f64, added: f64) {
        let factors = (T::from_f64(kept), T::from_f64(added));
        for (to, from) in to.iter_mut().zip(from) {
            // Not where the sum before was infinite.
            *to = if kept == 0. { *from } else { *to * factors.0 + *from * factors.1 };
        }
    }
    macro_rules! of_types {
        ($($variant:ident),*) => {
            match (to, from) {
                $((CpuStorage::$variant(to), CpuStorage::$variant(from)) => {
                    of_type(&mut to[at[0]..at[0] + len], &from[at[1]..at[1] + len], kept, added)
                })*
                _ => bail!("values and what they are blended into are floats of one dtype"),
            }
        };
    }
    of_types!(F32, F64, F16, BF16);
    Ok(())
}

/// The numbers of a launch, in the element type.
struct Numbers<T> {
    rule: Rule,
    beta1: [T; 2],
    beta2: [T; 2],
    eps: T,
    first: T,
    second: T,
    factor: T,
    rate: T,
    /// What gradients get of values, or else what values keep.
    decay: T,
    kept: T,
}

impl<T: WithDType> Numbers<T> {
    fn new((rule, of): (Rule, &Update), control: &[f64]) -> Self {
        let number = T::from_f64;
        let (beta1, beta2, eps) = match rule {
            Rule::Descent => (0., 0., 0.),
            Rule::Momentum { momentum, .. } => (momentum, 0., 0.),
            Rule::Adam { beta1, beta2, eps, .. } => (beta1, beta2, eps),
            Rule::Lion { beta1, beta2 } => (beta1, beta2, 0.),
        };
        let rate = control[place::RATE] * of.rate;
        Self {
            rule,
            beta1: [beta1, 1. - beta1].map(number),
            beta2: [beta2, 1. - beta2].map(number),
            eps: number(eps),
            first: number(control[place::FIRST]),
            second: number(control[place::SECOND]),
            factor: number(control[place::FACTOR]),
            rate: number(rate),
            decay: number(of.decay),
            kept: number(1. - rate * of.decay),
        }
    }

    fn update(&self, values: &mut [T], gradients: &[T], moments: &mut [T]) {
        let (first, second) = moments.split_at_mut(if self.rule.moments() > 0 { values.len() } else { 0 });
        let pairs = values.iter_mut().zip(gradients.iter().map(|&g| g * self.factor));
        match self.rule {
            Rule::Descent => pairs.for_each(|(p, g)| *p -= (g + *p * self.decay) * self.rate),
            Rule::Momentum { is_nesterov, .. } => pairs.zip(first).for_each(|((p, g), m)| {
                let g = g + *p * self.decay;
                *m = *m * self.beta1[0] + g;
                let by = if is_nesterov { g + *m * self.beta1[0] } else { *m };
                *p -= by * self.rate;
            }),
            Rule::Adam { is_decoupled, .. } => pairs.zip(first.iter_mut().zip(second)).for_each(|((p, g), (m, v))| {
                let g = if is_decoupled { g } else { g + *p * self.decay };
                *m = *m * self.beta1[0] + g * self.beta1[1];
                *v = *v * self.beta2[0] + g * g * self.beta2[1];
                let spread = T::from_f64((*v * self.second).to_f64().sqrt()) + self.eps;
                let kept = if is_decoupled { *p * self.kept } else { *p };
                *p = kept - *m * self.first / spread * self.rate;
            }),
            Rule::Lion { .. } => pairs.zip(first).for_each(|((p, g), m)| {
                let by = *m * self.beta1[0] + g * self.beta1[1];
                let one = T::one();
                let sign = if by > T::zero() {
                    one
                } else if by < T::zero() {
                    T::zero() - one
                } else {
                    by
                };
                *p = *p * self.kept - sign * self.rate;
                *m = *m * self.beta2[0] + g * self.beta2[1];
            }),
        }
    }
}
