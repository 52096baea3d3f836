//! Fuses chains of candle's launches: each becomes one launch of `chain.cu`, which gives the same bits.

mod step;

use std::collections::BTreeMap;

use candle::Device;
use hashbrown::HashMap;

use self::step::Step;
use super::capture::{Capture, Recorded};
use super::driver::kernels::chain::{self, Chain, Code, Source, Target, What, SLOTS, STEPS};
use super::driver::{KernelNode, Launch, Pointer, Stream};
use crate::fuse::{self, chains, Fusible, Operand, Places};
use crate::trace::{Access, BufferId, Mode, Op, OpId, Work};
use crate::Result;

/// Up to so many rows a norm or a softmax alone is faster by a block a row. Of 9,000 rows of 1,500 columns (whisper-tiny's
/// encoder) it was not, on an H200.
const FEW_ROWS: u64 = 4096;

/// A launch that can be a step.
struct Known {
    step: Step,
    fusible: Fusible,
    /// How each operand is accessed, and then the result, with the address that stands in the arguments.
    accesses: Vec<(Access, u64)>,
}

impl Capture {
    /// Replaces chains of launches that go through the same elements by one launch each.
    ///
    /// # Returns
    /// How many launches others stand for.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn fuse(&mut self, stream: &Stream, device: &Device) -> Result<usize> {
        let known = self.known();
        let fusible: Vec<Option<&Fusible>> =
            known.iter().map(|known| known.as_ref().map(|known| &known.fusible)).collect();
        let chains = chains(&self.trace, &fusible, STEPS);
        let mut instead: BTreeMap<OpId, Fused> = BTreeMap::new();
        let mut goes = vec![false; self.trace.ops.len()];
        for chain in &chains {
            let members = chain.members.iter().map(|&op| known[op].as_ref()).collect::<Option<Vec<_>>>();
            let Some(fused) = members.and_then(|members| Fused::new(&members, chain)) else { continue };
            chain.members.iter().for_each(|&op| goes[op] = true);
            instead.insert(chain.at, fused);
        }
        let replaced = goes.iter().filter(|goes| **goes).count();
        if replaced == 0 {
            return Ok(0);
        }
        let programs: Vec<Chain> = instead.values().map(|fused| fused.program).collect();
        let (kernels, graph) = chain::launches(stream, device.as_cuda_device()?, &programs)?;
        let both = instead.into_iter().zip(kernels).map(|((at, fused), kernel)| (at, (fused, kernel)));
        let mut instead: HashMap<OpId, (Fused, KernelNode)> = both.collect();

        let all = self.launches.get_mut();
        all.graphs.push(graph);
        let ops = std::mem::take(&mut self.trace.ops);
        let recorded = std::mem::take(&mut all.of);
        for (id, (op, recorded)) in ops.into_iter().zip(recorded).enumerate() {
            match instead.remove(&id) {
                Some((fused, kernel)) => {
                    self.trace.ops.push(fused.op(op.label, &kernel));
                    all.of.push(Recorded::new(Launch::Kernel(kernel), fused.pointers));
                }
                None if goes[id] => {}
                None => {
                    self.trace.ops.push(op);
                    all.of.push(recorded);
                }
            }
        }
        Ok(replaced)
    }

    /// For each op what it does as a step, if it can be one.
    fn known(&self) -> Vec<Option<Known>> {
        let launches = self.launches.lock();
        let mut uploads: HashMap<BufferId, &[u8]> = HashMap::new();
        let mut known = Vec::with_capacity(self.trace.ops.len());
        for (op, recorded) in self.trace.ops.iter().zip(&launches.of) {
            known.push(understood(op, recorded, &uploads));
            // The last bytes count; whoever else writes there makes them unknown.
            for access in op.accesses.iter().filter(|access| access.mode.writes()) {
                uploads.remove(&access.buffer);
            }
            if let (Launch::Memcpy(upload), [pointer]) = (&recorded.launch, &recorded.pointers[..]) {
                let bytes = upload.bytes_on_host().filter(|_| pointer.delta == 0);
                bytes.and_then(|bytes| uploads.insert(pointer.buffer, bytes));
            }
        }
        known
    }
}

fn understood(op: &Op, recorded: &Recorded, uploads: &HashMap<BufferId, &[u8]>) -> Option<Known> {
    let Launch::Kernel(kernel) = &recorded.launch else { return None };
    let table = |word| {
        let pointer = recorded.pointers.iter().find(|p| p.word == word)?;
        let bytes = uploads.get(&pointer.buffer)?.get(pointer.delta as usize..)?;
        Some(bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect())
    };
    let step = Step::of(&kernel.name, &kernel.arguments, &kernel.launch, table)?;
    // Every access is through one pointer, in the order in which they stand among the arguments.
    let words = recorded.words();
    if words.len() != op.accesses.len() {
        return None;
    }
    let accesses: HashMap<usize, Access> = words.into_iter().zip(op.accesses.iter().copied()).collect();
    let at = |word: usize| {
        let (_, address) = kernel.arguments.words().nth(word / 8)?;
        Some((*accesses.get(&word)?, address))
    };
    let reads = step.operands.iter().map(|&(word, _)| at(word)).collect::<Option<Vec<_>>>()?;
    let result = at(step.result)?;
    let from_start = |word: usize| recorded.pointers.iter().any(|p| p.word == word && p.delta == 0);
    if result.0.mode != Mode::Write || !from_start(step.result) || reads.iter().any(|(read, _)| read.mode != Mode::Read)
    {
        return None;
    }
    let operand = |(&(word, places), (access, _)): (&(usize, Places), &(Access, u64))| Operand {
        buffer: access.buffer,
        places,
        from_start: from_start(word),
    };
    let fusible = Fusible {
        elements: step.elements,
        columns: step.columns,
        folds: step.code.folds(),
        operands: step.operands.iter().zip(&reads).map(operand).collect(),
        result: result.0.buffer,
        // candle has a warp for a row, which takes one element after the other: good where they fill the device.
        gains_alone: matches!(step.code, Code::Softmax | Code::LayerNorm | Code::RmsNorm)
            && step.columns.is_some_and(|columns| step.elements / columns <= FEW_ROWS),
    };
    Some(Known { step, fusible, accesses: reads.into_iter().chain([result]).collect() })
}

/// A chain as one launch.
struct Fused {
    program: Chain,
    accesses: Vec<Access>,
    pointers: Vec<Pointer>,
}

impl Fused {
    /// Of the launches of a chain. `None` if they do not go together.
    fn new(members: &[&Known], chain: &fuse::Chain) -> Option<Self> {
        let program = Chain::new(chain.elements, chain.columns)?;
        let mut fused = Self { program, accesses: Vec::new(), pointers: Vec::new() };
        let maker = |buffer| members.iter().position(|member| member.fusible.result == buffer);
        let mut slots = Slots::default();
        for (at, (member, &is_kept)) in members.iter().zip(&chain.kept).enumerate() {
            let Known { step, fusible, accesses } = member;
            let (result, reads) = accesses.split_last()?;
            let order = chain.turn.filter(|turn| at < turn.before).map(|turn| turn.order).unwrap_or_default();
            let mut sources = Vec::new();
            for (&(_, places), &(access, address)) in step.operands.iter().zip(reads) {
                sources.push(match maker(access.buffer) {
                    Some(maker) if members[maker].step.to != step.from => return None,
                    Some(maker) if maker + 1 == at => Source::Last,
                    Some(maker) => Source::Saved(slots.of(maker)?),
                    None => Source::Memory(address, step.from, places.in_order(&order)?),
                });
            }
            let reads_result = |member: &&Known| member.fusible.operands.iter().any(|o| o.buffer == fusible.result);
            let last_use = members.iter().rposition(reads_result).filter(|&last| last > at + 1);
            let slot = match last_use {
                Some(last) => Some(slots.take(at, last)?),
                None => None,
            };
            let target = Target { address: is_kept.then_some(result.1), slot };
            let on_numbers = chain.on_numbers[at];
            let what = What { code: step.code, of: step.to, constants: step.constants, on_numbers };
            fused.program.step(what, &sources, target)?;
            for (operand, (source, (access, _))) in sources.iter().zip(reads).enumerate() {
                if let Source::Memory(..) = source {
                    fused.touch(fused.program.operand_word(operand), *access);
                }
            }
            if is_kept {
                fused.touch(fused.program.result_word(), result.0);
            }
        }
        Some(fused)
    }

    fn touch(&mut self, word: usize, access: Access) {
        self.accesses.push(access);
        self.pointers.push(Pointer { word, buffer: access.buffer, delta: access.region.start() });
    }

    fn op(&self, label: String, kernel: &KernelNode) -> Op {
        let work = Work::Kernel(kernel.launch);
        Op { name: self.program.launch().0.into(), label, work, accesses: self.accesses.clone(), nanos: None }
    }
}

/// Which step's result is in which slot, and which step is the last to take it.
#[derive(Default)]
struct Slots([Option<(usize, usize)>; SLOTS]);

impl Slots {
    /// The slot that holds a step's result.
    fn of(&self, step: usize) -> Option<usize> {
        self.0.iter().position(|slot| slot.is_some_and(|(of, _)| of == step))
    }

    /// A slot for the result of `step`, which step `last` takes last; `None` if all hold what is still needed. Operands
    /// are read before the result is saved.
    fn take(&mut self, step: usize, last: usize) -> Option<usize> {
        let free = self.0.iter().position(|slot| slot.is_none_or(|(_, last)| last <= step))?;
        self.0[free] = Some((step, last));
        Some(free)
    }
}
