//! Files that are cut, broken, foreign or made to do harm: an error with a place, or a valid trace.

use std::io::Write;

use proptest::prelude::*;

use super::super::section::write_stored;
use super::samples::{golden, traces};
use super::*;
use crate::trace::{DeviceSpec, Work};

/// Later stages must be able to work with whatever is read.
fn check(result: Result<Trace, FileError>) {
    let Ok(trace) = result else { return };
    trace.validate().unwrap();
    crate::profile::profile(&trace);
    assert_eq!(trace.users().len(), trace.buffers.len());
    let regions: Vec<_> = trace.ops.iter().flat_map(|op| &op.accesses).map(|access| access.region).collect();
    for a in &regions {
        assert!(regions.iter().all(|b| a.overlaps(b) == b.overlaps(a)));
    }
    assert_eq!(read(&bytes(&trace)).unwrap(), trace, "what was read can be written");
}

#[test]
fn every_prefix_is_an_error() {
    for length in 0..GOLDEN.len() {
        let error = read(&GOLDEN[..length]).unwrap_err();
        assert!(matches!(error, FileError::Truncated { offset } if offset == length as u64), "{length}: {error}");
    }
}

#[test]
fn every_changed_byte_is_an_error() {
    let mut bytes = GOLDEN.to_vec();
    for at in 0..bytes.len() {
        for change in 1..=255 {
            bytes[at] ^= change;
            read(&bytes).unwrap_err();
            bytes[at] ^= change;
        }
    }
}

/// The same one level deeper, where no checksum helps.
#[test]
fn every_changed_byte_of_a_section_is_an_error_or_a_valid_trace() {
    let mut sections = encode::contents(&golden()).unwrap().to_vec();
    for section in 0..sections.len() {
        for at in 0..sections[section].1.len() {
            let kept = sections[section].1[at];
            for new in [0, 1, 2, 3, 0x7f, 0x80, 0xff, kept ^ 1, kept.wrapping_add(1), kept ^ 0x80] {
                sections[section].1[at] = new;
                check(read(&file(&sections)));
            }
            sections[section].1[at] = kept;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(read(&bytes));
        check(read(&[&GOLDEN[..10], &bytes].concat()));
    }

    #[test]
    fn random_sections_never_panic(
        contents in prop::array::uniform4(prop::collection::vec(prop_oneof![0u8..6, any::<u8>()], 0..40)),
        kept in 0usize..16,
    ) {
        let mut sections = encode::contents(&golden()).unwrap().to_vec();
        for (i, content) in contents.into_iter().enumerate().filter(|(i, _)| kept >> i & 1 == 0) {
            sections[i].1 = content;
        }
        check(read(&file(&sections)));
    }

    #[test]
    fn changed_sections_never_panic(
        trace in traces(),
        edits in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..5),
    ) {
        let mut sections = encode::contents(&trace).unwrap().to_vec();
        for (section, at, byte, kind) in edits {
            let content = &mut sections[section].1;
            let at = at.index(content.len() + 1);
            match kind {
                0 => content.insert(at, byte),
                _ if at == content.len() => {}
                1 => content[at] = byte,
                _ => drop(content.remove(at)),
            }
        }
        check(read(&file(&sections)));
    }
}

fn message(bytes: &[u8]) -> String {
    read(bytes).unwrap_err().to_string()
}

#[test]
fn other_files_and_newer_versions_are_told_apart() {
    assert_eq!(message(b"\x7fELF rest of a program"), "its first bytes are not those of a trace file");
    assert_eq!(message(b"{}"), "its first bytes are not those of a trace file");
    // A transfer as text.
    assert!(matches!(read(b"\x89OPARA\n\x01\x00"), Err(FileError::Foreign)));
    let version = |version: u16| [&MAGIC[..], &version.to_le_bytes()].concat();
    assert_eq!(
        message(&version(7)),
        "its format version is 7 and this build reads versions up to 1: update opara-candle"
    );
    assert_eq!(message(&version(0)), "damaged at byte 8: there is no version 0");
    assert_eq!(
        message(&[GOLDEN, b"!"].concat()),
        format!("damaged at byte {}: something follows the end of the trace", GOLDEN.len())
    );
}

/// Content that expands without end is left where it passes the length that it declared, and no length may pass the
/// limit.
#[test]
fn a_decompression_bomb_is_left_early() {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..64 {
        encoder.write_all(&[0; 1 << 16]).unwrap();
    }
    let stored = encoder.finish().unwrap();
    let mut bytes = file(&[]);
    write_stored(&mut bytes, Tag::DEVICE, 100, &stored).unwrap();
    assert_eq!(message(&bytes), "damaged at byte 10: section `DEVC` is not as long as it says");

    let mut bytes = file(&[]);
    assert!(write_stored(&mut bytes, Tag::DEVICE, 1 << 26, &stored).is_err());
    bytes.truncate(10);
    bytes.extend(*b"DEVC\xff\xff\xff\xff\x00\x00\x00\x00");
    assert_eq!(message(&bytes), "bytes of section `DEVC` at byte 10: 4294967295 is above the limit of 33554432");
}

/// Sections of the golden trace, with one replaced by these records.
fn with(tag: Tag, content: impl AsRef<[u8]>) -> String {
    let mut sections = encode::contents(&golden()).unwrap().to_vec();
    sections.iter_mut().find(|(t, _)| *t == tag).unwrap().1 = content.as_ref().to_vec();
    message(&file(&sections))
}

fn varint(value: u64) -> Vec<u8> {
    postcard::to_allocvec(&value).unwrap()
}

#[test]
fn counts_are_limited_by_the_remaining_bytes() {
    assert_eq!(
        with(Tag::BUFFERS, varint(1 << 20)),
        "section `BUFS`, entry 0 (before byte 3 of its content): 1048576 entries cannot fit in 0 bytes"
    );
    assert_eq!(
        with(Tag::BUFFERS, varint(u64::MAX)),
        "buffers of section `BUFS`: 18446744073709551615 is above the limit of 1048576"
    );
    // One memset with two million accesses that are not there.
    let ops = [vec![1, 0, 0, 1, 0], varint(2_000_000)].concat();
    assert_eq!(
        with(Tag::OPS, ops),
        "section `OPER`, entry 0 (before byte 8 of its content): 2000000 entries cannot fit in 0 bytes"
    );
    assert!(with(Tag::STRINGS, [1, 200]).starts_with("section `TEXT`, entry 0 (before byte 1 of its content)"));
    assert!(with(Tag::DEVICE, [0, 1, 1, 1, 1, 9]).ends_with("1 bytes are left"));
    assert!(with(Tag::END, [0]).ends_with("1 bytes are left"));
}

#[test]
fn a_string_that_is_named_often_does_not_fill_the_memory() {
    let long = "x".repeat(1 << 20);
    let strings = [vec![1], postcard::to_allocvec(&long).unwrap()].concat();
    let ops = [varint(1000), [0, 0, 1, 0, 0].repeat(1000)].concat();
    let mut sections = encode::contents(&golden()).unwrap().to_vec();
    sections[1].1 = strings;
    sections[3].1 = ops;
    let error = message(&file(&sections));
    assert_eq!(error, "bytes of the names and labels up to op 64: 136314880 is above the limit of 134217728");
}

#[test]
fn impossible_accesses_are_named() {
    // One host operator `add`, then one access: step, mode, part.
    let op = |access: &[u8]| with(Tag::OPS, [&[1, 0, 0, 3, 0, 0, 1], access].concat());
    let place = "section `OPER`, entry 0 (before byte";
    for (access, reason) in [
        (&[20, 0, 0][..], "an access names a buffer that does not exist"),
        (&[1, 0, 0], "an access names a buffer that does not exist"),
        (&[0, 0, 1, 0x81, 0x20, 0], "an access is no part of buffer 0 of 4096 bytes"),
        (&[0, 0, 2, 0, 8, 0, 2], "an access is no part of buffer 0 of 4096 bytes"),
        (&[0, 0, 2, 0, 8, 9, 1], "an access is no part of buffer 0 of 4096 bytes"),
        (&[0, 0, 2, 0, 8, 0x80, 0x20, 2], "an access is no part of buffer 0 of 4096 bytes"),
    ] {
        let error = op(access);
        assert!(error.starts_with(place) && error.ends_with(reason), "{access:?}: {error}");
    }
    assert!(with(Tag::OPS, [1, 0, 99, 3, 0, 0, 0]).ends_with("there are only 7 strings"));
}

#[test]
fn numbers_that_later_stages_could_not_add_are_refused() {
    let mut sections = encode::contents(&Trace::default()).unwrap();
    sections[2].1 = [varint(2), varint(1 << 60), vec![3], varint(1), vec![3]].concat();
    let error = message(&file(&sections));
    assert_eq!(error, "bytes of all buffers: 1152921504606846977 is above the limit of 1152921504606846976");
    let device = record::Device(DeviceSpec { processors: 1 << 20, ..golden().device });
    let device = postcard::to_allocvec(&device).unwrap();
    assert_eq!(with(Tag::DEVICE, device), "multiprocessors of the device: 1048576 is above the limit of 65535");

    let mut trace = golden();
    let Work::Kernel(launch) = &mut trace.ops[2].work else { panic!() };
    launch.grid = [u32::MAX; 3];
    let error = trace.write_to(Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("thread blocks of op 2: 79228162458924105385300197375 is above"), "{error}");
    let mut trace = golden();
    trace.buffers[2].bytes = u64::MAX;
    assert!(matches!(trace.write_to(Vec::new()), Err(FileError::Limit { .. })));
}

#[test]
fn endless_sections_are_left() {
    let mut bytes = file(&[]);
    for _ in 0..300 {
        section::write(&mut bytes, Tag(*b"junk"), &[]).unwrap();
    }
    assert_eq!(message(&bytes), "sections of the file: 257 is above the limit of 256");
}

/// A reader that fails is not a file that is cut.
#[test]
fn failures_of_the_reader_and_the_writer_are_kept() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let reader = GOLDEN[..20].chain(Broken);
    assert!(matches!(Trace::read_from(reader), Err(FileError::Read { offset: 20, .. })));
    assert!(matches!(golden().write_to(Broken), Err(FileError::Write(_))));
}
