//! Fuses chains of candle's launches: each becomes one launch of a kernel that is written for it, and gives the same bits.

mod dtype;
mod part;
mod program;
mod step;

use candle::Device;
use hashbrown::HashMap;

use self::part::{Part, MANY_ELEMENTS};
use self::program::{Code, Program, Source};
use self::step::Step;
use super::capture::Capture;
use super::driver::kernels::chain::{self, Written, STEPS};
use super::driver::{KernelNode, Launch, Pointer, Stream};
use super::recorded::Recorded;
use crate::backend::Fusing;
use crate::fuse::{self, chains, Fusible, Operand, Places};
use crate::trace::{Access, BufferId, Mode, Op, OpId, Work};
use crate::Result;

/// A launch that can be a step.
struct Known {
    step: Step,
    fusible: Fusible,
    /// How each operand is accessed, and then the result, with the address that stands in the arguments.
    accesses: Vec<(Access, u64)>,
}

impl Capture {
    /// Replaces chains of launches that go through the same elements by one launch each. Where the kernel of a chain cannot be
    /// compiled, its launches stay as they are.
    ///
    /// # Errors
    /// A call of the driver that failed.
    pub fn fuse(&mut self, stream: &Stream, device: &Device, fusing: &Fusing) -> Result<Replaced> {
        let known = self.known();
        let fusible = known.iter().map(|known| known.as_ref().map(|known| &known.fusible)).collect();
        let written = |chain: &fuse::Chain| {
            let members = chain.members.iter().map(|&op| known[op].as_ref()).collect::<Option<Vec<_>>>()?;
            Fused::new(&members, chain)
        };
        let found: Vec<(fuse::Chain, Fused)> = chains(&self.trace, fusible, STEPS, written);
        if found.is_empty() {
            return Ok(Replaced::default());
        }
        let written: Vec<Written> = found.iter().map(|(_, fused)| fused.program.written()).collect();
        let chain::Launches { of, owners } =
            chain::launches(stream, device.as_cuda_device()?, &written, fusing.folder.as_deref())?;
        let mut goes = vec![false; self.trace.ops.len()];
        let (mut stays, mut refused) = (vec![false; self.trace.ops.len()], Vec::new());
        let mut instead: HashMap<OpId, (Fused, KernelNode)> = HashMap::new();
        for ((chain, fused), launch) in found.into_iter().zip(of) {
            let whether = if launch.is_ok() { &mut goes } else { &mut stays };
            chain.members.iter().for_each(|&op| whether[op] = true);
            match launch {
                Ok(kernel) => drop(instead.insert(chain.at, (fused, kernel))),
                Err(reason) => refused.push(reason),
            }
        }
        // A launch may be a member of several chains, each of which makes a part of its result: it goes if all of them are there.
        goes.iter_mut().zip(stays).for_each(|(goes, stays)| *goes &= !stays);
        let replaced = goes.iter().filter(|goes| **goes).count();

        let all = self.launches.get_mut();
        if let Some((graph, kernels)) = owners {
            all.graphs.push(graph);
            all.kernels.push(kernels);
        }
        let ops = std::mem::take(&mut self.trace.ops);
        let recorded = std::mem::take(&mut all.of);
        for (id, (op, recorded)) in ops.into_iter().zip(recorded).enumerate() {
            let chain = instead.remove(&id).map(|(fused, kernel)| {
                let of_chain = fused.op(op.label.clone(), &kernel);
                (of_chain, Recorded::new(Launch::Kernel(kernel), fused.pointers))
            });
            // One that stays may be where a chain is that it is a member of, too: it is in nobody's way.
            let itself = (!goes[id]).then_some((op, recorded));
            for (op, recorded) in itself.into_iter().chain(chain) {
                self.trace.ops.push(op);
                all.of.push(recorded);
            }
        }
        Ok(Replaced { launches: replaced, refused })
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
    let delta = |word: usize| Some(recorded.pointers.iter().find(|p| p.word == word)?.delta);
    if result.0.mode != Mode::Write
        || delta(step.result) != Some(0)
        || reads.iter().any(|(read, _)| read.mode != Mode::Read)
    {
        return None;
    }
    let operand = |(&(word, places), (access, _)): (&(usize, Places), &(Access, u64))| Operand {
        buffer: access.buffer,
        places,
        first: delta(word)
            .filter(|delta| delta.is_multiple_of(step.from.bytes()))
            .map(|delta| delta / step.from.bytes()),
    };
    let fusible = Fusible {
        elements: step.elements,
        columns: step.columns,
        folds: step.code.folds(),
        operands: step.operands.iter().zip(&reads).map(operand).collect(),
        result: result.0.buffer,
        // Of a row candle has one element taken after the other; where operands lie elsewhere, it reads dimensions from
        // memory and divides by them; and it never loads neighbours at once.
        gains_alone: match step.code {
            Code::Softmax | Code::LayerNorm(_) | Code::RmsNorm(_) => true,
            code if code.folds() => false,
            _ => {
                step.elements >= MANY_ELEMENTS.into() || step.operands.iter().any(|(_, places)| !places.are_in_a_row())
            }
        },
    };
    Some(Known { step, fusible, accesses: reads.into_iter().chain([result]).collect() })
}

/// What became of the launches that others could stand for.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// Launches that others stand for.
    pub launches: usize,
    /// For each chain whose launches stay as they are, the reason.
    pub refused: Vec<String>,
}

/// A chain as one launch.
struct Fused {
    program: Program,
    accesses: Vec<Access>,
    pointers: Vec<Pointer>,
}

impl Fused {
    /// Of the launches of a chain. `None` if they do not go together.
    fn new(members: &[&Known], chain: &fuse::Chain) -> Option<Self> {
        let part = Part::of(chain.elements, chain.columns)?;
        let types = members.iter().flat_map(|member| [member.step.from, member.step.to]);
        let wider = part.wider(types.max_by_key(|of| of.bytes())?).and_then(|part| Self::of(part, members, chain));
        wider.filter(|fused| fused.program.loads_at_once()).or_else(|| Self::of(part, members, chain))
    }

    /// The same of threads that make such parts.
    fn of(part: Part, members: &[&Known], chain: &fuse::Chain) -> Option<Self> {
        let mut program = Program::new(part);
        let (mut accesses, mut deltas, mut words) = (Vec::new(), Vec::new(), Vec::new());
        let maker = |buffer| members.iter().position(|member| member.fusible.result == buffer);
        for (at, (member, &is_kept)) in members.iter().zip(&chain.kept).enumerate() {
            let Known { step, accesses: accessed, .. } = member;
            let (&(result, to), reads) = accessed.split_last()?;
            let (order, first) = chain.order(at);
            let mut operands = Vec::new();
            for (&(_, places), &(access, address)) in step.operands.iter().zip(reads) {
                operands.push(match maker(access.buffer) {
                    Some(maker) if members[maker].step.to != step.from => return None,
                    Some(maker) => Source::Step(maker),
                    None => {
                        let (places, distance) = places.taken(&order, first)?;
                        let distance = distance * step.from.bytes();
                        accesses.push(access);
                        deltas.push(access.region.start() + distance);
                        Source::Memory(address + distance, step.from, places)
                    }
                });
            }
            if is_kept {
                accesses.push(result);
                deltas.push(result.region.start());
            }
            words.extend(program.step(&program::Step {
                code: step.code,
                of: step.to,
                operands: &operands,
                on_numbers: chain.on_numbers[at],
                target: is_kept.then_some(to),
            })?);
        }
        let pointers = words.into_iter().zip(deltas).zip(&accesses);
        let pointers = pointers.map(|((word, delta), access)| Pointer { word, buffer: access.buffer, delta }).collect();
        Some(Self { program, accesses, pointers })
    }

    fn op(&self, label: String, kernel: &KernelNode) -> Op {
        let work = Work::Kernel(kernel.launch);
        Op { name: self.program.name().into(), label, work, accesses: self.accesses.clone(), nanos: None }
    }
}

#[cfg(test)]
mod tests {
    use super::dtype::Type;
    use super::*;
    use crate::cuda::driver::kernels::chain::Chain as Argument;
    use crate::fuse::{Chain, Turn};
    use crate::trace::Region;

    /// A launch on 16 bits, of operands with where their first bytes and elements are, and of a result.
    fn known(elements: u64, code: Code, operands: &[(BufferId, u64, Places)], result: BufferId) -> Known {
        let address = |buffer: BufferId| 0x10000 * (1 + buffer as u64);
        let access = |buffer, start, mode| {
            (Access { buffer, region: Region::contiguous(start, 16), mode }, address(buffer) + start)
        };
        let operand =
            |&(buffer, start, places): &(BufferId, u64, Places)| Operand { buffer, places, first: Some(start / 2) };
        let words = operands.iter().enumerate().map(|(at, &(.., places))| (8 * at, places)).collect();
        let (from, to) = (Type::F16, Type::F16);
        let reads = operands.iter().map(|&(buffer, start, _)| access(buffer, start, Mode::Read));
        Known {
            step: Step { elements, columns: None, code, from, to, operands: words, result: 8 * operands.len() },
            fusible: Fusible {
                elements,
                columns: None,
                folds: false,
                operands: operands.iter().map(operand).collect(),
                result,
                gains_alone: false,
            },
            accesses: reads.chain([access(result, 0, Mode::Write)]).collect(),
        }
    }

    #[test]
    fn a_part_of_a_sum_is_made_of_parts_of_its_operands() {
        // Two tokens' queries, keys and values of four numbers each, and the keys of it.
        let bias = Places::new(&[2, 12], &[0, 1]).unwrap();
        let keys = Places::new(&[2, 4], &[12, 1]).unwrap();
        let sum = known(24, Code::ElementWise("add", 2), &[(0, 0, Places::default()), (1, 6, bias)], 2);
        let copy = known(8, Code::Cast, &[(2, 8, keys)], 3);
        let chain = Chain {
            members: vec![5, 7],
            at: 7,
            kept: vec![false, true],
            on_numbers: vec![false; 2],
            elements: 8,
            columns: None,
            turn: Some(Turn { before: 1, order: keys, first: 4 }),
        };
        let fused = Fused::new(&[&sum, &copy], &chain).unwrap();
        let pointer = |word, buffer, delta| Pointer { word, buffer, delta };
        let operands =
            [(0, 8), (1, 6 + 8)].map(|(buffer, delta)| pointer(Argument::operand_word(buffer), buffer, delta));
        assert_eq!(fused.pointers, [&operands[..], &[pointer(Argument::result_word(1), 3, 0)]].concat());
        assert_eq!(fused.accesses.iter().map(|access| access.buffer).collect::<Vec<_>>(), [0, 1, 3]);
        let code = fused.program.written().code;
        let body = "
    const auto s0 = add(mine.load_together<__half, 4, 1, 2, 12>(chain.from[0]), mine.load_together<__half, 4, 1, 2, 0>(chain.from[1]));
    const auto s1 = cast<__half>(s0);
";
        assert!(code.contains(body), "{code}");
    }
}
