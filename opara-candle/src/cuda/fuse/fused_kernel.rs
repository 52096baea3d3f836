//! Generates the kernel of a fusion group, in CUDA C++ on top of `chain.cuh`.

use std::fmt::Write;

use opara_plan::fusion::StridedView;

use super::dtype::Type;
use super::thread_tile::ThreadTile;
use crate::cuda::driver::kernels::fused::{FusedArgument, KernelSource};

/// The operation of one op.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) enum Operation {
    /// Conversion to the op's type, which may be the same type.
    Cast,
    /// The function of this name in `chain.cuh`, with this many operands.
    ElementWise(&'static str, usize),
    /// x * factor + summand.
    Affine(f32, f32),
    /// The sum of each row. The number is the elements per vector load in candle's kernel: it decides the order of the sum.
    RowSum(u32),
    RowMax,
    RowMin,
    Softmax,
    /// Epsilon, added to the variance.
    LayerNorm(f32),
    /// Epsilon, added to the mean square.
    RmsNorm(f32),
}

/// The source of an op's operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Source {
    /// The result of the group's member with this index, in registers.
    Member(usize),
    /// A strided view in memory: start address, element type, view.
    Memory(u64, Type, StridedView),
}

/// One op of a fused kernel.
pub(super) struct FusedOp<'a> {
    pub operation: Operation,
    /// Type of the arithmetic and of the result.
    pub of: Type,
    pub operands: &'a [Source],
    /// Does it run on one scalar per row instead of on every element?
    pub is_row_scalar: bool,
    /// The address at which the result is stored, if it is stored.
    pub target: Option<u64>,
}

impl Operation {
    /// Does it reduce a row to one scalar?
    pub fn reduces(self) -> bool {
        matches!(self, Self::RowSum(_) | Self::RowMax | Self::RowMin)
    }

    /// The call of a function of `chain.cuh`.
    fn call(self, of: Type, operands: &str) -> String {
        let number = |x: f32| format!("__int_as_float({:#x})", x.to_bits());
        match self {
            Self::Cast => format!("cast<{}>({operands})", of.name()),
            Self::ElementWise(name, _) => format!("{name}({operands})"),
            Self::Affine(factor, summand) => format!("affine({operands}, {}, {})", number(factor), number(summand)),
            Self::RowSum(_) if of == Type::F16 => format!("candle_fold<CandleSum>(tile, {operands})"),
            Self::RowSum(neighbours) => format!("candle_sum<{neighbours}>(tile, {operands})"),
            Self::RowMax => format!("candle_fold<CandleMax>(tile, {operands})"),
            Self::RowMin => format!("candle_fold<CandleMin>(tile, {operands})"),
            Self::Softmax => format!("candle_softmax(tile, {operands})"),
            Self::LayerNorm(epsilon) => format!("candle_layer_norm(tile, {operands}, {})", number(epsilon)),
            Self::RmsNorm(epsilon) => format!("candle_rms_norm(tile, {operands}, {})", number(epsilon)),
        }
    }
}

/// A fused kernel under construction. All ops run over the same elements, or over the same rows.
pub(super) struct FusedKernel {
    tile: ThreadTile,
    argument: FusedArgument,
    ops: usize,
    reads: usize,
    uses_vector_loads: bool,
    /// The body of the kernel.
    body: String,
}

impl FusedKernel {
    /// A kernel without ops, with this tile per thread.
    pub fn new(tile: ThreadTile) -> Self {
        Self {
            tile,
            argument: FusedArgument::default(),
            ops: 0,
            reads: 0,
            uses_vector_loads: true,
            body: String::new(),
        }
    }

    /// Adds an op.
    ///
    /// # Returns
    /// Offsets, in the kernel's argument, of the pointers to the operands in memory and to the stored result. `None` if the
    /// argument has no room for another operand or result.
    pub fn add(&mut self, op: &FusedOp<'_>) -> Option<Vec<usize>> {
        let at = self.ops;
        let mut words = Vec::new();
        let mut operands = Vec::new();
        for source in op.operands {
            operands.push(match *source {
                Source::Member(member) => format!("s{member}"),
                Source::Memory(from, of, view) => {
                    self.argument.read(self.reads, from)?;
                    words.push(FusedArgument::operand_word(self.reads));
                    let load = if op.is_row_scalar { "load_row_scalar" } else { self.tile.load(from, of, &view) };
                    self.uses_vector_loads &= load != "load";
                    let view = view.dims_and_strides().rev().map(|(dim, stride)| format!(", {dim}, {stride}"));
                    let view: String = view.collect();
                    self.reads += 1;
                    format!("tile.{load}<{}{view}>(pointers.from[{}])", of.name(), self.reads - 1)
                }
            });
        }
        let call = op.operation.call(op.of, &operands.join(", "));
        writeln!(self.body, "    const auto s{at} = {call};").ok()?;
        if let Some(to) = op.target {
            self.argument.store(at, to)?;
            words.push(FusedArgument::result_word(at));
            let store = match op.is_row_scalar || op.operation.reduces() {
                true => "store_row_scalar",
                false if self.tile.is_aligned(to, op.of) => "store_vector",
                false => "store",
            };
            writeln!(self.body, "    tile.{store}(s{at}, pointers.to[{at}]);").ok()?;
        }
        self.ops += 1;
        Some(words)
    }

    /// Does each thread load its tile of every operand with one vector load?
    pub fn uses_vector_loads(&self) -> bool {
        self.uses_vector_loads
    }

    /// The kernel's name, without the hash of its code.
    pub fn name(&self) -> &'static str {
        if self.tile.columns > 0 {
            "opara_chain_rows"
        } else {
            "opara_chain"
        }
    }

    /// The kernel's code and launch.
    pub fn source(&self) -> KernelSource {
        let (name, ThreadTile { elements, columns, rows, n, block }) = (self.name(), self.tile);
        let stride = if self.tile.is_contiguous() { 1 } else { block };
        let threads = rows * block;
        let kernel =
            format!("void __launch_bounds__({threads}) KERNEL(const __grid_constant__ FusedArgument pointers)");
        let tile = format!("    const ThreadTile<{n}, {stride}, {elements}, {columns}, {rows}> tile;\n");
        let code = format!("extern \"C\" __global__ {kernel} {{\n{tile}{}}}\n", self.body);
        KernelSource { name, code, config: self.tile.config(), argument: self.argument }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::kernels::compile::compile_for;
    use opara_plan::kernel_catalog::{Means, ENTRIES};

    fn memory(of: Type) -> Source {
        Source::Memory(0xa000, of, StridedView::default())
    }

    #[test]
    fn the_generated_code_calls_one_function_per_op() {
        let mut kernel = FusedKernel::new(ThreadTile::of(10 * 768, Some(768)).unwrap());
        let of_columns = Source::Memory(0xb000, Type::F16, StridedView::new(&[10, 768], &[0, 1]).unwrap());
        let add = FusedOp {
            operation: Operation::ElementWise("add", 2),
            of: Type::F16,
            operands: &[memory(Type::F16), of_columns],
            is_row_scalar: false,
            target: None,
        };
        assert_eq!(kernel.add(&add), Some(vec![FusedArgument::operand_word(0), FusedArgument::operand_word(1)]));
        let sum =
            FusedOp { operation: Operation::RowSum(1), operands: &[Source::Member(0)], target: Some(0xc000), ..add };
        assert_eq!(kernel.add(&sum), Some(vec![FusedArgument::result_word(1)]));
        let is_row_scalar = FusedOp { operation: Operation::Affine(0.5, 0.), is_row_scalar: true, target: None, ..sum };
        let is_row_scalar = FusedOp { operands: &[memory(Type::F16)], ..is_row_scalar };
        assert_eq!(kernel.add(&is_row_scalar), Some(vec![FusedArgument::operand_word(2)]));
        let code = "\
extern \"C\" __global__ void __launch_bounds__(384) KERNEL(const __grid_constant__ FusedArgument pointers) {
    const ThreadTile<2, 1, 7680, 768, 1> tile;
    const auto s0 = add(tile.load_vector<__half>(pointers.from[0]), tile.load_vector<__half, 768, 1, 10, 0>(pointers.from[1]));
    const auto s1 = candle_fold<CandleSum>(tile, s0);
    tile.store_row_scalar(s1, pointers.to[1]);
    const auto s2 = affine(tile.load_row_scalar<__half>(pointers.from[2]), __int_as_float(0x3f000000), __int_as_float(0x0));
}
";
        assert_eq!(kernel.source().code, code);
    }

    /// Needs NVRTC, but no GPU.
    #[test]
    fn every_operation_compiles_in_every_type() {
        let element_wise = ENTRIES.iter().filter(|row| row.is_fused).filter_map(|row| match row.means {
            Means::Unary(name) => Some(Operation::ElementWise(name, 1)),
            Means::Binary(name) => Some(Operation::ElementWise(name, 2)),
            _ => None,
        });
        let of_rows = [
            Operation::RowMax,
            Operation::RowMin,
            Operation::Softmax,
            Operation::LayerNorm(1e-5),
            Operation::RmsNorm(1e-5),
        ];
        let sums = [1, 4, 8].map(Operation::RowSum);
        let all = element_wise.chain([Operation::Cast, Operation::Affine(2., f32::NAN)]).chain(of_rows).chain(sums);
        let all: Vec<Operation> = all.collect();
        let mut kernels = Vec::new();
        for of in [Type::F32, Type::F16, Type::Bf16] {
            let shapes = [(3, 64), (1024, 64), (3, 1500), (3, 3072)];
            for ((rows, columns), some) in shapes.into_iter().flat_map(|shape| all.chunks(4).map(move |s| (shape, s))) {
                let mut kernel = FusedKernel::new(ThreadTile::of(rows * columns, Some(columns)).unwrap());
                for (at, &operation) in some.iter().enumerate() {
                    let from = if operation == Operation::Cast { Type::F32 } else { of };
                    let operands = match operation {
                        Operation::ElementWise(_, operands) => operands,
                        Operation::LayerNorm(_) => 3,
                        Operation::RmsNorm(_) => 2,
                        _ => 1,
                    };
                    let operands = vec![memory(from); operands];
                    kernel
                        .add(&FusedOp { operation, of, operands: &operands, is_row_scalar: at == 3, target: Some(1) })
                        .unwrap();
                }
                kernels.push(kernel.source());
            }
        }
        for architecture in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90"] {
            let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
            for kernel in compile_for(architecture, kernels, None) {
                let kernel = kernel.unwrap();
                assert!(kernel.name.starts_with("opara_chain_rows_"));
                let section = format!(".text.{}\0", kernel.name);
                let is_found = kernel.module.code.windows(section.len()).any(|bytes| bytes == section.as_bytes());
                assert!(is_found, "{}", kernel.name);
            }
        }
    }

    /// Needs NVRTC, but no GPU.
    #[test]
    fn every_load_and_store_compiles() {
        let of_elements = [1000, 1 << 16, (1 << 16) + 1, 1 << 20].map(|elements| (elements, None));
        let of_rows = [2, 33, 100, 1024, 1025, 2050, 3072, 4096].map(|columns| [(3, columns), (2000, columns)]);
        let of_rows = of_rows.into_iter().flatten().map(|(rows, columns)| (rows * columns, Some(columns)));
        let mut kernels = Vec::new();
        for (elements, columns) in of_elements.into_iter().chain(of_rows) {
            for of in [Type::F32, Type::F16, Type::Bf16] {
                let tile = ThreadTile::of(elements, columns).unwrap();
                let mut kernel = FusedKernel::new(tile.wider(of).unwrap_or(tile));
                let width = columns.unwrap_or(8);
                let strided = |dims: &[u64], strides: &[u64]| StridedView::new(dims, strides).unwrap();
                let views = [
                    (0xa000, StridedView::default()),
                    (0xa002, StridedView::default()),
                    (0xa000, strided(&[elements / width, width], &[0, 1])),
                    (0xa000, strided(&[elements / width, width], &[1, 0])),
                    (0xa000, strided(&[elements / width, width], &[2 * width, 1])),
                    (0xa000, strided(&[2, 3, 5, 7], &[1, 2, 6, 30])),
                ];
                for (address, view) in views {
                    let operands = [Source::Memory(address, of, view)];
                    let step = FusedOp {
                        operation: Operation::Cast,
                        of,
                        operands: &operands,
                        is_row_scalar: false,
                        target: Some(address),
                    };
                    kernel.add(&step).unwrap();
                }
                kernels.push(kernel.source());
            }
        }
        let kernels = kernels.iter().map(|kernel| (kernel.name, kernel.code.as_str()));
        compile_for("sm_90", kernels, None).into_iter().for_each(|kernel| drop(kernel.unwrap()));
    }
}
