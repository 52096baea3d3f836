//! Kernel fusion on CUDA: replaces groups of candle's element-wise and row-wise launches by one launch each.
//!
//! [`candle_kernel`] identifies a launch by its name and arguments, [`opara_plan::fusion`] finds the groups, and
//! [`fused_kernel`] generates one kernel per group. Results keep their bits: every op inside a group rounds, and sums,
//! in the order of candle's own kernel.

pub(super) mod candle_kernel;
pub(super) mod dtype;
pub(super) mod fused_kernel;
mod thread_tile;

use std::sync::Arc;

use candle::Device;
use hashbrown::HashMap;
use opara_plan::fusion::{groups, Fusible, FusionGroup, Operand, StridedView};
use parking_lot::Mutex;

use self::candle_kernel::CandleKernel;
use self::fused_kernel::{FusedKernel, FusedOp, Operation, Source};
use self::thread_tile::{ThreadTile, MANY_ELEMENTS};
use super::capture::Capture;
use super::driver::kernels::fused::{self, KernelSource, MAX_OPS};
use super::driver::{KernelNode, LaunchNode, Pointer, Stream};
use super::launches::CapturedLaunch;
use crate::backend::Fusing;
use crate::trace::{Access, AccessMode, BufferId, Op, OpId, Work};
use crate::Result;

/// A launch that can be a member of a fusion group.
struct FusibleLaunch {
    kernel: CandleKernel,
    fusible: Fusible,
    /// The accesses to the operands and then to the result, each with its address in the launch's arguments.
    accesses: Vec<(Access, u64)>,
}

impl Capture {
    /// Replaces each fusion group of the trace by one launch. A group whose kernel cannot be compiled stays unfused.
    ///
    /// # Errors
    /// A failed driver call.
    pub fn fuse(&mut self, stream: &Stream, device: &Device, fusing: &Fusing) -> Result<Replaced> {
        let found = self.fused_launches();
        if found.is_empty() {
            return Ok(Replaced::default());
        }
        let sources: Vec<KernelSource> = found.iter().map(|(_, fused)| fused.kernel.source()).collect();
        let fused::Launches { of, owners } =
            fused::launches(stream, device.as_cuda_device()?, &sources, fusing.folder.as_deref())?;
        let ops = self.trace.ops.len();
        let (mut is_fused, mut is_needed) = (vec![false; ops], vec![false; ops]);
        let mut refused = Vec::new();
        let mut replacements: HashMap<OpId, (FusedLaunch, KernelNode)> = HashMap::new();
        for ((group, fused), launch) in found.into_iter().zip(of) {
            let marks = if launch.is_ok() { &mut is_fused } else { &mut is_needed };
            group.members.iter().for_each(|&op| marks[op] = true);
            match launch {
                Ok(kernel) => drop(replacements.insert(group.at, (fused, kernel))),
                Err(reason) => refused.push(reason),
            }
        }
        // A launch may be a member of several groups that each recompute a slice of its result. It is dropped only if
        // all of their kernels were compiled.
        is_fused.iter_mut().zip(is_needed).for_each(|(is_fused, is_needed)| *is_fused &= !is_needed);
        let replaced = is_fused.iter().filter(|is_fused| **is_fused).count();

        let all = self.launches.get_mut();
        if let Some((graph, kernels)) = owners {
            all.graphs.push(Arc::new(Mutex::new(graph)));
            all.kernels.push(Arc::new(kernels));
        }
        let ops = std::mem::take(&mut self.trace.ops);
        let recorded = std::mem::take(&mut all.of);
        for (id, (op, recorded)) in ops.into_iter().zip(recorded).enumerate() {
            let fused = replacements.remove(&id).map(|(fused, kernel)| {
                let fused_op = fused.op(op.label.clone(), &kernel);
                (fused_op, CapturedLaunch::new(LaunchNode::Kernel(kernel), fused.pointers))
            });
            // A launch of a group that is still needed itself runs at the place of the fused kernel. Both then run, in
            // any order.
            let unfused = (!is_fused[id]).then_some((op, recorded));
            for (op, recorded) in unfused.into_iter().chain(fused) {
                self.trace.ops.push(op);
                all.of.push(recorded);
            }
        }
        Ok(Replaced { launches: replaced, refused })
    }

    /// The kernels that [`Self::fuse`] needs.
    pub fn fused_kernels(&self) -> Vec<KernelSource> {
        self.fused_launches().into_iter().map(|(_, fused)| fused.kernel.source()).collect()
    }

    /// The fusion groups, each with the launch that replaces it.
    fn fused_launches(&self) -> Vec<(FusionGroup, FusedLaunch)> {
        let known = self.fusible_launches();
        let fusible = known.iter().map(|known| known.as_ref().map(|known| &known.fusible)).collect();
        let fused_launch = |group: &FusionGroup| {
            let members = group.members.iter().map(|&op| known[op].as_ref()).collect::<Option<Vec<_>>>()?;
            FusedLaunch::new(&members, group)
        };
        groups(&self.trace, fusible, MAX_OPS, fused_launch)
    }

    /// For each op, its description for fusion, if it can be a member of a group.
    fn fusible_launches(&self) -> Vec<Option<FusibleLaunch>> {
        let launches = self.launches.lock();
        let mut uploads: HashMap<BufferId, &[u8]> = HashMap::new();
        let mut known = Vec::with_capacity(self.trace.ops.len());
        for (op, recorded) in self.trace.ops.iter().zip(&launches.of) {
            known.push(fusible_launch(op, recorded, &uploads));
            // The latest upload gives the bytes of a buffer. Any other write makes them unknown.
            for access in op.accesses.iter().filter(|access| access.mode.writes()) {
                uploads.remove(&access.buffer);
            }
            if let (LaunchNode::Memcpy(upload), [pointer]) = (&recorded.launch, &recorded.pointers[..]) {
                let bytes = upload.bytes_on_host().filter(|_| pointer.delta == 0);
                bytes.and_then(|bytes| uploads.insert(pointer.buffer, bytes));
            }
        }
        known
    }
}

fn fusible_launch(op: &Op, recorded: &CapturedLaunch, uploads: &HashMap<BufferId, &[u8]>) -> Option<FusibleLaunch> {
    let LaunchNode::Kernel(kernel) = &recorded.launch else { return None };
    let table = |word| {
        let pointer = recorded.pointers.iter().find(|p| p.word == word)?;
        let bytes = uploads.get(&pointer.buffer)?.get(pointer.delta as usize..)?;
        Some(bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect())
    };
    let candle_kernel = CandleKernel::of(&kernel.name, &kernel.arguments, &kernel.launch, table)?;
    // There is one access per pointer, in the order of the arguments.
    let words = recorded.words();
    if words.len() != op.accesses.len() {
        return None;
    }
    let accesses: HashMap<usize, Access> = words.into_iter().zip(op.accesses.iter().copied()).collect();
    let at = |word: usize| {
        let (_, address) = kernel.arguments.words().nth(word / 8)?;
        Some((*accesses.get(&word)?, address))
    };
    let reads = candle_kernel.operands.iter().map(|&(word, _)| at(word)).collect::<Option<Vec<_>>>()?;
    let result = at(candle_kernel.result)?;
    let delta = |word: usize| Some(recorded.pointers.iter().find(|p| p.word == word)?.delta);
    if result.0.mode != AccessMode::Write
        || delta(candle_kernel.result) != Some(0)
        || reads.iter().any(|(read, _)| read.mode != AccessMode::Read)
    {
        return None;
    }
    let operand = |(&(word, view), (access, _)): (&(usize, StridedView), &(Access, u64))| Operand {
        buffer: access.buffer,
        view,
        first: delta(word)
            .filter(|delta| delta.is_multiple_of(candle_kernel.from.bytes()))
            .map(|delta| delta / candle_kernel.from.bytes()),
    };
    let fusible = Fusible {
        elements: candle_kernel.elements,
        columns: candle_kernel.columns,
        reduces: candle_kernel.operation.reduces(),
        operands: candle_kernel.operands.iter().zip(&reads).map(operand).collect(),
        result: result.0.buffer,
        // The cases where candle's kernels are slow: row kernels read rows one element at a time, kernels on strided
        // operands load the dimensions from memory and divide by them, and no kernel uses vector loads.
        gains_alone: match candle_kernel.operation {
            Operation::Softmax | Operation::LayerNorm(_) | Operation::RmsNorm(_) => true,
            operation if operation.reduces() => false,
            _ => {
                candle_kernel.elements >= MANY_ELEMENTS.into()
                    || candle_kernel.operands.iter().any(|(_, view)| !view.is_contiguous())
            }
        },
    };
    Some(FusibleLaunch { kernel: candle_kernel, fusible, accesses: reads.into_iter().chain([result]).collect() })
}

/// The result of fusion.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// The number of launches that fused kernels replace.
    pub launches: usize,
    /// For each group whose kernel was not compiled, the reason.
    pub refused: Vec<String>,
}

/// A group as one launch.
struct FusedLaunch {
    kernel: FusedKernel,
    accesses: Vec<Access>,
    pointers: Vec<Pointer>,
}

impl FusedLaunch {
    /// The launch that replaces a group. `None` if one kernel cannot hold all members.
    fn new(members: &[&FusibleLaunch], group: &FusionGroup) -> Option<Self> {
        let tile = ThreadTile::of(group.elements, group.columns)?;
        let types = members.iter().flat_map(|member| [member.kernel.from, member.kernel.to]);
        let wider = tile.wider(types.max_by_key(|of| of.bytes())?).and_then(|tile| Self::of(tile, members, group));
        wider.filter(|fused| fused.kernel.uses_vector_loads()).or_else(|| Self::of(tile, members, group))
    }

    /// The launch with a given tile per thread.
    fn of(tile: ThreadTile, members: &[&FusibleLaunch], group: &FusionGroup) -> Option<Self> {
        let mut fused_kernel = FusedKernel::new(tile);
        let (mut accesses, mut deltas, mut words) = (Vec::new(), Vec::new(), Vec::new());
        let member_of = |buffer| members.iter().position(|member| member.fusible.result == buffer);
        for (at, (member, &is_kept)) in members.iter().zip(&group.is_stored).enumerate() {
            let FusibleLaunch { kernel, accesses: accessed, .. } = member;
            let (&(result, to), reads) = accessed.split_last()?;
            let (order, first) = group.order(at);
            let mut operands = Vec::new();
            for (&(_, view), &(access, address)) in kernel.operands.iter().zip(reads) {
                operands.push(match member_of(access.buffer) {
                    Some(maker) if members[maker].kernel.to != kernel.from => return None,
                    Some(maker) => Source::Member(maker),
                    None => {
                        let (view, distance) = view.compose(&order, first)?;
                        let distance = distance * kernel.from.bytes();
                        accesses.push(access);
                        deltas.push(access.region.start() + distance);
                        Source::Memory(address + distance, kernel.from, view)
                    }
                });
            }
            if is_kept {
                accesses.push(result);
                deltas.push(result.region.start());
            }
            words.extend(fused_kernel.add(&FusedOp {
                operation: kernel.operation,
                of: kernel.to,
                operands: &operands,
                is_row_scalar: group.is_row_scalar[at],
                target: is_kept.then_some(to),
            })?);
        }
        let pointers = words.into_iter().zip(deltas).zip(&accesses);
        let pointers = pointers.map(|((word, delta), access)| Pointer { word, buffer: access.buffer, delta }).collect();
        Some(Self { kernel: fused_kernel, accesses, pointers })
    }

    fn op(&self, label: String, kernel: &KernelNode) -> Op {
        let work = Work::Kernel(kernel.launch);
        Op { name: self.kernel.name().into(), label, work, accesses: self.accesses.clone(), nanos: None, meaning: None }
    }
}

#[cfg(test)]
mod tests {
    use super::dtype::Type;
    use super::*;
    use crate::cuda::driver::kernels::fused::FusedArgument as Argument;
    use crate::trace::Region;
    use opara_plan::fusion::Permutation;

    /// A launch in f16. Operands: buffer, offset in bytes, view.
    fn launch(
        elements: u64,
        operation: Operation,
        operands: &[(BufferId, u64, StridedView)],
        result: BufferId,
    ) -> FusibleLaunch {
        let address = |buffer: BufferId| 0x10000 * (1 + buffer as u64);
        let access = |buffer, start, mode| {
            (Access { buffer, region: Region::contiguous(start, 16), mode }, address(buffer) + start)
        };
        let operand =
            |&(buffer, start, view): &(BufferId, u64, StridedView)| Operand { buffer, view, first: Some(start / 2) };
        let words = operands.iter().enumerate().map(|(at, &(.., view))| (8 * at, view)).collect();
        let (from, to) = (Type::F16, Type::F16);
        let reads = operands.iter().map(|&(buffer, start, _)| access(buffer, start, AccessMode::Read));
        FusibleLaunch {
            kernel: CandleKernel {
                elements,
                columns: None,
                operation,
                from,
                to,
                operands: words,
                result: 8 * operands.len(),
            },
            fusible: Fusible {
                elements,
                columns: None,
                reduces: false,
                operands: operands.iter().map(operand).collect(),
                result,
                gains_alone: false,
            },
            accesses: reads.chain([access(result, 0, AccessMode::Write)]).collect(),
        }
    }

    #[test]
    fn a_recomputed_slice_of_a_sum_reads_slices_of_its_operands() {
        // Two tokens with queries, keys and values of four elements each; the copy reads the keys.
        let bias = StridedView::new(&[2, 12], &[0, 1]).unwrap();
        let keys = StridedView::new(&[2, 4], &[12, 1]).unwrap();
        let sum = launch(24, Operation::ElementWise("add", 2), &[(0, 0, StridedView::default()), (1, 6, bias)], 2);
        let copy = launch(8, Operation::Cast, &[(2, 8, keys)], 3);
        let group = FusionGroup {
            members: vec![5, 7],
            at: 7,
            is_stored: vec![false, true],
            is_row_scalar: vec![false; 2],
            elements: 8,
            columns: None,
            permutation: Some(Permutation { before: 1, order: keys, first: 4 }),
        };
        let fused = FusedLaunch::new(&[&sum, &copy], &group).unwrap();
        let pointer = |word, buffer, delta| Pointer { word, buffer, delta };
        let operands =
            [(0, 8), (1, 6 + 8)].map(|(buffer, delta)| pointer(Argument::operand_word(buffer), buffer, delta));
        assert_eq!(fused.pointers, [&operands[..], &[pointer(Argument::result_word(1), 3, 0)]].concat());
        assert_eq!(fused.accesses.iter().map(|access| access.buffer).collect::<Vec<_>>(), [0, 1, 3]);
        let code = fused.kernel.source().code;
        let body = "
    const auto s0 = add(tile.load_vector<__half, 4, 1, 2, 12>(pointers.from[0]), tile.load_vector<__half, 4, 1, 2, 0>(pointers.from[1]));
    const auto s1 = cast<__half>(s0);
";
        assert!(code.contains(body), "{code}");
    }
}
