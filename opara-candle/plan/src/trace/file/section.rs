//! The framing of a section: tag, lengths, compressed content, checksum.
//!
//! As in PNG, the first letter of an unknown tag decides: readers skip the section if it is lower case, and refuse the file if it
//! is upper case.

use std::fmt::{self, Display};
use std::io::{Read, Write};

use flate2::{bufread::DeflateDecoder, write::DeflateEncoder, Compression, Crc};

use super::limits::{self, at_most};
use super::FileError;

/// Maximum expansion of a byte by deflate (258 bytes for two bits, without the block's header).
const DEFLATE_RATIO: usize = 1032;

/// The type of a section: four ASCII letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(pub(super) [u8; 4]);

impl Tag {
    pub(super) const DEVICE: Tag = Tag(*b"DEVC");
    pub(super) const STRINGS: Tag = Tag(*b"TEXT");
    pub(super) const BUFFERS: Tag = Tag(*b"BUFS");
    pub(super) const OPS: Tag = Tag(*b"OPER");
    /// The buffers that are workspaces of a library; absent if there are none.
    pub(super) const WORKSPACES: Tag = Tag(*b"work");
    /// The buffers that are tensors of a step's state; absent if there are none. Mandatory, since the trace would be
    /// wrong without it.
    pub(super) const STATE: Tag = Tag(*b"STAT");
    /// Peak memory of the pass; absent if it is not known.
    pub(super) const PEAK: Tag = Tag(*b"peak");
    /// Nanoseconds of each op; absent if none was measured.
    pub(super) const NANOS: Tag = Tag(*b"nano");
    /// Meanings of ops; absent if none is known.
    pub(super) const MEANINGS: Tag = Tag(*b"mean");
    /// Measured schedules; absent if there are none.
    pub(super) const MEASURED: Tag = Tag(*b"runs");
    /// Ends the file; empty.
    pub(super) const END: Tag = Tag(*b"DONE");

    pub(super) fn is_optional(self) -> bool {
        self.0[0].is_ascii_lowercase()
    }
}

impl Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

/// A section as stored in the file, with a correct checksum.
pub(super) struct Section {
    pub(super) tag: Tag,
    /// Its first byte in the file.
    pub(super) offset: u64,
    length: usize,
    stored: Vec<u8>,
}

/// Appends one section to a file.
pub(super) fn write(file: &mut Vec<u8>, tag: Tag, content: &[u8]) -> Result<(), FileError> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    let stored = encoder.write_all(content).and_then(|()| encoder.finish()).map_err(FileError::Write)?;
    write_stored(file, tag, content.len(), &stored)
}

/// Appends one section whose content is compressed already.
pub(super) fn write_stored(file: &mut Vec<u8>, tag: Tag, length: usize, stored: &[u8]) -> Result<(), FileError> {
    let start = file.len();
    file.extend_from_slice(&tag.0);
    for length in [length, stored.len()] {
        at_most(format_args!("bytes of section `{tag}`"), length as u128, limits::SECTION)?;
        // The limit is far below 2^32.
        file.extend_from_slice(&(length as u32).to_le_bytes());
    }
    file.extend_from_slice(stored);
    let sum = checksum([&file[start..]]);
    file.extend_from_slice(&sum.to_le_bytes());
    Ok(())
}

fn checksum<const N: usize>(parts: [&[u8]; N]) -> u32 {
    let mut crc = Crc::new();
    parts.into_iter().for_each(|part| crc.update(part));
    crc.sum()
}

/// A reader that counts its bytes.
pub(super) struct Source<R> {
    reader: R,
    offset: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, offset: 0 }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Up to `length` bytes; fewer only at the end. Memory grows with the bytes read, not with the declared length.
    pub(super) fn up_to(&mut self, length: usize) -> Result<Vec<u8>, FileError> {
        let mut bytes = Vec::new();
        let result = self.reader.by_ref().take(length as u64).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        match result {
            Ok(_) => Ok(bytes),
            Err(source) => Err(FileError::Read { offset: self.offset, source }),
        }
    }

    /// Exactly `length` bytes.
    pub(super) fn exactly(&mut self, length: usize) -> Result<Vec<u8>, FileError> {
        let bytes = self.up_to(length)?;
        if bytes.len() < length {
            return Err(FileError::Truncated { offset: self.offset });
        }
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let bytes = self.exactly(N)?;
        bytes.try_into().map_err(|_| FileError::Truncated { offset: self.offset })
    }

    /// The next section. Its checksum is checked first.
    pub(super) fn section(&mut self) -> Result<Section, FileError> {
        let offset = self.offset;
        let damaged = |reason: String| FileError::Damaged { offset, reason };
        let tag: [u8; 4] = self.array()?;
        if !tag.iter().all(u8::is_ascii_alphabetic) {
            return Err(damaged(format!("`{}` is no section", tag.escape_ascii())));
        }
        let [length, stored_length]: [[u8; 4]; 2] = [self.array()?, self.array()?];
        for length in [length, stored_length] {
            let what = format_args!("bytes of section `{}` at byte {offset}", Tag(tag));
            at_most(what, u32::from_le_bytes(length) as u128, limits::SECTION)?;
        }
        let stored = self.exactly(u32::from_le_bytes(stored_length) as usize)?;
        let sum = u32::from_le_bytes(self.array()?);
        if checksum([&tag, &length, &stored_length, &stored]) != sum {
            return Err(damaged(format!("the checksum of section `{}` is wrong", Tag(tag))));
        }
        Ok(Section { tag: Tag(tag), offset, length: u32::from_le_bytes(length) as usize, stored })
    }
}

impl Section {
    /// The decompressed content: at most one byte more than the declared length, which is limited.
    pub(super) fn content(&self) -> Result<Vec<u8>, FileError> {
        let damaged = |reason: String| FileError::Damaged { offset: self.offset, reason };
        // At most as much as deflate can expand the stored bytes to, if the declared length is wrong.
        let mut content = Vec::with_capacity(self.length.min(self.stored.len() * DEFLATE_RATIO) + 1);
        let mut decoder = DeflateDecoder::new(&self.stored[..]);
        decoder
            .by_ref()
            .take(self.length as u64 + 1)
            .read_to_end(&mut content)
            .map_err(|error| damaged(format!("section `{}` cannot be decompressed: {error}", self.tag)))?;
        if content.len() != self.length || decoder.total_in() != self.stored.len() as u64 {
            return Err(damaged(format!("section `{}` is not as long as it says", self.tag)));
        }
        Ok(content)
    }
}
