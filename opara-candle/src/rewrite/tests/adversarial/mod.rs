//! Each operator that a rule puts in, on operands that are made to break it: of many magnitudes, hidden by finite masks, cancelling each
//! other, alike, around a large mean. A run is chosen on plain operands, as a build does it, and judged on all of the others by the same
//! promise. On the CPU, and on a GPU if there is one.

mod attention;
mod images;
mod rows;

use candle::{DType, Device, Result, Tensor};
use opara_plan::rewrite::{Compute, Errors, Graph, Input, Node, Operand, Output, Value};
use opara_plan::trace::{Element, Function};

use super::super::accuracy::{errors, unit, EXPLAINED};
use super::super::choice::choose;
use super::super::set::{joined, Set};
use super::{evaluate, operand, Arithmetic};

/// The types of floats.
const FLOATS: [Element; 3] = [Element::F16, Element::Bf16, Element::F32];

/// A graph that is being made, whose floats are of one type.
struct Made {
    element: Element,
    inputs: Vec<Input>,
    nodes: Vec<Node>,
}

impl Made {
    fn new(element: Element) -> Self {
        Self { element, inputs: Vec::new(), nodes: Vec::new() }
    }

    fn input(&mut self, len: u64) -> Value {
        self.input_of(self.element, len, false)
    }

    fn weight(&mut self, len: u64) -> Value {
        self.input_of(self.element, len, true)
    }

    fn input_of(&mut self, element: Element, len: u64, is_constant: bool) -> Value {
        self.inputs.push(Input { buffer: 0, element, len, is_constant });
        Value::Input(self.inputs.len() - 1)
    }

    fn node(&mut self, function: Function, operands: Vec<Operand>, len: u64) -> Value {
        self.of(Compute::Recorded(function), operands, len)
    }

    fn of(&mut self, compute: Compute, operands: Vec<Operand>, len: u64) -> Value {
        self.nodes.push(Node::new(compute, operands, self.element, len));
        Value::Node(self.nodes.len() - 1)
    }

    /// A node whose result, and those behind it, are of this type.
    fn cast(&mut self, to: Element, value: Value, len: u64) -> Value {
        self.element = to;
        self.node(Function::Copy, vec![all(value, len)], len)
    }

    fn unary(&mut self, name: &str, value: Value, len: u64) -> Value {
        self.node(Function::Unary(name.into()), vec![all(value, len)], len)
    }

    fn binary(&mut self, name: &str, operands: [Operand; 2]) -> Value {
        let len = operands[0].len();
        self.node(Function::Binary(name.into()), operands.into(), len)
    }

    fn graph(self, output: Value) -> Graph {
        let Self { inputs, nodes, .. } = self;
        Graph { inputs, nodes, outputs: vec![Output { value: output, buffer: 9 }] }
    }
}

fn all(value: Value, len: u64) -> Operand {
    operand(value, 0, &[(len, 1)])
}

/// Random numbers of mean 0 and variance 1, nearly normal.
fn noise(seed: u64, len: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x2545_F491_4F6C_DD1D;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..len).map(|_| ((0..6).map(|_| uniform()).sum::<f64>() - 3.) * std::f64::consts::SQRT_2).collect()
}

/// What numbers are made of plain ones: the number at an index.
type Numbers = fn(usize, f64) -> f64;

/// What every operator is judged on: a name, and how plain numbers change. Attention and images have more of their own.
const KINDS: [(&str, Numbers); 10] = [
    ("plain", |_, x| x),
    ("large", |_, x| 60. * x),
    ("very large", |_, x| 4e3 * x),
    ("small", |_, x| x / 1024.),
    ("denormal in f16", |_, x| x / 2f64.powi(18)),
    ("many magnitudes", |at, x| x * 2f64.powi((at * 7 % 23) as i32 - 14)),
    ("a large mean", |_, x| 100. + x),
    ("pairs that cancel", |at, x| if at % 2 == 0 { 300. } else { -300. } + x),
    ("alike", |at, _| (at % 5) as f64 - 1.7),
    ("one that is not zero", |at, x| if at % 97 == 13 { 8. * x } else { 0. }),
];

/// Numbers in an element's type, on a device.
fn tensor(device: &Device, element: Element, numbers: Vec<f64>) -> Result<Tensor> {
    let len = numbers.len();
    Tensor::from_vec(numbers, len, &Device::Cpu)?.to_dtype(Arithmetic::Typed.dtype(element))?.to_device(device)
}

/// Operands of a run.
struct Operands {
    /// What they are.
    kind: String,
    /// The numbers of each input.
    numbers: Vec<Vec<f64>>,
    /// As many times may errors be as large as the promise says, where that is more than once.
    room: f64,
}

/// The verdicts on a rule, and a line for each.
struct Judge {
    device: Device,
    failed: Vec<String>,
    /// Results that were judged, and runs that stay candle's.
    judged: usize,
    stay: usize,
}

impl Judge {
    fn of(device: Device) -> Self {
        Self { device, failed: Vec::new(), judged: 0, stay: 0 }
    }

    /// One for the CPU, and one for a GPU.
    fn all() -> Vec<Self> {
        #[cfg(feature = "cuda")]
        let gpu = crate::test_device::gpu();
        #[cfg(not(feature = "cuda"))]
        let gpu = None;
        [Some(Device::Cpu), gpu].into_iter().flatten().map(Self::of).collect()
    }

    /// The inputs of a graph, of these numbers.
    fn inputs(&self, graph: &Graph, numbers: Vec<Vec<f64>>) -> Result<Vec<Tensor>> {
        let inputs = graph.inputs.iter().zip(numbers);
        inputs.map(|(input, numbers)| tensor(&self.device, input.element, numbers)).collect()
    }

    /// Judges what rules make of a graph on the first operands, which are plain, by all of them.
    fn judge(&mut self, said: &str, graph: &Graph, operands: Vec<Operands>) -> Result<()> {
        let element = graph.element(graph.outputs[0].value);
        let said = format!("{} | {said} | {element:?}", if self.device.is_cuda() { "GPU" } else { "CPU" });
        let mut chosen = None;
        for Operands { kind, numbers, room } in operands {
            let inputs = self.inputs(graph, numbers)?;
            let candle = evaluate(graph, &inputs, Arithmetic::Typed)?;
            if chosen.is_none() {
                let set = Set::new(graph, inputs.clone(), candle.clone())?;
                match choose(graph, &[], &[set])? {
                    Ok(choice) => chosen = Some(choice.graph),
                    Err(reason) => {
                        println!("{said} | stays candle's: {reason}");
                        self.stay += 1;
                        return Ok(());
                    }
                }
            }
            let Some(changed) = &chosen else { continue };
            let reference = evaluate(&joined(graph), &inputs, Arithmetic::In(DType::F64))?;
            let ours = evaluate(changed, &inputs, Arithmetic::Typed)?;
            let unit = unit(candle[0].dtype());
            let errors = errors(unit, [&reference[0], &candle[0], &ours[0]])?;
            self.note(&format!("{said} | {kind}"), unit, room, errors);
        }
        Ok(())
    }

    fn note(&mut self, said: &str, unit: f64, room: f64, errors: std::result::Result<[Errors; 2], String>) {
        let [candle, ours] = match errors {
            Ok(errors) => errors,
            // candle's operators overflow on all of them.
            Err(reason) if reason.starts_with("no element is finite") => return,
            Err(reason) => return self.failed.push(format!("{said}: {reason}")),
        };
        // Operands whose errors candle's operators multiply tell nothing.
        if candle.rms * unit > EXPLAINED {
            return;
        }
        self.judged += 1;
        let line = format!(
            "{said} | {:.3}, at most {:.2} | candle {:.3}, at most {:.2}",
            ours.rms, ours.max, candle.rms, candle.max
        );
        println!("{line}");
        if ours.rms > room * (1.05 * candle.rms + 0.05) || ours.max > room * (1.5 * candle.max + 1.) {
            self.failed.push(line);
        }
    }

    fn assert(self) {
        assert!(
            self.judged + self.stay > 0 && self.failed.is_empty(),
            "{} of {}:\n{}",
            self.failed.len(),
            self.judged,
            self.failed.join("\n")
        );
    }
}
