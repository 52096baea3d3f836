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
/// Elements, and rows, from which on a thread makes as many elements as gains most. Below, more threads are faster (H200).
const MANY_ELEMENTS: u32 = 1 << 16;
const MANY_ROWS: u32 = 1024;

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

    fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
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

/// What a thread makes: `Part` of `part.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// Of all rows.
    elements: u32,
    /// Of a row, of which a block makes one; 0 where nothing is made of rows.
    columns: u32,
    /// Elements of a thread.
    n: u32,
    /// Threads of a block.
    block: u32,
}

impl Part {
    /// `None` if 31 bits do not count the elements.
    fn of(elements: u64, columns: Option<u64>) -> Option<Self> {
        let elements = u32::try_from(elements).ok().filter(|&n| n <= i32::MAX as u32)?;
        Some(match columns {
            None => {
                let n = if elements < MANY_ELEMENTS { 1 } else { 4 };
                Self { elements, columns: 0, n, block: BLOCK }
            }
            Some(columns) => {
                let columns = u32::try_from(columns).ok()?;
                let n = if elements / columns < MANY_ROWS { 2 } else { 4 };
                let n = columns.div_ceil(THREADS).max(n);
                Self { elements, columns, n, block: columns.div_ceil(n).next_multiple_of(32) }
            }
        })
    }

    /// Whether the elements of a thread are neighbours.
    fn is_together(self) -> bool {
        (if self.columns > 0 { self.columns } else { self.elements }).is_multiple_of(self.n)
    }

    /// Whether neighbours lie together in memory, where they can be taken at once.
    fn is_aligned(self, address: u64, of: Type) -> bool {
        self.is_together() && address.is_multiple_of(of.bytes() * u64::from(self.n))
    }

    /// How an operand is loaded.
    fn load(self, address: u64, of: Type, places: &Places) -> &'static str {
        let n = u64::from(self.n);
        let is_whole = |(dim, stride): (u64, u64), expected| dim.is_multiple_of(n) && stride == expected;
        match places.all().next_back() {
            None if self.is_aligned(address, of) => "load_together",
            Some(inner) if self.is_together() && is_whole(inner, 0) => "load_once",
            Some(inner) if self.is_aligned(address, of) && is_whole(inner, 1) => {
                let outer = places.all().rev().skip(1);
                if outer.into_iter().all(|(_, stride)| stride.is_multiple_of(n)) {
                    "load_together"
                } else {
                    "load"
                }
            }
            _ => "load",
        }
    }

    fn config(self) -> LaunchConfig {
        let Self { elements, columns, n, block } = self;
        let (blocks, shared_mem_bytes) = match columns {
            0 => (elements.div_ceil(n * block), 0),
            // Of each column a number, and of what is missing to a power of two.
            _ => (elements / columns, columns.next_power_of_two() * size_of::<f32>() as u32),
        };
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (block, 1, 1), shared_mem_bytes }
    }
}

/// Steps on operands of one number of elements, or of rows.
pub(super) struct Program {
    part: Part,
    argument: Chain,
    steps: usize,
    reads: usize,
    /// The body of the kernel.
    body: String,
}

impl Program {
    /// Without steps; of rows, if there are columns. `None` if there are too many elements.
    pub fn new(elements: u64, columns: Option<u64>) -> Option<Self> {
        let (part, argument) = (Part::of(elements, columns)?, Chain::default());
        Some(Self { part, argument, steps: 0, reads: 0, body: String::new() })
    }

    /// Adds a step.
    ///
    /// # Returns
    /// Offsets among the kernel's arguments of the pointers to the operands in memory, and to where the result is stored;
    /// `None` if there are too many steps or operands.
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

    pub fn name(&self) -> &'static str {
        if self.part.columns > 0 {
            "opara_chain_rows"
        } else {
            "opara_chain"
        }
    }

    /// The kernel and its launch.
    pub fn written(&self) -> Written {
        let (name, Part { elements, columns, n, block }) = (self.name(), self.part);
        let apart = if self.part.is_together() { 1 } else { block };
        let kernel = format!("void __launch_bounds__({block}) KERNEL(const __grid_constant__ Chain chain)");
        let mine = format!("    const Part<{n}, {apart}, {elements}, {columns}> mine;\n");
        let code = format!("extern \"C\" __global__ {kernel} {{\n{mine}{}}}\n", self.body);
        Written { name, code, config: self.part.config(), argument: self.argument }
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
extern \"C\" __global__ void __launch_bounds__(384) KERNEL(const __grid_constant__ Chain chain) {
    const Part<2, 1, 7680, 768> mine;
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
                kernels.push(program.written());
            }
        }
        for architecture in ["compute_75", "compute_80", "compute_90"] {
            let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
            for kernel in compile_for(architecture, kernels).unwrap() {
                assert!(kernel.name.starts_with("opara_chain_rows_"));
                assert!(kernel.code.contains(&format!(".entry {}(", kernel.name)), "{}", kernel.name);
            }
        }
        let error = compile_for("compute_90", [("nonsense", "nonsense")].into_iter()).err().unwrap().to_string();
        assert!(error.contains("not compiled for compute_90") && error.contains("nonsense"), "{error}");
    }

    #[test]
    fn a_thread_makes_several_elements_where_there_are_many() {
        let launch = |elements, columns| {
            let program = Program::new(elements, columns).unwrap();
            let (part, config) = (program.part, program.written().config);
            assert_eq!(config.block_dim.0, part.block);
            (program.name(), part.n, config.grid_dim.0, part.block, config.shared_mem_bytes)
        };
        assert_eq!(launch(1000, None), ("opara_chain", 1, 8, 128, 0));
        assert_eq!(launch(1 << 16, None), ("opara_chain", 4, 128, 128, 0));
        assert_eq!(launch(1536 * 128, Some(128)), ("opara_chain_rows", 4, 1536, 32, 512));
        assert_eq!(launch(10 * 1500, Some(1500)), ("opara_chain_rows", 2, 10, 768, 8192));
        assert_eq!(launch(COLUMNS, Some(COLUMNS)), ("opara_chain_rows", 4, 1, 1024, 16384));
        assert!(Program::new(1 << 31, None).is_none());
    }

    #[test]
    fn neighbours_are_loaded_at_once_where_they_lie_together() {
        let load = |part: Part, address, of, dims: &[u64], strides: &[u64]| {
            part.load(address, of, &Places::new(dims, strides).unwrap())
        };
        let four = Part::of(1 << 20, None).unwrap();
        assert_eq!(load(four, 0x100, Type::F32, &[], &[]), "load_together");
        assert_eq!(load(four, 0x108, Type::F16, &[], &[]), "load_together");
        assert_eq!(load(four, 0x108, Type::F32, &[], &[]), "load", "not aligned");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[0, 1]), "load_together");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1028, 1]), "load_together");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1030, 1]), "load", "rows are not aligned");
        assert_eq!(load(four, 0x100, Type::F32, &[1 << 10, 1 << 10], &[1, 1 << 10]), "load", "transposed");
        assert_eq!(load(four, 0x102, Type::F16, &[1 << 10, 1 << 10], &[1, 0]), "load_once");
        assert_eq!(load(four, 0x100, Type::F16, &[2, 1 << 18, 2], &[2, 4, 1]), "load", "two are together");
        let odd = Part::of((1 << 20) + 1, None).unwrap();
        assert_eq!(load(odd, 0x100, Type::F32, &[], &[]), "load");
        assert!(!odd.is_together() && !Part::of(5000 * 77, Some(77)).unwrap().is_together());
    }
}
