//! Attention.

use super::*;

/// How scores are masked.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mask {
    None,
    Added,
    Hidden,
    /// A finite number stands for scores, in some rows for all of them.
    Low,
    /// The same, of scores that something was added to.
    LowBeside,
}

/// Attention of heads `[heads, queries, keys, size]`.
struct Case {
    sizes: [u64; 4],
    mask: Mask,
    /// A model of 16 bits that computes it in f32.
    in_f32: bool,
    /// Scores are at most 20.
    is_capped: bool,
    element: Element,
}

/// What a mask adds to the score of a query and a key.
type MaskAt = fn(usize, usize) -> f64;

impl Case {
    fn graph(&self) -> Graph {
        let [heads, queries, keys, size] = self.sizes;
        let mut made = Made::new(self.element);
        let lens = [queries, keys, keys].map(|tokens| heads * tokens * size);
        let mut operands = lens.map(|len| made.input(len));
        if self.in_f32 {
            for (value, len) in operands.iter_mut().zip(lens) {
                *value = made.cast(Element::F32, *value, len);
            }
        }
        let scores = heads * queries * keys;
        let rows = |value, tokens| operand(value, 0, &[(heads, tokens * size), (tokens, size), (size, 1)]);
        let columns = operand(operands[1], 0, &[(heads, keys * size), (size, 1), (keys, size)]);
        let mut y = made.node(Function::Matmul, vec![rows(operands[0], queries), columns], scores);
        y = made.node(Function::Affine((size as f32).powf(-0.5), 0.), vec![all(y, scores)], scores);
        if self.is_capped {
            let in_caps = made.node(Function::Affine(1. / 20., 0.), vec![all(y, scores)], scores);
            let tanh = made.unary("tanh", in_caps, scores);
            y = made.node(Function::Affine(20., 0.), vec![all(tanh, scores)], scores);
        }
        let of_all = |value| operand(value, 0, &[(heads, 0), (queries * keys, 1)]);
        match self.mask {
            Mask::None => {}
            Mask::Added => {
                let mask = made.input(queries * keys);
                y = made.binary("add", [all(y, scores), of_all(mask)]);
            }
            Mask::Hidden | Mask::Low | Mask::LowBeside => {
                if self.mask == Mask::LowBeside {
                    let bias = made.input(queries * keys);
                    y = made.binary("add", [all(y, scores), of_all(bias)]);
                }
                let mask = made.input_of(Element::U8, queries * keys, false);
                let hidden = match (made.element, self.mask) {
                    (Element::F16, Mask::Hidden) => 0xFC00,
                    (Element::Bf16, Mask::Hidden) => 0xFF80,
                    (Element::F16, _) => 0xF0E2,
                    (Element::Bf16, _) => 0xC61C,
                    (_, Mask::Hidden) => f32::NEG_INFINITY.to_bits().into(),
                    _ => (-1e4f32).to_bits().into(),
                };
                y = made.node(Function::MaskedFill(hidden), vec![of_all(mask), all(y, scores)], scores);
            }
        }
        y = made.node(Function::Softmax(keys), vec![all(y, scores)], scores);
        let p = operand(y, 0, &[(heads, queries * keys), (queries, keys), (keys, 1)]);
        y = made.node(Function::Matmul, vec![p, rows(operands[2], keys)], lens[0]);
        if self.in_f32 {
            y = made.cast(self.element, y, lens[0]);
        }
        made.graph(y)
    }

    /// What is added to the score of a key, or whether it is hidden.
    fn masks(&self) -> Vec<(&'static str, MaskAt)> {
        const HIDDEN: f64 = f64::NEG_INFINITY;
        match self.mask {
            Mask::None => vec![("no mask", |_, _| 0.)],
            Mask::Added => vec![
                ("zeros", |_, _| 0.),
                ("-10000 on all", |_, _| -1e4),
                ("-10000 on a third", |_, key| if key % 3 == 1 { -1e4 } else { 0. }),
                ("-10000 on all but one", |query, key| if key == query % 31 { 0. } else { -1e4 }),
                ("+30 on one", |query, key| if key == query % 31 { 30. } else { 0. }),
                ("one unmasked key", |query, key| if key == query % 31 { 0. } else { HIDDEN }),
                ("earlier keys", |query, key| if key > query { HIDDEN } else { 0. }),
                ("the least number", |_, key| if key % 3 == 1 { -65504. } else { 0. }),
                ("distances", |query, key| -0.5 * query.abs_diff(key) as f64),
                ("a thousand and a half", |_, key| 1000.5 + (key % 4) as f64 / 4.),
            ],
            Mask::Hidden => vec![
                ("nothing", |_, _| 0.),
                ("a third", |_, key| f64::from(u8::from(key % 3 == 1))),
                ("all but one", |query, key| f64::from(u8::from(key != query % 31))),
                ("later keys", |query, key| f64::from(u8::from(key > query))),
            ],
            Mask::Low | Mask::LowBeside => vec![
                ("a third", |_, key| f64::from(u8::from(key % 3 == 1))),
                ("all of some", |query, key| f64::from(u8::from(query % 5 == 2 || key > query))),
            ],
        }
    }

    fn operands(&self) -> Vec<Operands> {
        let [heads, queries, keys, size] = self.sizes;
        let width = size as usize;
        let of = |seed: u64, tokens: u64| noise(seed, heads * tokens * size);
        let times = |numbers: Vec<f64>, factor: f64| numbers.into_iter().map(|x| x * factor).collect::<Vec<_>>();
        let plain = || [of(1, queries), of(2, keys), of(3, keys)];
        let with = |change: &dyn Fn(&mut [Vec<f64>; 3])| {
            let mut operands = plain();
            change(&mut operands);
            operands
        };
        let kinds: Vec<(&str, [Vec<f64>; 3])> = vec![
            ("plain", plain()),
            ("scores of tens", with(&|[q, ..]| *q = times(q.clone(), 10.))),
            ("scores of thousands", with(&|[q, k, _]| (*q, *k) = (times(q.clone(), 30.), times(k.clone(), 30.)))),
            ("large values", with(&|[.., v]| *v = times(v.clone(), 4e3))),
            ("all large", with(&|all| all.iter_mut().for_each(|x| *x = times(x.clone(), 60.)))),
            ("all small", with(&|all| all.iter_mut().for_each(|x| *x = times(x.clone(), 1e-3)))),
            ("denormal values", with(&|[.., v]| *v = times(v.clone(), 2f64.powi(-20)))),
            ("keys of a large mean", with(&|[_, k, _]| k.iter_mut().for_each(|x| *x += 50.))),
            (
                "values that cancel",
                with(&|[.., v]| {
                    v.iter_mut()
                        .enumerate()
                        .for_each(|(at, x)| *x += if (at / width).is_multiple_of(2) { 300. } else { -300. })
                }),
            ),
            (
                "tokens alike",
                with(&|[_, k, v]| {
                    for x in [k, v] {
                        for at in width..x.len() {
                            x[at] = x[at % width];
                        }
                    }
                }),
            ),
            (
                "one large element",
                with(&|[q, k, _]| [q, k].into_iter().for_each(|x| x.iter_mut().step_by(width).for_each(|x| *x *= 60.))),
            ),
        ];
        // Of a cap, two factors become one number, which rounds once more.
        let least = if self.is_capped { 1.5 } else { 1. };
        let mut operands = Vec::new();
        for (mask, of) in self.masks() {
            let mask_of = || (0..queries * keys).map(|at| of((at / keys) as usize, (at % keys) as usize));
            for (kind, numbers) in &kinds {
                let distance = |at: u64| -0.5 * (at / keys).abs_diff(at % keys) as f64;
                let bias = (self.mask == Mask::LowBeside).then(|| (0..queries * keys).map(distance).collect());
                let masks = (self.mask != Mask::None).then(|| mask_of().collect());
                let numbers = numbers.iter().cloned().chain(bias).chain(masks).collect();
                operands.push(Operands { kind: format!("{mask}, {kind}"), numbers, room: room(kind).max(least) });
            }
        }
        operands
    }
}

/// Where scores are large, the few rows in which two keys come close decide, and on them the luck of one rounding. Where few keys have
/// weights that are alike, candle's sums are short; tensor cores round them towards zero.
fn room(kind: &str) -> f64 {
    match kind {
        "scores of thousands" | "all large" => 4.,
        "all small" | "values that cancel" => 1.5,
        // All scores of a row have one error.
        "tokens alike" => 1.05,
        _ => 1.,
    }
}

/// Judges each mask on these sizes, and caps.
fn judged(sizes: [u64; 4], element: Element, in_f32: bool) -> Result<()> {
    for mut judge in Judge::all() {
        for mask in [Mask::None, Mask::Added, Mask::Hidden, Mask::Low, Mask::LowBeside] {
            for is_capped in [false, true] {
                let case = Case { sizes, mask, in_f32, is_capped, element };
                let how = [if in_f32 { " in f32" } else { "" }, if is_capped { " capped" } else { "" }];
                let said = format!("attention {sizes:?} {mask:?}{}", how.concat());
                judge.judge(&said, &case.graph(), case.operands())?;
            }
        }
        judge.assert();
    }
    Ok(())
}

#[test]
fn attention_in_f16_is_no_less_accurate_on_any_operands() -> Result<()> {
    judged([4, 70, 90, 64], Element::F16, false)
}

#[test]
fn attention_in_bf16_is_no_less_accurate_on_any_operands() -> Result<()> {
    judged([4, 70, 90, 128], Element::Bf16, false)
}

#[test]
fn attention_in_f32_is_no_less_accurate_on_any_operands() -> Result<()> {
    judged([4, 70, 90, 64], Element::F32, false)
}

#[test]
fn attention_of_small_heads_in_f32_is_no_less_accurate_on_any_operands() -> Result<()> {
    judged([8, 33, 257, 40], Element::F32, false)
}

#[test]
fn attention_of_16_bits_as_in_f32_is_no_less_accurate_on_any_operands() -> Result<()> {
    judged([4, 70, 90, 64], Element::F16, true)?;
    judged([4, 70, 90, 40], Element::Bf16, true)
}

#[test]
fn attention_of_one_query_is_no_less_accurate_on_any_operands() -> Result<()> {
    for element in FLOATS {
        judged([32, 1, 90, 64], element, false)?;
    }
    Ok(())
}
