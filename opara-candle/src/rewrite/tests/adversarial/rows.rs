//! Norms, softmax, products and means.

use super::*;

const ROWS: u64 = 40;
const COLUMNS: u64 = 96;

/// Rows of each kind, then vectors and weights of plain numbers.
fn operands(graph: &Graph) -> Vec<Operands> {
    let of = |kind: Numbers| {
        let each = graph.inputs.iter().enumerate().map(|(at, input)| {
            let numbers = noise(at as u64 + 40, input.len).into_iter();
            match input.is_constant {
                true if input.len > COLUMNS => numbers.map(|x| x / (COLUMNS as f64).sqrt()).collect(),
                true => numbers.collect(),
                false => numbers.enumerate().map(|(at, x)| kind(at, x)).collect(),
            }
        });
        each.collect()
    };
    // Few rows have a number at all there, each of less than half a rounding.
    let room = |name: &str| if name == "one that is not zero" { 1.5 } else { 1. };
    KINDS.iter().map(|&(name, kind)| Operands { kind: name.into(), numbers: of(kind), room: room(name) }).collect()
}

fn judged(said: &str, graph: impl Fn(Made) -> Graph) -> Result<()> {
    let mut judge = Judge::of(Device::Cpu);
    for element in FLOATS {
        let graph = graph(Made::new(element));
        judge.judge(said, &graph, operands(&graph))?;
    }
    judge.assert();
    Ok(())
}

/// Rows without their mean, if asked, over the root of their mean square, times a weight and plus a bias.
fn norm(mut made: Made, x: Value, is_rms: bool) -> Graph {
    let len = ROWS * COLUMNS;
    let each = |value| operand(value, 0, &[(ROWS, 1), (COLUMNS, 0)]);
    let part = Function::Affine(1. / COLUMNS as f32, 0.);
    let mean = |made: &mut Made, of: Value| {
        let sum = made.node(Function::RowSum(COLUMNS), vec![all(of, len)], ROWS);
        made.node(part.clone(), vec![all(sum, ROWS)], ROWS)
    };
    let mut distance = x;
    if !is_rms {
        let of = mean(&mut made, x);
        distance = made.binary("sub", [all(x, len), each(of)]);
    }
    let squares = made.unary("sqr", distance, len);
    let of = mean(&mut made, squares);
    let plus = made.node(Function::Affine(1., 1e-5), vec![all(of, ROWS)], ROWS);
    let root = made.unary("sqrt", plus, ROWS);
    let mut y = made.binary("div", [all(distance, len), each(root)]);
    for name in ["mul", "add"].into_iter().take(if is_rms { 1 } else { 2 }) {
        let vector = made.weight(COLUMNS);
        y = made.binary(name, [all(y, len), operand(vector, 0, &[(ROWS, 0), (COLUMNS, 1)])]);
    }
    made.graph(y)
}

#[test]
fn norms_of_rows_are_no_less_accurate_on_any_operands() -> Result<()> {
    for is_rms in [false, true] {
        judged(&format!("norm, RMS {is_rms}"), |mut made| {
            let x = made.input(ROWS * COLUMNS);
            norm(made, x, is_rms)
        })?;
    }
    Ok(())
}

#[test]
fn norms_of_sums_are_no_less_accurate_on_any_operands() -> Result<()> {
    for is_rms in [false, true] {
        judged(&format!("norm of a sum, RMS {is_rms}"), |mut made| {
            let len = ROWS * COLUMNS;
            let [x, residual] = [made.input(len), made.input(len)];
            let sum = made.binary("add", [all(x, len), all(residual, len)]);
            let vector = |value| operand(value, 0, &[(ROWS, 0), (COLUMNS, 1)]);
            let mut operands = vec![all(sum, len), vector(made.weight(COLUMNS))];
            let function = if is_rms {
                Function::RmsNorm(COLUMNS, 1e-6)
            } else {
                operands.push(vector(made.weight(COLUMNS)));
                Function::LayerNorm(COLUMNS, 1e-5)
            };
            let y = made.node(function, operands, len);
            made.graph(y)
        })?;
    }
    Ok(())
}

#[test]
fn softmax_is_no_less_accurate_on_any_operands() -> Result<()> {
    judged("softmax", |mut made| {
        let len = ROWS * COLUMNS;
        let each = |value| operand(value, 0, &[(ROWS, 1), (COLUMNS, 0)]);
        let x = made.input(len);
        let most = made.node(Function::RowMax(COLUMNS), vec![all(x, len)], ROWS);
        let below = made.binary("sub", [all(x, len), each(most)]);
        let powers = made.unary("exp", below, len);
        let sum = made.node(Function::RowSum(COLUMNS), vec![all(powers, len)], ROWS);
        let y = made.binary("div", [all(powers, len), each(sum)]);
        made.graph(y)
    })
}

#[test]
fn means_are_no_less_accurate_on_any_operands() -> Result<()> {
    judged("mean", |mut made| {
        let rows = 8 * ROWS;
        let x = made.input(rows * COLUMNS);
        let sum = made.node(Function::RowSum(COLUMNS), vec![all(x, rows * COLUMNS)], rows);
        let y = made.node(Function::Affine(1. / COLUMNS as f32, 0.), vec![all(sum, rows)], rows);
        made.graph(y)
    })
}

/// A product of rows with a weight of its own, and a bias if asked.
fn product(made: &mut Made, x: Value, has_bias: bool) -> Value {
    let weight = made.weight(COLUMNS * COLUMNS);
    let rows = operand(x, 0, &[(1, 0), (ROWS, COLUMNS), (COLUMNS, 1)]);
    let columns = operand(weight, 0, &[(1, 0), (COLUMNS, 1), (COLUMNS, COLUMNS)]);
    let y = made.node(Function::Matmul, vec![rows, columns], ROWS * COLUMNS);
    if !has_bias {
        return y;
    }
    let bias = made.weight(COLUMNS);
    made.binary("add", [all(y, ROWS * COLUMNS), operand(bias, 0, &[(ROWS, 0), (COLUMNS, 1)])])
}

#[test]
fn products_are_no_less_accurate_on_any_operands() -> Result<()> {
    for activation in [None, Some("relu"), Some("gelu"), Some("gelu_erf"), Some("silu")] {
        judged(&format!("product, bias, {activation:?}"), |mut made| {
            let x = made.input(ROWS * COLUMNS);
            let y = product(&mut made, x, true);
            let y = activation.map_or(y, |name| made.unary(name, y, ROWS * COLUMNS));
            made.graph(y)
        })?;
    }
    Ok(())
}

#[test]
fn gated_units_are_no_less_accurate_on_any_operands() -> Result<()> {
    for (activation, has_bias) in [("silu", false), ("gelu", true)] {
        judged(&format!("gated unit, {activation}"), |mut made| {
            let x = made.input(ROWS * COLUMNS);
            let gate = product(&mut made, x, has_bias);
            let gate = made.unary(activation, gate, ROWS * COLUMNS);
            let up = product(&mut made, x, has_bias);
            let y = made.binary("mul", [all(gate, ROWS * COLUMNS), all(up, ROWS * COLUMNS)]);
            made.graph(y)
        })?;
    }
    Ok(())
}
