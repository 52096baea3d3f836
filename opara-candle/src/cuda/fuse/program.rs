//! What a chain's kernel does, in CUDA C++ on top of `chain.cuh`.

use std::fmt::Write;

use cudarc::driver::LaunchConfig;

use crate::cuda::driver::kernels::chain::{Chain, Written};
use crate::fuse::Places;

/// The most columns of a row.
pub(super) const COLUMNS: u64 = 4096;
/// The most threads of a block.
const THREADS: u32 = 1024;
/// Threads of a block where nothing is made of rows.
const BLOCK: u32 = 128;
/// Elements from which on a thread makes several: so many fill an H200.
const MANY: u32 = 132 * 2048 * 4;

/// Type of a value in memory, and of a step's arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    F32,
    F16,
    Bf16,
}

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Code {
    /// A cast to the step's type, or a copy; element-wise, of so many operands, by the function of this name.
    Cast,
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

impl Type {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F16 => "__half",
            Self::Bf16 => "__nv_bfloat16",
        }
    }
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
            Self::RowSum(_) if of == Type::F16 => format!("candle_fold<CandleSum>({operands}, chain.columns)"),
            Self::RowSum(neighbours) => format!("candle_sum<{neighbours}>({operands}, chain.columns)"),
            Self::RowMax => format!("candle_fold<CandleMax>({operands}, chain.columns)"),
            Self::RowMin => format!("candle_fold<CandleMin>({operands}, chain.columns)"),
            Self::Softmax => format!("candle_softmax({operands}, chain.columns)"),
            Self::LayerNorm(epsilon) => format!("candle_layer_norm({operands}, chain.columns, {})", number(epsilon)),
            Self::RmsNorm(epsilon) => format!("candle_rms_norm({operands}, chain.columns, {})", number(epsilon)),
        }
    }
}

/// Steps on operands of one number of elements, or of rows.
pub(super) struct Program {
    argument: Chain,
    steps: usize,
    reads: usize,
    /// The body of the kernel.
    body: String,
}

impl Program {
    /// Without steps; of rows, if there are columns. `None` if there are too many elements.
    pub fn new(elements: u64, columns: Option<u64>) -> Option<Self> {
        Some(Self { argument: Chain::new(elements, columns)?, steps: 0, reads: 0, body: String::new() })
    }

    /// Adds a step.
    ///
    /// # Returns
    /// Offsets among the kernel's arguments of the pointers to the operands in memory, and to where the result is stored;
    /// `None` if there are too many steps or operands.
    pub fn step(&mut self, step: &Step<'_>) -> Option<Vec<usize>> {
        let (at, n) = (self.steps, self.of_a_thread());
        let (loads, stores) = match (step.on_numbers, step.code.folds()) {
            (true, _) => (format!("number_to_load<{n}>()"), format!("number_to_store<{n}>()")),
            (false, true) => ("mine".into(), format!("number_to_store<{n}>()")),
            (false, false) => ("mine".into(), "mine".into()),
        };
        let mut words = Vec::new();
        let mut operands = Vec::new();
        for source in step.operands {
            operands.push(match *source {
                Source::Step(step) => format!("s{step}"),
                Source::Memory(from, of, places) => {
                    let read = self.reads;
                    self.argument.read(read, from, places)?;
                    self.reads += 1;
                    words.push(Chain::operand_word(read));
                    format!("{loads}.load<{}, {}>(chain.read[{read}])", of.name(), places.raw().2)
                }
            });
        }
        let call = step.code.call(step.of, &operands.join(", "));
        writeln!(self.body, "    const auto s{at} = {call};").ok()?;
        if let Some(to) = step.target {
            self.argument.store(at, to)?;
            words.push(Chain::result_word(at));
            writeln!(self.body, "    {stores}.store(s{at}, chain.to[{at}]);").ok()?;
        }
        self.steps += 1;
        Some(words)
    }

    pub fn name(&self) -> &'static str {
        match self.argument.size() {
            (_, None) => "opara_chain",
            (_, Some(_)) => "opara_chain_rows",
        }
    }

    /// Elements that a thread makes.
    fn of_a_thread(&self) -> u32 {
        match self.argument.size() {
            (_, Some(columns)) => columns.div_ceil(THREADS),
            (MANY.., None) => 4,
            (_, None) => 1,
        }
    }

    /// The kernel and its launch.
    pub fn written(&self) -> Written {
        let (name, n) = (self.name(), self.of_a_thread());
        let (share, most, config) = match self.argument.size() {
            (elements, None) => {
                let grid_dim = (elements.div_ceil(n * BLOCK), 1, 1);
                ("share_of", BLOCK, LaunchConfig { grid_dim, block_dim: (BLOCK, 1, 1), shared_mem_bytes: 0 })
            }
            (elements, Some(columns)) => {
                let block_dim = (columns.div_ceil(n).next_multiple_of(32), 1, 1);
                // Of each column a number, and of what is missing to a power of two.
                let shared_mem_bytes = columns.next_power_of_two() * size_of::<f32>() as u32;
                let grid_dim = (elements / columns, 1, 1);
                ("share_of_row", THREADS, LaunchConfig { grid_dim, block_dim, shared_mem_bytes })
            }
        };
        let mine = format!("    const Elements<{n}> mine = {share}<{n}>(chain);\n");
        let kernel = format!("void __launch_bounds__({most}) {name}(const __grid_constant__ Chain chain)");
        let code = format!("extern \"C\" __global__ {kernel} {{\n{mine}{}}}\n", self.body);
        Written { name, code, config, argument: self.argument }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::compile::compile_for;
    use crate::cuda::fuse::step::{BINARY, UNARY};

    fn memory(of: Type) -> Source {
        Source::Memory(0xa000, of, Places::default())
    }

    #[test]
    fn a_kernel_says_what_its_steps_do() {
        let mut program = Program::new(10 * 768, Some(768)).unwrap();
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
extern \"C\" __global__ void __launch_bounds__(1024) opara_chain_rows(const __grid_constant__ Chain chain) {
    const Elements<1> mine = share_of_row<1>(chain);
    const auto s0 = add(mine.load<__half, 0>(chain.read[0]), mine.load<__half, 2>(chain.read[1]));
    const auto s1 = candle_fold<CandleSum>(s0, chain.columns);
    number_to_store<1>().store(s1, chain.to[1]);
    const auto s2 = affine(number_to_load<1>().load<__half, 0>(chain.read[2]), __int_as_float(0x3f000000), \
         __int_as_float(0x0));
}
";
        assert_eq!(program.written().code, code);
    }

    /// Needs the compiler, and no GPU.
    #[test]
    fn every_step_compiles_in_every_type() {
        let element_wise = UNARY.iter().map(|name| Code::ElementWise(name, 1));
        let element_wise = element_wise.chain(BINARY.iter().map(|(_, name)| Code::ElementWise(name, 2)));
        let of_rows = [Code::RowMax, Code::RowMin, Code::Softmax, Code::LayerNorm(1e-5), Code::RmsNorm(1e-5)];
        let sums = [1, 4, 8].map(Code::RowSum);
        let all = element_wise.chain([Code::Cast, Code::Affine(2., f32::NAN)]).chain(of_rows).chain(sums);
        let all: Vec<Code> = all.collect();
        let mut kernels = Vec::new();
        for of in [Type::F32, Type::F16, Type::Bf16] {
            for (columns, some) in
                [64, 1500, 4096].into_iter().flat_map(|columns| all.chunks(4).map(move |s| (columns, s)))
            {
                let mut program = Program::new(columns * 3, Some(columns)).unwrap();
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
                kernels.push(program.written().code);
            }
        }
        for architecture in ["compute_75", "compute_80", "compute_90"] {
            let compiled = compile_for(architecture, kernels.iter().map(String::as_str)).unwrap();
            assert!(compiled.iter().all(|kernel| kernel.code.contains(".entry opara_chain_rows(")));
        }
        let error = compile_for("compute_90", ["nonsense"].into_iter()).err().unwrap().to_string();
        assert!(error.contains("not compiled for compute_90") && error.contains("nonsense"), "{error}");
    }

    #[test]
    fn a_thread_makes_several_elements_where_there_are_many() {
        let launch = |elements, columns| {
            let program = Program::new(elements, columns).unwrap();
            let Written { name, config, .. } = program.written();
            (name, program.of_a_thread(), config.grid_dim.0, config.block_dim.0, config.shared_mem_bytes)
        };
        assert_eq!(launch(1000, None), ("opara_chain", 1, 8, 128, 0));
        assert_eq!(launch(u64::from(MANY), None), ("opara_chain", 4, MANY / 512, 128, 0));
        assert_eq!(launch(1536 * 128, Some(128)), ("opara_chain_rows", 1, 1536, 128, 512));
        assert_eq!(launch(10 * 1500, Some(1500)), ("opara_chain_rows", 2, 10, 768, 8192));
        assert_eq!(launch(COLUMNS, Some(COLUMNS)), ("opara_chain_rows", 4, 1, 1024, 16384));
    }
}
