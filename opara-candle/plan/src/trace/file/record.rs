//! The records of the sections, in postcard's encoding: variable-length integers, without names or tags of fields.
//!
//! The order of fields and variants here is the format of version 1. The types repeat the trace's types, so that these can change: a
//! new field there does not compile until its storage is decided (in a new section: see `docs/trace-format.md`). Meanings are stored
//! as they are, since [`Function`](crate::trace::Function) may only grow at its end.

use serde::{Deserialize, Serialize};

use super::super::{AccessMode, DeviceSpec, Launch, Region, Role, Work};

/// The device.
#[derive(Serialize, Deserialize)]
pub(super) struct Device(#[serde(with = "DeviceFields")] pub(super) DeviceSpec);

#[derive(Serialize, Deserialize)]
#[serde(remote = "DeviceSpec")]
struct DeviceFields {
    name: String,
    processors: u32,
    threads_per_processor: u32,
    registers_per_processor: u32,
    shared_memory_per_processor: u32,
}

/// A measured schedule.
#[derive(Serialize, Deserialize)]
pub(super) struct Measured(#[serde(with = "MeasuredFields")] pub(super) super::super::Measured);

#[derive(Serialize, Deserialize)]
#[serde(remote = "super::super::Measured")]
struct MeasuredFields {
    schedule: String,
    nanos: u64,
    busy: Option<u32>,
}

/// A buffer.
#[derive(Serialize, Deserialize)]
pub(super) struct Buffer {
    pub(super) bytes: u64,
    #[serde(with = "RoleVariants")]
    pub(super) role: Role,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Role")]
enum RoleVariants {
    Input(usize),
    Output(usize),
    External,
    Intermediate,
    Constant,
    /// Never written here: readers of the first release see an intermediate buffer, and the section `work` tells newer ones.
    Workspace,
    /// Never written here: `STAT` tells, which a reader of the first release refuses.
    State(usize),
}

/// An op; its accesses follow.
#[derive(Serialize, Deserialize)]
pub(super) struct Op {
    /// Index of its name in the strings.
    pub(super) name: u32,
    /// Index of its label in the strings.
    pub(super) label: u32,
    #[serde(with = "WorkVariants")]
    pub(super) work: Work,
    /// Number of accesses that follow.
    pub(super) accesses: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Work")]
enum WorkVariants {
    Kernel(#[serde(with = "LaunchFields")] Launch),
    Memset(u64),
    Memcpy(u64),
    Host { bytes: u64, flops: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Launch")]
struct LaunchFields {
    grid: [u32; 3],
    block: [u32; 3],
    registers: u32,
    static_shared: u32,
    dynamic_shared: u32,
    resident_blocks: u32,
}

/// An access.
#[derive(Serialize, Deserialize)]
pub(super) struct Access<R> {
    /// Distance from the buffer of the previous access, so that repeated layers give repeated bytes, which compress well.
    pub(super) step: i64,
    #[serde(with = "ModeVariants")]
    pub(super) mode: AccessMode,
    pub(super) part: Part<R>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AccessMode")]
enum ModeVariants {
    Read,
    Write,
    ReadWrite,
}

/// The bytes of its buffer that an access touches.
#[derive(Serialize, Deserialize)]
pub(super) enum Part<R> {
    /// All of it.
    Whole,
    /// One contiguous run.
    Bytes { start: u64, len: u64 },
    /// Runs at a fixed distance: written as the [`Region`], read as [`Rows`].
    Rows(R),
}

impl Part<Region> {
    /// The shortest form of a region in a buffer of `bytes` bytes.
    pub(super) fn new(region: Region, bytes: u64) -> Self {
        let (start, len) = (region.start(), region.end() - region.start());
        if region == Region::contiguous(0, bytes) {
            Part::Whole
        } else if region == Region::contiguous(start, len) {
            Part::Bytes { start, len }
        } else {
            Part::Rows(region)
        }
    }
}

/// The fields of a [`Region`] as written, not validated.
#[derive(Serialize, Deserialize)]
pub(super) struct Rows {
    start: u64,
    len: u64,
    stride: u64,
    rows: u64,
}

impl Part<Rows> {
    /// The region, if [`Region`]'s constructors could make it and it lies inside a buffer of `bytes` bytes.
    pub(super) fn region(&self, bytes: u64) -> Option<Region> {
        let (region, end) = match *self {
            Part::Whole => (Region::contiguous(0, bytes), Some(bytes)),
            Part::Bytes { start, len } => (Region::contiguous(start, len), start.checked_add(len)),
            // Fewer rows, or adjacent rows, are contiguous. A stride of zero would be a divisor.
            Part::Rows(Rows { len, stride, rows, .. }) if rows < 2 || stride <= len => return None,
            Part::Rows(Rows { start, len: 0, stride, rows }) => (Region::rows(start, 0, stride, rows), Some(start)),
            Part::Rows(Rows { start, len, stride, rows }) => {
                let end = (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(start)?.checked_add(len));
                (Region::rows(start, len, stride, rows), end)
            }
        };
        end.is_some_and(|end| end <= bytes).then_some(region)
    }
}
