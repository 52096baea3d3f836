//! Decoding: from bytes to a trace.

use std::io::{BufReader, Read};

use hashbrown::HashMap;
use serde::Deserialize;

use super::super::{Access, Buffer, DeviceSpec, Meaning, Measured, Op, Role, Trace};
use super::head::{MAGIC, VERSION};
use super::limits::{self, at_most};
use super::record::{self, Rows};
use super::section::{Source, Tag};
use super::FileError;
use crate::kernel_catalog::KernelName;

/// Reads a whole file.
pub(super) fn decode(reader: impl Read) -> Result<Trace, FileError> {
    let mut source = Source::new(BufReader::new(reader));
    header(&mut source)?;
    let contents = contents(&mut source)?;
    let device = device(contents.get(Tag::DEVICE)?)?;
    let strings = strings(contents.get(Tag::STRINGS)?)?;
    let mut buffers = buffers(contents.get(Tag::BUFFERS)?)?;
    let mut ops = ops(contents.get(Tag::OPS)?, &strings, &buffers)?;
    if let Ok(content) = contents.get(Tag::NANOS) {
        nanos(content, &mut ops)?;
    }
    if let Ok(content) = contents.get(Tag::MEANINGS) {
        meanings(content, &mut ops)?;
    }
    if let Ok(content) = contents.get(Tag::WORKSPACES) {
        workspaces(content, &mut buffers)?;
    }
    if let Ok(content) = contents.get(Tag::STATE) {
        state(content, &mut buffers)?;
    }
    let peak_bytes = contents.get(Tag::PEAK).map_or(Ok(0), peak)?;
    let measured = contents.get(Tag::MEASURED).map_or(Ok(Vec::new()), measured)?;
    let trace = Trace { device, ops, buffers, peak_bytes, measured };
    limits::check(&trace)?;
    Ok(trace)
}

fn header(source: &mut Source<impl Read>) -> Result<(), FileError> {
    let magic = source.up_to(MAGIC.len())?;
    if magic != MAGIC[..magic.len()] {
        return Err(FileError::Foreign);
    }
    if magic.len() < MAGIC.len() {
        return Err(FileError::Truncated { offset: source.offset() });
    }
    let offset = source.offset();
    match u16::from_le_bytes(source.array()?) {
        0 => Err(FileError::Damaged { offset, reason: "there is no version 0".into() }),
        1..=VERSION => Ok(()),
        found => Err(FileError::NewerVersion { found, supported: VERSION }),
    }
}

/// Decompressed sections.
struct Contents(Vec<(Tag, Vec<u8>)>);

impl Contents {
    fn get(&self, tag: Tag) -> Result<Cursor<'_>, FileError> {
        match self.0.iter().find(|(t, _)| *t == tag) {
            Some((_, content)) => Ok(Cursor { tag, length: content.len(), rest: content }),
            None => Err(FileError::MissingSection { section: tag.to_string() }),
        }
    }
}

/// All known sections up to the end of the file.
fn contents(source: &mut Source<impl Read>) -> Result<Contents, FileError> {
    let known = [
        Tag::DEVICE,
        Tag::STRINGS,
        Tag::BUFFERS,
        Tag::OPS,
        Tag::WORKSPACES,
        Tag::STATE,
        Tag::PEAK,
        Tag::NANOS,
        Tag::MEANINGS,
        Tag::MEASURED,
        Tag::END,
    ];
    let mut contents = Contents(Vec::new());
    for count in 1.. {
        at_most("sections of the file", count, limits::SECTIONS)?;
        let section = source.section()?;
        let (tag, offset) = (section.tag, section.offset);
        if !known.contains(&tag) {
            if tag.is_optional() {
                continue;
            }
            return Err(FileError::UnknownSection { section: tag.to_string(), offset });
        }
        if contents.get(tag).is_ok() {
            return Err(FileError::Damaged { offset, reason: format!("there is a second section `{tag}`") });
        }
        contents.0.push((tag, section.content()?));
        if tag == Tag::END {
            break;
        }
    }
    contents.get(Tag::END)?.finish(0)?;
    let offset = source.offset();
    if !source.up_to(1)?.is_empty() {
        return Err(FileError::Damaged { offset, reason: "something follows the end of the trace".into() });
    }
    Ok(contents)
}

fn device(mut content: Cursor<'_>) -> Result<DeviceSpec, FileError> {
    let record::Device(device) = content.read(0)?;
    content.finish(1)?;
    Ok(device)
}

fn workspaces(mut content: Cursor<'_>, buffers: &mut [Buffer]) -> Result<(), FileError> {
    let count = content.count(0, "workspaces", limits::BUFFERS)?;
    let mut id = 0usize;
    for entry in 0..count {
        let step: u64 = content.read(entry)?;
        let buffer = further(&mut id, step, buffers).filter(|buffer| buffer.role == Role::Intermediate);
        let Some(buffer) = buffer else {
            return Err(content.error(entry, "it names no intermediate buffer".into()));
        };
        buffer.role = Role::Workspace;
    }
    content.finish(count)
}

fn state(mut content: Cursor<'_>, buffers: &mut [Buffer]) -> Result<(), FileError> {
    let count = content.count(0, "tensors of state", limits::BUFFERS)?;
    let mut id = 0usize;
    for entry in 0..count {
        let (step, index): (u64, usize) = content.read(entry)?;
        let buffer = further(&mut id, step, buffers).filter(|buffer| buffer.role == Role::External);
        let Some(buffer) = buffer else {
            return Err(content.error(entry, "it names no buffer from before the pass".into()));
        };
        buffer.role = Role::State(index);
    }
    content.finish(count)
}

/// The buffer that is `step` behind the one with this id, which becomes its own.
fn further<'a>(id: &mut usize, step: u64, buffers: &'a mut [Buffer]) -> Option<&'a mut Buffer> {
    *id = id.checked_add(usize::try_from(step).ok()?)?;
    buffers.get_mut(*id)
}

fn peak(mut content: Cursor<'_>) -> Result<u64, FileError> {
    let bytes = content.read(0)?;
    content.finish(1)?;
    Ok(bytes)
}

fn nanos(mut content: Cursor<'_>, ops: &mut [Op]) -> Result<(), FileError> {
    let count = content.count(0, "durations", limits::OPS)?;
    if count != ops.len() {
        return Err(content.error(0, format!("{count} durations of {} ops", ops.len())));
    }
    for (id, op) in ops.iter_mut().enumerate() {
        op.nanos = Some(content.read(id)?).filter(|&nanos| nanos > 0);
    }
    content.finish(count)
}

fn meanings(mut content: Cursor<'_>, ops: &mut [Op]) -> Result<(), FileError> {
    let count = content.count(0, "meanings", limits::OPS)?;
    let mut next = 0usize;
    for entry in 0..count {
        let (skipped, meaning): (u64, Box<Meaning>) = content.read(entry)?;
        let at = usize::try_from(skipped).ok().and_then(|skipped| next.checked_add(skipped));
        let Some((at, op)) = at.and_then(|at| Some((at, ops.get_mut(at)?))) else {
            return Err(content.error(entry, "it is the meaning of no op".into()));
        };
        op.meaning = Some(meaning);
        next = at + 1;
    }
    content.finish(count)
}

fn measured(mut content: Cursor<'_>) -> Result<Vec<Measured>, FileError> {
    let count = content.count(0, "measured schedules", limits::MEASURED)?;
    let measured = (0..count).map(|id| content.read::<record::Measured>(id).map(|record| record.0));
    let measured = measured.collect::<Result<_, _>>()?;
    content.finish(count)?;
    Ok(measured)
}

fn strings(mut content: Cursor<'_>) -> Result<Vec<&str>, FileError> {
    let count = content.count(0, "strings", 2 * limits::OPS)?;
    let strings = (0..count).map(|id| content.read(id)).collect::<Result<_, _>>()?;
    content.finish(count)?;
    Ok(strings)
}

fn buffers(mut content: Cursor<'_>) -> Result<Vec<Buffer>, FileError> {
    let count = content.count(0, "buffers", limits::BUFFERS)?;
    let mut buffers = Vec::with_capacity(count);
    for id in 0..count {
        let record::Buffer { bytes, role } = content.read(id)?;
        buffers.push(Buffer { bytes, role });
    }
    content.finish(count)?;
    Ok(buffers)
}

fn ops(mut content: Cursor<'_>, strings: &[&str], buffers: &[Buffer]) -> Result<Vec<Op>, FileError> {
    let count = content.count(0, "ops", limits::OPS)?;
    let mut ops = Vec::with_capacity(count);
    let (mut text, mut accesses_before) = (0, 0);
    // Many ops share a name.
    let mut names: HashMap<u32, KernelName> = HashMap::new();
    let mut buffer = 0i64;
    for id in 0..count {
        let record: record::Op = content.read(id)?;
        let string = |index: u32| strings.get(index as usize).copied();
        let (Some(name), Some(label)) = (string(record.name), string(record.label)) else {
            return Err(content.error(id, format!("there are only {} strings", strings.len())));
        };
        text += (name.len() + label.len()) as u128;
        at_most(format_args!("bytes of the names and labels up to op {id}"), text, limits::TEXT)?;
        let (name, label) = (names.entry(record.name).or_insert_with(|| name.into()).clone(), label.to_string());

        accesses_before += record.accesses as u128;
        at_most(format_args!("accesses up to op {id}"), accesses_before, limits::ACCESSES)?;
        let mut accesses = Vec::with_capacity(content.fitting(id, record.accesses as u64)?);
        for _ in 0..record.accesses {
            let record::Access { step, mode, part } = content.read::<record::Access<Rows>>(id)?;
            let next = buffer.checked_add(step).and_then(|index| Some((index, usize::try_from(index).ok()?)));
            let Some((index, Some(bytes))) = next.map(|(index, at)| (index, buffers.get(at).map(|b| b.bytes))) else {
                return Err(content.error(id, "an access names a buffer that does not exist".into()));
            };
            buffer = index;
            let Some(region) = part.region(bytes) else {
                return Err(content.error(id, format!("an access is no part of buffer {buffer} of {bytes} bytes")));
            };
            accesses.push(Access { buffer: index as usize, region, mode });
        }
        ops.push(Op { name, label, work: record.work, accesses, nanos: None, meaning: None });
    }
    content.finish(count)?;
    Ok(ops)
}

/// Reads the content of one section, and knows the position for errors.
struct Cursor<'a> {
    tag: Tag,
    length: usize,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn error(&self, entry: usize, reason: String) -> FileError {
        FileError::Content { section: self.tag.to_string(), entry, offset: self.length - self.rest.len(), reason }
    }

    /// The next record.
    fn read<T: Deserialize<'a>>(&mut self, entry: usize) -> Result<T, FileError> {
        let (record, rest) =
            postcard::take_from_bytes(self.rest).map_err(|error| self.error(entry, error.to_string()))?;
        self.rest = rest;
        Ok(record)
    }

    /// Checks a number of records that follow. Each has at least one byte, so there are at most as many records as bytes. The memory
    /// reserved for them is thus proportional to the file.
    fn fitting(&self, entry: usize, count: u64) -> Result<usize, FileError> {
        match usize::try_from(count) {
            Ok(count) if count <= self.rest.len() => Ok(count),
            _ => Err(self.error(entry, format!("{count} entries cannot fit in {} bytes", self.rest.len()))),
        }
    }

    /// Reads the number of records that follow.
    fn count(&mut self, entry: usize, what: &str, limit: u64) -> Result<usize, FileError> {
        let count: u64 = self.read(entry)?;
        at_most(format_args!("{what} of section `{}`", self.tag), count as u128, limit)?;
        self.fitting(entry, count)
    }

    /// Fails if bytes are left.
    fn finish(self, entries: usize) -> Result<(), FileError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.error(entries, format!("{} bytes are left", self.rest.len())))
    }
}
