//! Launches of another capture in the place of some of a capture's.

use std::ops::Range;

use hashbrown::HashMap;

use crate::cuda::capture::Capture;
use crate::cuda::driver::{LaunchNode, Pointer};
use crate::cuda::launches::{CapturedLaunch, Launches};
use crate::trace::{Access, BufferId, Op, OpId, Role};

impl Capture {
    /// Puts the launches of `fragment` in the place of these ops, of which those that are `kept` come first. The fragment's inputs
    /// and outputs are these buffers.
    pub(super) fn splice(
        &mut self,
        ops: Range<OpId>,
        kept: &[OpId],
        fragment: Capture,
        [inputs, outputs]: [&[BufferId]; 2],
    ) {
        let addresses: HashMap<BufferId, u64> = self.external.iter().map(|&(address, id)| (id, address)).collect();
        let buffers = self.adopt(&fragment, inputs, outputs);
        let Launches { of, graphs, kernels } = fragment.launches.into_inner();
        let label = self.trace.ops.get(ops.start).map(|op| op.label.clone()).unwrap_or_default();
        let fragment = fragment.trace.ops.into_iter().zip(of).map(|(op, launch)| {
            let accesses = op.accesses.iter().map(|a| Access { buffer: buffers[a.buffer], ..*a }).collect();
            (Op { label: label.clone(), accesses, meaning: None, ..op }, launch.moved(&buffers, &addresses))
        });

        let all = self.launches.get_mut();
        all.graphs.extend(graphs);
        all.kernels.extend(kernels);
        let taken = self.trace.ops.drain(ops.clone()).zip(all.of.drain(ops.clone())).enumerate();
        let is_kept = |at: OpId| kept.contains(&(ops.start + at));
        let kept: Vec<_> = taken.filter(|(at, _)| is_kept(*at)).map(|(_, recorded)| recorded).collect();
        let (new, of): (Vec<Op>, Vec<CapturedLaunch>) = kept.into_iter().chain(fragment).unzip();
        self.trace.ops.splice(ops.start..ops.start, new);
        all.of.splice(ops.start..ops.start, of);
    }

    /// For each buffer of a fragment, which of these it is; those that are new are added.
    fn adopt(&mut self, fragment: &Capture, inputs: &[BufferId], outputs: &[BufferId]) -> Vec<BufferId> {
        let mut by_address: HashMap<u64, BufferId> = self.external.iter().copied().collect();
        let addresses: HashMap<BufferId, u64> = fragment.external.iter().map(|&(address, id)| (id, address)).collect();
        let mut buffers = Vec::with_capacity(fragment.trace.buffers.len());
        for (id, buffer) in fragment.trace.buffers.iter().enumerate() {
            let known = match buffer.role {
                Role::Input(i) => Some(inputs[i]),
                Role::Output(i) => Some(outputs[i]),
                _ => addresses.get(&id).and_then(|address| by_address.get(address)).copied(),
            };
            buffers.push(known.unwrap_or_else(|| {
                self.trace.buffers.push(*buffer);
                let new = self.trace.buffers.len() - 1;
                if let Some(&address) = addresses.get(&id) {
                    by_address.insert(address, new);
                    self.external.push((address, new));
                }
                new
            }));
        }
        buffers
    }
}

impl CapturedLaunch {
    /// The same on these buffers, of which some stay where they are, at `addresses`.
    fn moved(mut self, buffers: &[BufferId], addresses: &HashMap<BufferId, u64>) -> Self {
        let is_kernel = matches!(self.launch, LaunchNode::Kernel(_));
        let mut pointers = Vec::with_capacity(self.pointers.len());
        for pointer in self.pointers {
            let buffer = buffers[pointer.buffer];
            match addresses.get(&buffer) {
                Some(address) => {
                    self.launch.point(pointer.word, address + pointer.delta);
                    self.fixed.push(pointer.word);
                    // A copy always has two pointers; of a kernel's only those to buffers that may move matter.
                    pointers.extend((!is_kernel).then_some(Pointer { buffer, ..pointer }));
                }
                None => pointers.push(Pointer { buffer, ..pointer }),
            }
        }
        self.fixed.sort_unstable();
        self.fixed.dedup();
        Self { pointers, ..self }
    }
}
