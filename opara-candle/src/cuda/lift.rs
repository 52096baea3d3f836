//! Reads off the launches of a capture what they compute: candle's kernels by name and arguments, memsets and copies by what
//! they are. What calls of libraries compute was noted while they were made.

use hashbrown::HashMap;

use super::driver::{KernelNode, LaunchNode};
use super::fuse::candle_kernel::CandleKernel;
use super::fuse::dtype::Type;
use super::fuse::fused_kernel::Operation;
use super::launches::CapturedLaunch;
use crate::trace::{AccessMode, BufferId, Dim, Element, Function, Meaning, Op, Trace, View, Window};

/// Says of each op of the trace what it computes, where that is known.
pub(super) fn lift(trace: &mut Trace, launches: &[CapturedLaunch]) {
    let mut uploads: HashMap<BufferId, &[u8]> = HashMap::new();
    for (op, recorded) in trace.ops.iter_mut().zip(launches) {
        if op.meaning.is_none() {
            op.meaning = meaning(op, recorded, &uploads).map(Box::new);
        }
        // The last upload counts. Any other write makes the bytes unknown.
        for access in op.accesses.iter().filter(|access| access.mode.writes()) {
            uploads.remove(&access.buffer);
        }
        if let (LaunchNode::Memcpy(upload), [pointer]) = (&recorded.launch, &recorded.pointers[..]) {
            let bytes = upload.bytes_on_host().filter(|_| pointer.delta == 0);
            bytes.and_then(|bytes| uploads.insert(pointer.buffer, bytes));
        }
    }
    // What does not lie in its buffers was misread.
    let buffers = &trace.buffers;
    let inside = |view: &View| view.end().is_some_and(|end| end <= buffers[view.buffer].bytes);
    for op in &mut trace.ops {
        op.meaning = op.meaning.take().filter(|meaning| meaning.views().all(inside));
    }
}

fn meaning(op: &Op, recorded: &CapturedLaunch, uploads: &HashMap<BufferId, &[u8]>) -> Option<Meaning> {
    let bytes_of = |at: usize| {
        let access = op.accesses.get(at)?;
        Some(View::contiguous(access.buffer, Element::Byte, access.region.start(), access.region.bytes()))
    };
    match &recorded.launch {
        LaunchNode::Memset(memset) if memset.value().0 == 0 => {
            Some(Meaning { function: Function::Zeros, reads: Vec::new(), writes: Some(bytes_of(0)?) })
        }
        LaunchNode::Memset(_) => None,
        LaunchNode::Memcpy(memcpy) if memcpy.source().is_none() => {
            Some(Meaning { function: Function::Upload, reads: Vec::new(), writes: Some(bytes_of(0)?) })
        }
        LaunchNode::Memcpy(_) if op.accesses.len() == 2 => {
            Some(Meaning { function: Function::Copy, reads: vec![bytes_of(0)?], writes: Some(bytes_of(1)?) })
        }
        LaunchNode::Memcpy(_) => None,
        LaunchNode::Kernel(_) if recorded.is_of_a_library => None,
        LaunchNode::Kernel(kernel) => Arguments::new(op, recorded, kernel, uploads)?.meaning(&op.name),
    }
}

/// The arguments of a launch of a candle kernel.
struct Arguments<'a> {
    kernel: &'a KernelNode,
    /// By the offset of a pointer: its buffer, and bytes from the buffer's start.
    pointers: HashMap<usize, (BufferId, u64)>,
    uploads: &'a HashMap<BufferId, &'a [u8]>,
}

impl<'a> Arguments<'a> {
    fn new(
        op: &Op,
        recorded: &CapturedLaunch,
        kernel: &'a KernelNode,
        uploads: &'a HashMap<BufferId, &'a [u8]>,
    ) -> Option<Self> {
        // There is one access per pointer, in the order of the arguments. A kernel that is not known counts as writing all that it
        // reads.
        let words = recorded.words();
        let is_unknown = op.accesses.iter().any(|access| access.mode == AccessMode::ReadWrite);
        if words.len() != op.accesses.len() || is_unknown {
            return None;
        }
        let of = op.accesses.iter().map(|access| (access.buffer, access.region.start()));
        Some(Self { kernel, pointers: words.into_iter().zip(of).collect(), uploads })
    }

    fn integer(&self, index: usize) -> Option<u64> {
        self.kernel.arguments.integer(index)
    }

    /// The uploaded numbers to which the argument at an offset points.
    fn table(&self, word: usize) -> Option<Vec<u64>> {
        let &(buffer, delta) = self.pointers.get(&word)?;
        let bytes = self.uploads.get(&buffer)?.get(delta as usize..)?;
        Some(bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect())
    }

    /// A view from the pointer at an offset on.
    fn view(&self, word: usize, element: Element, dims: Vec<Dim>) -> Option<View> {
        let &(buffer, delta) = self.pointers.get(&word)?;
        let first = delta.is_multiple_of(element.bytes()).then_some(delta / element.bytes())?;
        Some(View { buffer, element, first, dims })
    }

    /// The same of an argument.
    fn view_of(&self, argument: usize, element: Element, dims: Vec<Dim>) -> Option<View> {
        self.view(self.kernel.arguments.argument(argument)?.0, element, dims)
    }

    fn meaning(&self, name: &str) -> Option<Meaning> {
        if let Some(element) = name.strip_prefix("copy2d_").and_then(element) {
            return self.copy2d(element);
        }
        for (prefix, is_max) in [("max_pool2d_", true), ("avg_pool2d_", false)] {
            if let Some(element) = name.strip_prefix(prefix).and_then(element) {
                return self.pool(element, is_max);
            }
        }
        if let Some(element) = name.strip_prefix("fast_sum_small_").and_then(element) {
            return self.small_sum(element);
        }
        self.candle_kernel(name)
    }

    /// Element-wise kernels, and those on rows.
    fn candle_kernel(&self, name: &str) -> Option<Meaning> {
        let KernelNode { arguments, launch, .. } = self.kernel;
        let kernel = CandleKernel::of(name, arguments, launch, |word| self.table(word))?;
        let columns = kernel.columns.unwrap_or(0);
        let function = match kernel.operation {
            Operation::Cast => Function::Copy,
            Operation::ElementWise(name, 1) => Function::Unary(name.into()),
            Operation::ElementWise(name, _) => Function::Binary(name.into()),
            Operation::Affine(factor, summand) => Function::Affine(factor, summand),
            Operation::RowSum(_) => Function::RowSum(columns),
            Operation::RowMax => Function::RowMax(columns),
            Operation::RowMin => Function::RowMin(columns),
            Operation::Softmax => Function::Softmax(columns),
            Operation::LayerNorm(epsilon) => Function::LayerNorm(columns, epsilon),
            Operation::RmsNorm(epsilon) => Function::RmsNorm(columns, epsilon),
        };
        let from = of_type(kernel.from);
        let read = |&(word, view): &(usize, opara_plan::fusion::StridedView)| {
            let dims: Vec<Dim> = view.dims_and_strides().map(|(len, stride)| Dim { len, stride }).collect();
            let whole = vec![Dim { len: kernel.elements, stride: 1 }];
            self.view(word, from, if view.is_contiguous() { whole } else { dims })
        };
        let len = if kernel.operation.reduces() { kernel.elements / columns.max(1) } else { kernel.elements };
        Some(Meaning {
            function,
            reads: kernel.operands.iter().map(read).collect::<Option<_>>()?,
            writes: Some(self.view(kernel.result, of_type(kernel.to), vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Arguments: source, target, rows, columns, source stride, target stride.
    fn copy2d(&self, element: Element) -> Option<Meaning> {
        let [rows, columns, from, to] = [2, 3, 4, 5].map(|argument| self.integer(argument));
        let dims = |stride| Some(vec![Dim { len: rows?, stride }, Dim { len: columns?, stride: 1 }]);
        Some(Meaning {
            function: Function::Copy,
            reads: vec![self.view_of(0, element, dims(from?)?)?],
            writes: Some(self.view_of(1, element, dims(to?)?)?),
        })
    }

    /// Arguments: elements, rows and columns of a window, and from one to the next, dimensions and strides, operand, result.
    fn pool(&self, element: Element, is_max: bool) -> Option<Meaning> {
        let [rows, columns, down, right] = [1, 2, 3, 4].map(|argument| self.integer(argument));
        let table = self.table(self.kernel.arguments.argument(5)?.0)?;
        let (lens, strides) = (table.get(..4)?, table.get(4..8)?);
        let dims = lens.iter().zip(strides).map(|(&len, &stride)| Dim { len, stride }).collect();
        let window =
            Window { kernel: [rows?, columns?], padding: [0; 2], stride: [down?, right?], dilation: [1; 2], groups: 1 };
        let along = |size: u64, i: usize| Some(size.checked_sub(window.kernel[i])?.checked_div(window.stride[i])? + 1);
        let len = lens[0] * lens[1] * along(lens[2], 0)? * along(lens[3], 1)?;
        Some(Meaning {
            function: if is_max { Function::MaxPool(window) } else { Function::MeanPool(window) },
            reads: vec![self.view_of(6, element, dims)?],
            writes: Some(self.view_of(7, element, vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Arguments: sums, elements of each, dimensions, their table, operand, result.
    fn small_sum(&self, element: Element) -> Option<Meaning> {
        let (sums, columns, rank) = (self.integer(0)?, self.integer(1)?, self.integer(2)? as usize);
        let len = sums.checked_mul(columns).filter(|&len| len > 0)?;
        let dims = match self.integer(3)? {
            0 => vec![Dim { len, stride: 1 }],
            _ => {
                let table = self.table(self.kernel.arguments.argument(3)?.0)?;
                let (lens, strides) = (table.get(..rank)?, table.get(rank..2 * rank)?);
                lens.iter().zip(strides).map(|(&len, &stride)| Dim { len, stride }).collect()
            }
        };
        Some(Meaning {
            function: Function::RowSum(columns),
            reads: vec![self.view_of(4, element, dims)?],
            writes: Some(self.view_of(5, element, vec![Dim { len: sums, stride: 1 }])?),
        })
    }
}

/// The type that a kernel's name ends in.
fn element(name: &str) -> Option<Element> {
    match name {
        "f32" => Some(Element::F32),
        "f16" => Some(Element::F16),
        "bf16" => Some(Element::Bf16),
        _ => None,
    }
}

fn of_type(of: Type) -> Element {
    match of {
        Type::F32 => Element::F32,
        Type::F16 => Element::F16,
        Type::Bf16 => Element::Bf16,
    }
}
