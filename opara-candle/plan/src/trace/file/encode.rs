//! Encoding: from a trace to bytes.

use hashbrown::HashMap;
use serde::Serialize;

use super::super::{Role, Trace};
use super::head::{MAGIC, VERSION};
use super::record::{Access, Buffer, Device, Measured, Op, Part};
use super::section::{self, Tag};
use super::{limits, FileError};

/// The whole file.
pub(super) fn encode(trace: &Trace) -> Result<Vec<u8>, FileError> {
    let mut file = Vec::from(MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    for (tag, content) in contents(trace)? {
        section::write(&mut file, tag, &content)?;
    }
    Ok(file)
}

/// Every section's content.
pub(super) fn contents(trace: &Trace) -> Result<Vec<(Tag, Vec<u8>)>, FileError> {
    limits::check(trace)?;
    let mut device = Content::new(Tag::DEVICE);
    device.push(0, &Device(trace.device.clone()))?;

    let mut buffers = Content::new(Tag::BUFFERS);
    buffers.push(0, &trace.buffers.len())?;
    for (id, buffer) in trace.buffers.iter().enumerate() {
        let role = match buffer.role {
            Role::Workspace => Role::Intermediate,
            Role::State(_) => Role::External,
            role => role,
        };
        buffers.push(id, &Buffer { bytes: buffer.bytes, role })?;
    }

    let mut table = Table::default();
    let mut ops = Content::new(Tag::OPS);
    ops.push(0, &trace.ops.len())?;
    let mut before = 0;
    for (id, op) in trace.ops.iter().enumerate() {
        let (name, label) = (table.index(&op.name), table.index(&op.label));
        ops.push(id, &Op { name, label, work: op.work.clone(), accesses: op.accesses.len() as u32 })?;
        for access in &op.accesses {
            let buffer = access.buffer as i64;
            let part = Part::new(access.region, trace.buffers[access.buffer].bytes);
            ops.push(id, &Access { step: buffer - before, mode: access.mode, part })?;
            before = buffer;
        }
    }

    let mut strings = Content::new(Tag::STRINGS);
    strings.push(0, &table.strings.len())?;
    for (id, string) in table.strings.iter().enumerate() {
        strings.push(id, string)?;
    }
    let mut contents = vec![device, strings, buffers, ops];
    let is_workspace = |id: &usize| trace.buffers[*id].role == Role::Workspace;
    let ids: Vec<usize> = (0..trace.buffers.len()).filter(is_workspace).collect();
    if !ids.is_empty() {
        let mut workspaces = Content::new(Tag::WORKSPACES);
        workspaces.push(0, &ids.len())?;
        let mut before = 0;
        for (entry, id) in ids.into_iter().enumerate() {
            workspaces.push(entry, &(id - before))?;
            before = id;
        }
        contents.push(workspaces);
    }
    let state = trace.buffers.iter().enumerate().filter_map(|(id, buffer)| match buffer.role {
        Role::State(index) => Some((id, index)),
        _ => None,
    });
    let state: Vec<(usize, usize)> = state.collect();
    if !state.is_empty() {
        let mut tensors = Content::new(Tag::STATE);
        tensors.push(0, &state.len())?;
        let mut before = 0;
        for (entry, (id, index)) in state.into_iter().enumerate() {
            tensors.push(entry, &(id - before, index))?;
            before = id;
        }
        contents.push(tensors);
    }
    if trace.peak_bytes > 0 {
        let mut peak = Content::new(Tag::PEAK);
        peak.push(0, &trace.peak_bytes)?;
        contents.push(peak);
    }
    if trace.ops.iter().any(|op| op.nanos.is_some()) {
        let mut nanos = Content::new(Tag::NANOS);
        nanos.push(0, &trace.ops.len())?;
        for (id, op) in trace.ops.iter().enumerate() {
            nanos.push(id, &op.nanos.unwrap_or(0))?;
        }
        contents.push(nanos);
    }
    let known = trace.ops.iter().filter(|op| op.meaning.is_some()).count();
    if known > 0 {
        let mut meanings = Content::new(Tag::MEANINGS);
        meanings.push(0, &known)?;
        let mut skipped = 0u64;
        for (id, op) in trace.ops.iter().enumerate() {
            match &op.meaning {
                Some(meaning) => meanings.push(id, &(std::mem::take(&mut skipped), meaning))?,
                None => skipped += 1,
            }
        }
        contents.push(meanings);
    }
    if !trace.measured.is_empty() {
        let mut measured = Content::new(Tag::MEASURED);
        measured.push(0, &trace.measured.len())?;
        for (id, one) in trace.measured.iter().enumerate() {
            measured.push(id, &Measured(one.clone()))?;
        }
        contents.push(measured);
    }
    contents.push(Content::new(Tag::END));
    Ok(contents.into_iter().map(|content| (content.tag, content.bytes)).collect())
}

/// Every string once, in the order of first use.
#[derive(Default)]
struct Table<'a> {
    strings: Vec<&'a str>,
    known: HashMap<&'a str, u32>,
}

impl<'a> Table<'a> {
    fn index(&mut self, string: &'a str) -> u32 {
        *self.known.entry(string).or_insert_with(|| {
            self.strings.push(string);
            // There are two strings per op, and the number of ops is limited.
            (self.strings.len() - 1) as u32
        })
    }
}

/// The content of a section that is being written.
struct Content {
    tag: Tag,
    bytes: Vec<u8>,
}

impl Content {
    fn new(tag: Tag) -> Self {
        Self { tag, bytes: Vec::new() }
    }

    fn push(&mut self, entry: usize, record: &impl Serialize) -> Result<(), FileError> {
        let bytes = std::mem::take(&mut self.bytes);
        let offset = bytes.len();
        self.bytes = postcard::to_extend(record, bytes).map_err(|error| FileError::Content {
            section: self.tag.to_string(),
            entry,
            offset,
            reason: error.to_string(),
        })?;
        Ok(())
    }
}
