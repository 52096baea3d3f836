//! What a chain's kernel does, in CUDA C++ on top of `chain.cuh`.

use std::fmt::Write;

use super::dtype::Type;
use super::part::Part;
use crate::cuda::driver::kernels::chain::{Chain, Written};
use crate::fuse::Places;

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Code {
    /// To the step's type, which may be the same.
    Cast,
    /// What the function of this name makes of so many operands.
    ElementWise(&'static str, usize),
    /// Factor and summand.
    Affine(f32, f32),
    /// Of each row the sum. So many neighbours are what a thread of candle's takes at once.
    RowSum(u32),
    RowMax,
    RowMin,
    Softmax,
    /// What is added to what it divides by.
    LayerNorm(f32),
    RmsNorm(f32),
}

/// Where a step takes an operand from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// The result of this step.
    Step(usize),
    /// Elements of a type in memory, from an address on.
    Memory(u64, Type, Places),
}

/// A step of a program.
pub(super) struct Step<'a> {
    pub code: Code,
    /// Type of the arithmetic and of the result.
    pub of: Type,
    pub operands: &'a [Source],
    /// Whether it is done on one number of each row instead of on each element.
    pub on_numbers: bool,
    /// Where the result is stored.
    pub target: Option<u64>,
}

impl Code {
    /// Whether it makes one number of a row.
    pub fn folds(self) -> bool {
        matches!(self, Self::RowSum(_) | Self::RowMax | Self::RowMin)
    }

    /// The call of a function of `chain.cuh`.
    fn call(self, of: Type, operands: &str) -> String {
        let number = |x: f32| format!("__int_as_float({:#x})", x.to_bits());
        match self {
            Self::Cast => format!("cast<{}>({operands})", of.name()),
            Self::ElementWise(name, _) => format!("{name}({operands})"),
            Self::Affine(factor, summand) => format!("affine({operands}, {}, {})", number(factor), number(summand)),
            Self::RowSum(_) if of == Type::F16 => format!("candle_fold<CandleSum>(mine, {operands})"),
            Self::RowSum(neighbours) => format!("candle_sum<{neighbours}>(mine, {operands})"),
            Self::RowMax => format!("candle_fold<CandleMax>(mine, {operands})"),
            Self::RowMin => format!("candle_fold<CandleMin>(mine, {operands})"),
            Self::Softmax => format!("candle_softmax(mine, {operands})"),
            Self::LayerNorm(epsilon) => format!("candle_layer_norm(mine, {operands}, {})", number(epsilon)),
            Self::RmsNorm(epsilon) => format!("candle_rms_norm(mine, {operands}, {})", number(epsilon)),
        }
    }
}

/// Steps on operands of one number of elements, or of rows.
pub(super) struct Program {
    part: Part,
    argument: Chain,
    steps: usize,
    reads: usize,
    loads_at_once: bool,
    /// The body of the kernel.
    body: String,
}

impl Program {
    /// Without steps, of threads that make such parts.
    pub fn new(part: Part) -> Self {
        Self { part, argument: Chain::default(), steps: 0, reads: 0, loads_at_once: true, body: String::new() }
    }

    /// Adds a step.
    ///
    /// # Returns
    /// Offsets among the kernel's arguments of the pointers to the operands in memory, and to where the result is stored;
    /// `None` if there are too many operands, or if it is stored and there are too many steps.
    pub fn step(&mut self, step: &Step<'_>) -> Option<Vec<usize>> {
        let at = self.steps;
        let mut words = Vec::new();
        let mut operands = Vec::new();
        for source in step.operands {
            operands.push(match *source {
                Source::Step(step) => format!("s{step}"),
                Source::Memory(from, of, places) => {
                    self.argument.read(self.reads, from)?;
                    words.push(Chain::operand_word(self.reads));
                    let load = if step.on_numbers { "load_number" } else { self.part.load(from, of, &places) };
                    self.loads_at_once &= load != "load";
                    let places = places.all().rev().map(|(dim, stride)| format!(", {dim}, {stride}"));
                    let places: String = places.collect();
                    self.reads += 1;
                    format!("mine.{load}<{}{places}>(chain.from[{}])", of.name(), self.reads - 1)
                }
            });
        }
        let call = step.code.call(step.of, &operands.join(", "));
        writeln!(self.body, "    const auto s{at} = {call};").ok()?;
        if let Some(to) = step.target {
            self.argument.store(at, to)?;
            words.push(Chain::result_word(at));
            let store = match step.on_numbers || step.code.folds() {
                true => "store_number",
                false if self.part.is_aligned(to, step.of) => "store_together",
                false => "store",
            };
            writeln!(self.body, "    mine.{store}(s{at}, chain.to[{at}]);").ok()?;
        }
        self.steps += 1;
        Some(words)
    }

    /// Whether each thread loads all its elements of an operand at once.
    pub fn loads_at_once(&self) -> bool {
        self.loads_at_once
    }

    /// Of the kernel, without what tells it from others.
    pub fn name(&self) -> &'static str {
        if self.part.columns > 0 {
            "opara_chain_rows"
        } else {
            "opara_chain"
        }
    }

    /// The kernel and its launch.
    pub fn written(&self) -> Written {
        let (name, Part { elements, columns, rows, n, block }) = (self.name(), self.part);
        let apart = if self.part.is_together() { 1 } else { block };
        let threads = rows * block;
        let kernel = format!("void __launch_bounds__({threads}) KERNEL(const __grid_constant__ Chain chain)");
        let mine = format!("    const Part<{n}, {apart}, {elements}, {columns}, {rows}> mine;\n");
        let code = format!("extern \"C\" __global__ {kernel} {{\n{mine}{}}}\n", self.body);
        Written { name, code, config: self.part.config(), argument: self.argument }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::compile::compile_for;
    use crate::kernel_catalog::{Operation, ROWS};

    fn memory(of: Type) -> Source {
        Source::Memory(0xa000, of, Places::default())
    }

    #[test]
    fn a_kernel_says_what_its_steps_do() {
        let mut program = Program::new(Part::of(10 * 768, Some(768)).unwrap());
        let of_columns = Source::Memory(0xb000, Type::F16, Places::new(&[10, 768], &[0, 1]).unwrap());
        let add = Step {
            code: Code::ElementWise("add", 2),
            of: Type::F16,
            operands: &[memory(Type::F16), of_columns],
            on_numbers: false,
            target: None,
        };
        assert_eq!(program.step(&add), Some(vec![Chain::operand_word(0), Chain::operand_word(1)]));
        let sum = Step { code: Code::RowSum(1), operands: &[Source::Step(0)], target: Some(0xc000), ..add };
        assert_eq!(program.step(&sum), Some(vec![Chain::result_word(1)]));
        let on_numbers = Step { code: Code::Affine(0.5, 0.), on_numbers: true, target: None, ..sum };
        let on_numbers = Step { operands: &[memory(Type::F16)], ..on_numbers };
        assert_eq!(program.step(&on_numbers), Some(vec![Chain::operand_word(2)]));
        let code = "\
extern \"C\" __global__ void __launch_bounds__(384) KERNEL(const __grid_constant__ Chain chain) {
    const Part<2, 1, 7680, 768, 1> mine;
    const auto s0 = add(mine.load_together<__half>(chain.from[0]), mine.load_together<__half, 768, 1, 10, 0>(chain.from[1]));
    const auto s1 = candle_fold<CandleSum>(mine, s0);
    mine.store_number(s1, chain.to[1]);
    const auto s2 = affine(mine.load_number<__half>(chain.from[2]), __int_as_float(0x3f000000), __int_as_float(0x0));
}
";
        assert_eq!(program.written().code, code);
    }

    /// Needs the compiler, and no GPU.
    #[test]
    fn every_step_compiles_in_every_type() {
        let element_wise = ROWS.iter().filter_map(|row| match row.operation? {
            Operation::Unary(name) => Some(Code::ElementWise(name, 1)),
            Operation::Binary(name) => Some(Code::ElementWise(name, 2)),
            _ => None,
        });
        let of_rows = [Code::RowMax, Code::RowMin, Code::Softmax, Code::LayerNorm(1e-5), Code::RmsNorm(1e-5)];
        let sums = [1, 4, 8].map(Code::RowSum);
        let all = element_wise.chain([Code::Cast, Code::Affine(2., f32::NAN)]).chain(of_rows).chain(sums);
        let all: Vec<Code> = all.collect();
        let mut kernels = Vec::new();
        for of in [Type::F32, Type::F16, Type::Bf16] {
            let shapes = [(3, 64), (1024, 64), (3, 1500), (3, 3072)];
            for ((rows, columns), some) in shapes.into_iter().flat_map(|shape| all.chunks(4).map(move |s| (shape, s))) {
                let mut program = Program::new(Part::of(rows * columns, Some(columns)).unwrap());
                for (at, &code) in some.iter().enumerate() {
                    let from = if code == Code::Cast { Type::F32 } else { of };
                    let operands = match code {
                        Code::ElementWise(_, operands) => operands,
                        Code::LayerNorm(_) => 3,
                        Code::RmsNorm(_) => 2,
                        _ => 1,
                    };
                    let operands = vec![memory(from); operands];
                    program
                        .step(&Step { code, of, operands: &operands, on_numbers: at == 3, target: Some(1) })
                        .unwrap();
                }
                kernels.push(program.written());
            }
        }
        for architecture in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"] {
            let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
            for kernel in compile_for(architecture, kernels, None) {
                let kernel = kernel.unwrap();
                assert!(kernel.name.starts_with("opara_chain_rows_"));
                let section = format!(".text.{}\0", kernel.name);
                let is_there = kernel.module.code.windows(section.len()).any(|bytes| bytes == section.as_bytes());
                assert!(is_there, "{}", kernel.name);
            }
        }
    }

    /// Needs the compiler, and no GPU.
    #[test]
    fn every_way_to_load_and_to_store_compiles() {
        let of_elements = [1000, 1 << 16, (1 << 16) + 1, 1 << 20].map(|elements| (elements, None));
        let of_rows = [2, 33, 100, 1024, 1025, 2050, 3072, 4096].map(|columns| [(3, columns), (2000, columns)]);
        let of_rows = of_rows.into_iter().flatten().map(|(rows, columns)| (rows * columns, Some(columns)));
        let mut kernels = Vec::new();
        for (elements, columns) in of_elements.into_iter().chain(of_rows) {
            for of in [Type::F32, Type::F16, Type::Bf16] {
                let part = Part::of(elements, columns).unwrap();
                let mut program = Program::new(part.wider(of).unwrap_or(part));
                let width = columns.unwrap_or(8);
                let laid = |dims: &[u64], strides: &[u64]| Places::new(dims, strides).unwrap();
                let ways = [
                    (0xa000, Places::default()),
                    (0xa002, Places::default()),
                    (0xa000, laid(&[elements / width, width], &[0, 1])),
                    (0xa000, laid(&[elements / width, width], &[1, 0])),
                    (0xa000, laid(&[elements / width, width], &[2 * width, 1])),
                    (0xa000, laid(&[2, 3, 5, 7], &[1, 2, 6, 30])),
                ];
                for (address, places) in ways {
                    let operands = [Source::Memory(address, of, places)];
                    let step =
                        Step { code: Code::Cast, of, operands: &operands, on_numbers: false, target: Some(address) };
                    program.step(&step).unwrap();
                }
                kernels.push(program.written());
            }
        }
        let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
        compile_for("sm_90", kernels, None).into_iter().for_each(|kernel| drop(kernel.unwrap()));
    }
}
