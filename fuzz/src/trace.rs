//! A trace: the first byte says whether the rest is the file, or its sections, whose frames are made right. A section is its number in
//! [`TAGS`], the two bytes of its length, and its content. What is read can be written, planned and simulated.

use std::io::Write;

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use opara_plan::prepared::{Prepared, Settings};
use opara_plan::simulate::{simulate, DeviceModel};
use opara_plan::trace::Trace;
use opara_plan::{BuiltIn, Scheduler};

/// The sections of a file, in the order in which they are written.
pub const TAGS: [&[u8; 4]; 10] =
    [b"DEVC", b"TEXT", b"BUFS", b"OPER", b"nano", b"mean", b"work", b"STAT", b"peak", b"runs"];

const HEAD: &[u8] = b"\x89OPARA\r\n\x01\x00";

/// Reads an input, and says whether it could be read.
pub fn run(bytes: &[u8]) -> bool {
    let Some((first, rest)) = bytes.split_first() else { return false };
    let file = if first % 2 == 0 { rest.to_vec() } else { framed(rest) };
    let Ok(trace) = Trace::read_from(file.as_slice()) else { return false };
    let mut written = Vec::new();
    trace.write_to(&mut written).expect("a trace that was read can be written");
    let again = Trace::read_from(written.as_slice()).expect("a trace that was written can be read");
    assert_eq!(trace, again);
    let _ = trace.fingerprint();
    let prepared = Prepared::new(&trace, Settings::default());
    let problem = prepared.problem();
    for scheduler in BuiltIn::FIXED {
        let Ok(schedule) = scheduler.schedule(&problem) else { continue };
        prepared.check(&schedule).expect("a schedule of a valid trace is valid");
        simulate(&problem, &schedule, &DeviceModel::of(&trace.device));
    }
    true
}

fn framed(mut rest: &[u8]) -> Vec<u8> {
    let mut file = HEAD.to_vec();
    while let [tag, low, high, tail @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        section(&mut file, TAGS[usize::from(*tag) % TAGS.len()], &tail[..length]);
        rest = &tail[length..];
    }
    section(&mut file, b"DONE", &[]);
    file
}

fn section(file: &mut Vec<u8>, tag: &[u8; 4], content: &[u8]) {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("memory");
    let stored = encoder.finish().expect("memory");
    let start = file.len();
    file.extend_from_slice(tag);
    for length in [content.len(), stored.len()] {
        file.extend_from_slice(&(length as u32).to_le_bytes());
    }
    file.extend_from_slice(&stored);
    let mut sum = Crc::new();
    sum.update(&file[start..]);
    file.extend_from_slice(&sum.sum().to_le_bytes());
}

/// The sections of a file, as an input.
pub fn sections(file: &[u8]) -> Vec<u8> {
    let mut input = vec![1];
    let mut rest = file.strip_prefix(HEAD).unwrap_or_default();
    while let Some((head, tail)) = rest.split_at_checked(12) {
        let stored = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let tag = TAGS.iter().position(|tag| **tag == head[..4]);
        if let (Some(tag), Some(stored)) = (tag, tail.get(..stored)) {
            let mut content = Vec::new();
            let mut decoder = flate2::read::DeflateDecoder::new(stored);
            std::io::Read::read_to_end(&mut decoder, &mut content).expect("a sound file");
            input.push(tag as u8);
            input.extend_from_slice(&(content.len() as u16).to_le_bytes());
            input.extend(content);
        }
        rest = tail.get(stored + 4..).unwrap_or_default();
    }
    input
}
