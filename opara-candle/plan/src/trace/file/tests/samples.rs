//! Traces to write: one of everything, random ones, and one as large as they come.

use proptest::prelude::*;

use crate::trace::{
    Access, AccessMode, Bilinear, BlockType, Buffer, DeviceSpec, Dim, Element, Function, Launch, Meaning, Measured, Op,
    Region, Role, Rotary, Trace, View, Window, Work,
};

fn device() -> DeviceSpec {
    DeviceSpec {
        name: "NVIDIA H200".into(),
        processors: 132,
        threads_per_processor: 2048,
        registers_per_processor: 65536,
        shared_memory_per_processor: 233_472,
    }
}

/// Every kind of work, buffer, mode and region once: the content of `tests/data/version-1.trace`.
pub(super) fn golden() -> Trace {
    let access = |buffer, region, mode| Access { buffer, region, mode };
    let launch = Launch {
        grid: [300, 2, 1],
        block: [128, 1, 1],
        registers: 168,
        static_shared: 1024,
        dynamic_shared: 65536,
        resident_blocks: 2,
    };
    let op = |name: &str, label: &str, work, accesses| Op {
        name: name.into(),
        label: label.into(),
        work,
        accesses,
        nanos: None,
        meaning: None,
    };
    let buffers = [
        (4096, Role::Input(0)),
        (1024, Role::Output(1)),
        (1 << 33, Role::External),
        (4096, Role::Intermediate),
        (0, Role::Constant),
    ];
    Trace {
        device: device(),
        ops: vec![
            op("memset", "", Work::Memset(4096), vec![access(3, Region::contiguous(0, 4096), AccessMode::Write)]),
            op("memcpy", "stem", Work::Memcpy(16), vec![access(0, Region::contiguous(16, 16), AccessMode::Read)]),
            op(
                "_Z4gemmPfS_é",
                "stem/conv",
                Work::Kernel(launch),
                vec![
                    access(2, Region::contiguous(1 << 32, 512), AccessMode::Read),
                    access(3, Region::rows(8, 64, 128, 16), AccessMode::ReadWrite),
                    access(1, Region::contiguous(0, 1024), AccessMode::Write),
                ],
            ),
            op("add", "stem/conv", Work::Host { bytes: 2048, flops: 512 }, vec![]),
        ],
        buffers: buffers.map(|(bytes, role)| Buffer { bytes, role }).to_vec(),
        peak_bytes: 0,
        measured: vec![],
    }
}

/// Any trace that is within the limits.
pub(super) fn traces() -> impl Strategy<Value = Trace> {
    let buffers = prop::collection::vec(buffers(), 0..8);
    buffers.prop_flat_map(|buffers| {
        let ops = prop::collection::vec(ops(buffers.clone()), 0..12);
        let peak = prop_oneof![Just(0), 0u64..1 << 50];
        (devices(), ops, Just(buffers), peak, measured()).prop_map(|(device, ops, buffers, peak_bytes, measured)| {
            Trace { device, ops, buffers, peak_bytes, measured }
        })
    })
}

fn devices() -> impl Strategy<Value = DeviceSpec> {
    (".{0,12}", 0u32..65536, 0u32..1 << 28, 0u32..1 << 28, 0u32..1 << 28).prop_map(
        |(name, p, threads, registers, shared)| DeviceSpec {
            name,
            processors: p,
            threads_per_processor: threads,
            registers_per_processor: registers,
            shared_memory_per_processor: shared,
        },
    )
}

fn buffers() -> impl Strategy<Value = Buffer> {
    let role = prop_oneof![
        (0..1usize << 20).prop_map(Role::Input),
        (0..1usize << 20).prop_map(Role::Output),
        Just(Role::External),
        Just(Role::Intermediate),
        Just(Role::Constant),
        Just(Role::Workspace),
        (0..1usize << 20).prop_map(Role::State),
    ];
    (prop_oneof![0..100u64, 0..1u64 << 56], role).prop_map(|(bytes, role)| Buffer { bytes, role })
}

fn ops(buffers: Vec<Buffer>) -> impl Strategy<Value = Op> {
    let most = if buffers.is_empty() { 0 } else { 6 };
    let accesses = prop::collection::vec(accesses(buffers.clone()), 0..=most);
    let label = prop_oneof!["(layer/[0-4]/)?(add|conv)?", ".{0,20}"];
    let nanos = prop::option::of(1u64..1 << 40);
    let meaning = prop::option::of(meanings(buffers));
    (".{0,20}", label, works(), accesses, nanos, meaning).prop_map(|(name, label, work, accesses, nanos, meaning)| Op {
        name: name.into(),
        label,
        work,
        accesses,
        nanos,
        meaning: meaning.map(Box::new),
    })
}

/// A random meaning whose views lie in these buffers.
fn meanings(buffers: Vec<Buffer>) -> impl Strategy<Value = Meaning> {
    let window = Window { kernel: [3, 1], padding: [1, 0], stride: [2; 2], dilation: [1; 2], groups: 4 };
    let function = prop::sample::select(vec![
        Function::Zeros,
        Function::Upload,
        Function::Unary("relu".into()),
        Function::Affine(0.5, -1.),
        Function::LayerNorm(768, 1e-5),
        Function::Convolution(window),
        Function::MaxPool(window),
        Function::TransposedConvolution { window, output_padding: [1, 0] },
        Function::UpsampleNearest([6, 300]),
        Function::Fill(0xff80_0000),
        Function::Part,
        Function::IndexSelect { left: 2, from: 300, right: 7 },
        Function::Where,
        Function::MaskedFill(0xff80_0000),
        Function::QuantizedProduct(BlockType::Q6K),
        Function::AffineWide(0.1, -1e300),
        Function::UpsampleBilinear(Bilinear { size: [6, 300], step: [0.5, 1. / 3.], is_aligned: false }),
        Function::Rotary(Rotary { outer: 2, tokens: 9, heads: 1, size: 64, is_of_neighbours: true, angles: 0 }),
    ]);
    // Buffers large enough for every view below.
    let large: Vec<usize> = (0..buffers.len()).filter(|&id| buffers[id].bytes >= 80).collect();
    let views = match large.is_empty() {
        true => Just(Vec::new()).boxed(),
        false => {
            let dims = prop::collection::vec((1u64..5, 0u64..5), 0..4);
            let view = (prop::sample::select(large), dims).prop_map(|(buffer, dims)| {
                let dims = dims.into_iter().map(|(len, stride)| Dim { len, stride }).collect();
                View { buffer, element: Element::F16, first: 3, dims }
            });
            prop::collection::vec(view, 0..3).boxed()
        }
    };
    (function, views).prop_map(|(function, mut reads)| Meaning { function, writes: reads.pop(), reads })
}

fn measured() -> impl Strategy<Value = Vec<Measured>> {
    let one = (".{0,20}", 0u64..1 << 40, prop::option::of(0u32..1001));
    prop::collection::vec(one.prop_map(|(schedule, nanos, busy)| Measured { schedule, nanos, busy }), 0..4)
}

fn works() -> impl Strategy<Value = Work> {
    let size = 0..1u64 << 56;
    let launch = (any::<[u16; 3]>(), any::<[u8; 3]>(), [0u32..256, 0..1 << 28, 0..1 << 28, 0..65536]).prop_map(
        |(grid, block, [registers, static_shared, dynamic_shared, resident_blocks])| Launch {
            grid: [grid[0] as u32, grid[1] as u32, (grid[2] % 256) as u32],
            block: [block[0] as u32 * 4, (block[1] % 8) as u32, (block[2] % 8) as u32],
            registers,
            static_shared,
            dynamic_shared,
            resident_blocks,
        },
    );
    prop_oneof![
        launch.prop_map(Work::Kernel),
        size.clone().prop_map(Work::Memset),
        size.clone().prop_map(Work::Memcpy),
        (size.clone(), size).prop_map(|(bytes, flops)| Work::Host { bytes, flops }),
    ]
}

fn accesses(buffers: Vec<Buffer>) -> impl Strategy<Value = Access> {
    let mode = prop_oneof![Just(AccessMode::Read), Just(AccessMode::Write), Just(AccessMode::ReadWrite)];
    let parts = (any::<prop::sample::Index>(), any::<[u64; 4]>(), mode);
    parts.prop_map(move |(buffer, [start, len, stride, rows], mode)| {
        let buffer = buffer.index(buffers.len());
        let bytes = buffers[buffer].bytes;
        let region = if rows % 3 == 0 {
            Region::contiguous(0, bytes)
        } else {
            let start = start % (bytes + 1);
            let stride = 1 + stride % (bytes - start + 1);
            // With `rows` strides inside the buffer, so are as many runs that are no longer than a stride.
            let (rows, most) = match (bytes - start) / stride {
                0 => (1, bytes - start),
                room => (room.min(1 + rows % 9), stride),
            };
            Region::rows(start, len % (most + 1), stride, rows)
        };
        Access { buffer, region, mode }
    })
}

/// A trace of many launches as separable convolutions make them: few kernels with long names, long labels, and chains
/// that fan out.
pub(super) fn nasnet_like(ops: usize, buffers: usize) -> Trace {
    // A fixed sequence, spread by a prime: the same trace at every run.
    let spread = |i: usize, to: usize| (i * 7919 + i / 17) % to;
    let kernels: Vec<String> = (0..40)
        .map(|k| {
            format!(
                "_ZN7cutlass13device_kernelINS_4conv6kernel13ConvUniversalINS1_16ConvProblemShapeILNS1_8OperatorE{k}\
                 ELi2EEENS1_10collective14CollectiveConvINS1_47MainloopSm90TmaGmmaWarpSpecializedImplicitGemmILS5_{k}\
                 ELi{}ELi2EN4cute5tupleIJNS9_1CILi1EEESC_SC_EEENS1_36KernelImplicitTmaWarpSpecializedSm90ELi1EEE",
                spread(k, 90)
            )
        })
        .collect();
    let op = |i: usize| {
        let kernel = spread(i, kernels.len());
        let label = format!(
            "nasnet/cell_{}/{}/branch_{}/{}",
            i / 240,
            ["left", "right"][i / 40 % 2],
            i / 8 % 5,
            ["relu", "depthwise", "pointwise", "norm"][i / 2 % 4]
        );
        let launch = Launch {
            grid: [1 + spread(i / 3, 1764) as u32, 1 + spread(i / 40, 42) as u32, 1],
            block: [[64, 128, 256, 384][kernel % 4], 1, 1],
            registers: 32 + kernel as u32 * 4,
            static_shared: (kernel as u32 % 8) * 1024,
            dynamic_shared: (kernel as u32 % 5) * 32768,
            resident_blocks: 1 + kernel as u32 % 8,
        };
        let near = |back: usize| (i * buffers / ops).saturating_sub(back);
        let access = |buffer, mode| Access { buffer, region: Region::contiguous(0, size(buffer)), mode };
        let channels = Access {
            buffer: near(2),
            region: Region::rows(size(near(2)) / 8, size(near(2)) / 16, size(near(2)) / 4, 3),
            mode: AccessMode::Read,
        };
        let (weight, output) = (access(spread(i, buffers), AccessMode::Read), access(near(0), AccessMode::Write));
        Op {
            name: kernels[kernel].clone().into(),
            label,
            work: Work::Kernel(launch),
            accesses: vec![access(near(1 + spread(i, 30)), AccessMode::Read), weight, channels, output],
            nanos: None,
            meaning: None,
        }
    };
    let buffer = |id| Buffer {
        bytes: size(id),
        role: match id {
            0 => Role::Input(0),
            _ if id + 1 == buffers => Role::Output(0),
            _ if id % 3 == 0 => Role::External,
            _ => Role::Intermediate,
        },
    };
    let (ops, buffers) = ((0..ops).map(op).collect(), (0..buffers).map(buffer).collect());
    Trace { device: device(), ops, buffers, peak_bytes: 1 << 30, measured: vec![] }
}

fn size(buffer: usize) -> u64 {
    4 * (1 + buffer as u64 * 613 % 4032) * [11 * 11, 21 * 21, 42 * 42, 1][buffer % 4]
}
