//! `opara inspect`: shows the content of a trace.

mod kernels;
mod meanings;
mod resources;

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use opara_plan::prepared::Prepared;
use opara_plan::trace::{DeviceSpec, Role, Trace, Work};
use serde::Serialize;

use self::kernels::Kernels;
use self::meanings::Meanings;
use self::resources::Resources;
use crate::input::{self, Input};

/// Shows the content of a trace: device, ops and their resources, dependencies, the costliest kernels, memory.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,

    /// Number of kernels to list, the costliest first.
    #[arg(long, default_value_t = 10)]
    top: usize,
}

/// The content of a trace.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    device: DeviceSpec,
    ops: Ops,
    resources: Option<Resources>,
    graph: Graph,
    kernels: Kernels,
    /// If the trace has meanings.
    meanings: Option<Meanings>,
    memory: Memory,
}

/// Numbers of launches by kind.
#[derive(Debug, Clone, Serialize)]
struct Ops {
    recorded: usize,
    every_call: usize,
    /// Ops that depend on no input.
    run_once: usize,
    /// Ops that depend on no input, and whose results no call needs.
    never: usize,
    /// The ops of every call, by kind.
    work: BTreeMap<&'static str, usize>,
}

/// The dependency graph.
#[derive(Debug, Clone, Serialize)]
struct Graph {
    hazards: usize,
    edges: usize,
    width: usize,
    depth: usize,
    /// Number of ops on the longest path by time, and its time.
    critical_path_ops: usize,
    critical_path_us: f64,
}

/// Buffers by role, and the arenas.
#[derive(Debug, Clone, Serialize)]
struct Memory {
    roles: BTreeMap<&'static str, Buffers>,
    arena_bytes: u64,
    workspace_bytes: u64,
    constant_bytes: u64,
    /// Peak bytes of the recorded pass; 0 if they were not recorded.
    peak_bytes: u64,
}

/// Buffers of one role.
#[derive(Debug, Clone, Default, Serialize)]
struct Buffers {
    count: usize,
    bytes: u64,
}

impl Args {
    /// Inspects the trace.
    ///
    /// # Errors
    /// A file that cannot be read or is no trace.
    pub fn run(&self) -> Result<Inspection> {
        let trace = self.input.load()?;
        let prepared = input::prepare(&trace);
        let graph = &prepared.graph;
        let us: Vec<f64> = prepared.profile.iter().map(|profile| profile.us).collect();
        let (path, critical_path_us) = graph.critical_path(&us);
        Ok(Inspection {
            ops: Ops::of(&trace, &prepared),
            resources: Resources::of(&prepared),
            graph: Graph {
                hazards: graph.hazards(),
                edges: graph.edges(),
                width: graph.width(),
                depth: graph.depth(),
                critical_path_ops: path.len(),
                critical_path_us,
            },
            kernels: Kernels::of(&prepared, self.top),
            meanings: Meanings::of(&trace, &prepared, self.top),
            memory: Memory::of(&trace, &prepared),
            device: trace.device,
        })
    }
}

impl Ops {
    fn of(trace: &Trace, prepared: &Prepared) -> Self {
        let kept = &prepared.ops.trace.ops;
        let mut work = BTreeMap::new();
        for op in kept {
            let kind = match op.work {
                Work::Kernel(_) => "kernels",
                Work::Memset(_) => "memsets",
                Work::Memcpy(_) => "copies",
                Work::Host { .. } => "host operators",
            };
            *work.entry(kind).or_default() += 1;
        }
        // A folded op may run at every call, too, if its result is too large to store.
        let mut runs = vec![false; trace.ops.len()];
        prepared.ops.per_call.iter().chain(&prepared.ops.folded).for_each(|&op| runs[op] = true);
        Self {
            recorded: trace.ops.len(),
            every_call: kept.len(),
            run_once: prepared.ops.folded.len(),
            never: runs.iter().filter(|&&runs| !runs).count(),
            work,
        }
    }
}

impl Memory {
    fn of(trace: &Trace, prepared: &Prepared) -> Self {
        let mut roles: BTreeMap<&'static str, Buffers> = BTreeMap::new();
        for buffer in &prepared.ops.trace.buffers {
            let role = match buffer.role {
                Role::Input(_) => "inputs",
                Role::Output(_) => "outputs",
                Role::State(_) => "state",
                Role::External => "weights",
                Role::Intermediate => "intermediate",
                Role::Workspace => "workspaces",
                Role::Constant => "constants",
            };
            let all = roles.entry(role).or_default();
            all.count += 1;
            all.bytes += buffer.bytes;
        }
        let [tensors, workspaces] = &prepared.layouts;
        let constant_bytes = prepared.ops.constant_bytes();
        let (arena_bytes, workspace_bytes) = (tensors.bytes, workspaces.bytes);
        Self { roles, arena_bytes, workspace_bytes, constant_bytes, peak_bytes: trace.peak_bytes }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<18}{value}");
        let Self { device, ops, graph, memory, .. } = self;
        row("device", format!("{}, {} multiprocessors", device.name, device.processors))?;
        let Ops { recorded, every_call, run_once, never, work } = ops;
        row("ops", format!("{recorded}: {every_call} run at every call, {run_once} once, {never} never"))?;
        work.iter().try_for_each(|(kind, count)| row(kind, count.to_string()))?;
        row("edges", format!("{}, reduced to {}", graph.hazards, graph.edges))?;
        row("width, depth", format!("{}, {}", graph.width, graph.depth))?;
        row("critical path", format!("{} ops, {:.1} us", graph.critical_path_ops, graph.critical_path_us))?;
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
        for (role, Buffers { count, bytes }) in &memory.roles {
            row(role, format!("{count}, {}", mib(*bytes)))?;
        }
        let arenas = (mib(memory.arena_bytes), mib(memory.workspace_bytes), mib(memory.constant_bytes));
        row("arena", format!("{}, workspaces {}, constants {}", arenas.0, arenas.1, arenas.2))?;
        if memory.peak_bytes > 0 {
            row("peak as recorded", mib(memory.peak_bytes))?;
        }
        if let Some(resources) = &self.resources {
            write!(f, "\n{resources}")?;
        }
        write!(f, "\n{}", self.kernels)?;
        self.meanings.iter().try_for_each(|meanings| write!(f, "\n{meanings}"))
    }
}
