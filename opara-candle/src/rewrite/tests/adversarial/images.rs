//! Convolutions and pools.

use opara_plan::trace::Window;

use super::super::window;
use super::*;

/// A convolution of two images, and what follows it.
#[derive(Clone, Copy)]
struct Case {
    channels: u64,
    out: u64,
    side: u64,
    kernel: u64,
    groups: u64,
    behind: &'static [&'static str],
    element: Element,
}

impl Case {
    fn graph(&self) -> Graph {
        let Self { channels, out, side, kernel, groups, behind, element } = *self;
        let mut made = Made::new(element);
        let plane = side * side;
        let (len, inner, of_group) = (2 * out * plane, channels / groups, out / groups);
        let window = Window { kernel: [kernel; 2], ..window(kernel / 2, 1) };
        let x = made.input(2 * channels * plane);
        let weight = made.weight(out * inner * kernel * kernel);
        let parts: Vec<_> = (0..groups)
            .map(|group| {
                let dims = [(2, channels * plane), (inner, plane), (side, side), (side, 1)];
                let image = operand(x, group * inner * plane, &dims);
                let weights = of_group * inner * kernel * kernel;
                let weight = operand(weight, group * weights, &[(weights, 1)]);
                made.node(Function::Convolution(window), vec![image, weight], len / groups)
            })
            .collect();
        let mut y = match parts[..] {
            [one] => one,
            _ => {
                let width = of_group * plane;
                let parts = parts.into_iter().map(|part| operand(part, 0, &[(2, width), (width, 1)])).collect();
                made.of(Compute::Concat { rows: 2, widths: vec![width; groups as usize] }, parts, len)
            }
        };
        for &name in behind {
            y = match name {
                "residual" => {
                    let other = made.input(len);
                    made.binary("add", [all(y, len), all(other, len)])
                }
                "relu" | "silu" => made.unary(name, y, len),
                name => {
                    let vector = made.weight(out);
                    made.binary(name, [all(y, len), operand(vector, 0, &[(2, 0), (out, 1), (plane, 0)])])
                }
            };
        }
        made.graph(y)
    }

    /// Of weights that add up to 0 in each row, if asked.
    fn operands(&self, balanced: bool) -> Vec<Operands> {
        // Sums of the same products in another order, and the largest of many errors, are a matter of luck.
        const ROOM: f64 = 1.15;
        let graph = self.graph();
        let inner = self.channels / self.groups * self.kernel * self.kernel;
        let numbers = |(at, input): (usize, &Input), kind: Numbers| -> Vec<f64> {
            let x = noise(at as u64 + 20, input.len);
            match at {
                0 => x.into_iter().enumerate().map(|(at, x)| kind(at, x)).collect(),
                1 => x.chunks(inner as usize).flat_map(|row| weights(row, balanced)).collect(),
                // Deviations and scales of a norm.
                3 | 4 => x.into_iter().map(|x| x.abs() + 0.5).collect(),
                _ => x,
            }
        };
        let of = |kind| graph.inputs.iter().enumerate().map(|input| numbers(input, kind)).collect();
        KINDS.iter().map(|&(name, kind)| Operands { kind: name.into(), numbers: of(kind), room: ROOM }).collect()
    }
}

/// A row of weights, less its mean if asked, for results of about the operand's size.
fn weights(row: &[f64], balanced: bool) -> Vec<f64> {
    let len = row.len() as f64;
    let mean = if balanced { row.iter().sum::<f64>() / len } else { 0. };
    row.iter().map(|x| (x - mean) / len.sqrt()).collect()
}

/// What a norm of candle's is behind a convolution.
const NORM: &[&str] = &["sub", "div", "mul", "add"];

fn judged(case: Case, said: &str) -> Result<()> {
    let mut judge = Judge::of(Device::Cpu);
    // candle has no convolution of bf16 on the CPU.
    for (element, balanced) in
        [Element::F16, Element::F32].into_iter().flat_map(|element| [(element, false), (element, true)])
    {
        let case = Case { element, ..case };
        let said = format!("{said}, weights of mean 0 {balanced}");
        judge.judge(&said, &case.graph(), case.operands(balanced))?;
    }
    judge.assert();
    Ok(())
}

const DENSE: Case = Case { channels: 32, out: 48, side: 14, kernel: 3, groups: 1, behind: &[], element: Element::F32 };

#[test]
fn convolutions_are_no_less_accurate_on_any_operands() -> Result<()> {
    judged(DENSE, "convolution")?;
    judged(Case { kernel: 1, behind: &["add", "relu"], ..DENSE }, "convolution of 1 x 1, bias and relu")?;
    judged(Case { behind: &["add", "residual", "relu"], ..DENSE }, "convolution, bias, residual and relu")
}

#[test]
fn convolutions_with_norms_are_no_less_accurate_on_any_operands() -> Result<()> {
    judged(Case { behind: NORM, ..DENSE }, "convolution and norm")?;
    judged(Case { kernel: 1, behind: NORM, ..DENSE }, "convolution of 1 x 1 and norm")
}

#[test]
fn grouped_convolutions_are_no_less_accurate_on_any_operands() -> Result<()> {
    judged(Case { groups: 4, ..DENSE }, "convolution of 4 groups")?;
    judged(Case { channels: 24, out: 24, groups: 24, behind: NORM, ..DENSE }, "convolution of each channel and norm")
}

#[test]
fn norms_are_folded_where_no_mean_shows_that_weights_round_twice() -> Result<()> {
    let judge = Judge::of(Device::Cpu);
    let case = Case { behind: NORM, element: Element::F16, ..DENSE };
    for (balanced, folds) in [(false, 4), (true, 1)] {
        let graph = case.graph();
        let inputs = judge.inputs(&graph, case.operands(balanced).remove(0).numbers)?;
        let outputs = evaluate(&graph, &inputs, Arithmetic::Typed)?;
        let choice = choose(&graph, &[], &[Set::new(&graph, inputs, outputs)?])?.map_err(candle::Error::Msg)?;
        let folded = choice.fits.iter().filter(|fit| fit.rule == "convolution-norm").count();
        assert_eq!(folded, folds, "{:?}", choice.notes);
        assert_eq!(choice.notes.iter().any(|note| note.contains("on windows of mean")), balanced, "{:?}", choice.notes);
    }
    Ok(())
}
