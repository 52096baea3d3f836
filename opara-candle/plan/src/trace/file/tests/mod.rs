//! Tests of valid files; tests of broken and hostile ones are in [`hostile`].

mod hostile;
mod samples;

use proptest::prelude::*;

use super::head::{MAGIC, VERSION};
use super::section::{self, Tag};
use super::*;
use crate::trace::{
    Attending, Bilinear, BlockType, Dim, Element, Experts, Function, Indexed, Meaning, Named, Order, Pages, Region,
    Role, Rotary, View, Window,
};
use samples::{golden, nasnet_like, traces};

/// Written by the first release of version 1: every later one must read it. Never overwrite it.
pub(super) const GOLDEN: &[u8] = include_bytes!("../../../../tests/data/version-1.trace");

pub(super) fn bytes(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.write_to(&mut bytes).unwrap();
    bytes
}

pub(super) fn read(bytes: &[u8]) -> Result<Trace, FileError> {
    Trace::read_from(bytes)
}

/// A file of these sections, with right lengths and checksums.
pub(super) fn file(sections: &[(Tag, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::from(MAGIC);
    file.extend(VERSION.to_le_bytes());
    for (tag, content) in sections {
        section::write(&mut file, *tag, content).unwrap();
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_trace_comes_back_as_it_was(trace in traces()) {
        prop_assert_eq!(read(&bytes(&trace)).unwrap(), trace);
    }
}

#[test]
fn version_1_stays_readable() {
    assert_eq!(read(GOLDEN).unwrap(), golden());
}

/// Compares decompressed content: the compressed bytes depend on the version of the compressor.
#[test]
fn version_1_is_still_written() {
    let mut source = section::Source::new(GOLDEN);
    assert_eq!(source.exactly(10).unwrap(), [&MAGIC[..], &[1, 0]].concat());
    for (tag, content) in encode::contents(&golden()).unwrap() {
        let section = source.section().unwrap();
        assert_eq!((section.tag, section.content().unwrap()), (tag, content));
    }
    assert!(source.up_to(1).unwrap().is_empty());
    assert_eq!(bytes(&golden()), bytes(&golden()));
}

/// The numbers of variants are their first bytes in files.
#[test]
fn functions_and_elements_keep_their_numbers() {
    let number = |function: &Function| match function {
        Function::Zeros => 0,
        Function::Upload => 1,
        Function::Copy => 2,
        Function::Unary(_) => 3,
        Function::Binary(_) => 4,
        Function::Affine(..) => 5,
        Function::RowSum(_) => 6,
        Function::RowMax(_) => 7,
        Function::RowMin(_) => 8,
        Function::Softmax(_) => 9,
        Function::LayerNorm(..) => 10,
        Function::RmsNorm(..) => 11,
        Function::Matmul => 12,
        Function::Convolution(_) => 13,
        Function::MaxPool(_) => 14,
        Function::MeanPool(_) => 15,
        Function::Part => 16,
        Function::IndexSelect { .. } => 17,
        Function::Where => 18,
        Function::Rotary(_) => 19,
        Function::TransposedConvolution { .. } => 20,
        Function::UpsampleNearest(_) => 21,
        Function::Fill(_) => 22,
        Function::MaskedFill(_) => 23,
        Function::QuantizedProduct(_) => 24,
        Function::Gather(_) => 25,
        Function::IndexAdd(_) => 26,
        Function::ScatterAdd(_) => 27,
        Function::Scatter(_) => 28,
        Function::ArgSort(..) => 29,
        Function::ArgMax(_) => 30,
        Function::ArgMin(_) => 31,
        Function::AffineWide(..) => 32,
        Function::Power(_) => 33,
        Function::Elu(_) => 34,
        Function::Unfold(_) => 35,
        Function::Fold(_) => 36,
        Function::UpsampleBilinear(_) => 37,
        Function::Dequantized(_) => 38,
        Function::QuantizedRows(_) => 39,
        Function::ExpertProduct(_) => 40,
        Function::Count => 41,
        Function::Bounds => 42,
        Function::Attention(_) => 43,
        Function::PagedAttention(..) => 44,
    };
    let window = Window { kernel: [1, 2], padding: [3, 4], stride: [5, 6], dilation: [7, 8], groups: 9 };
    let rotary = Rotary { outer: 1, tokens: 2, heads: 3, size: 4, is_of_neighbours: true, angles: 5 };
    let indexed = Indexed { left: 1, from: 2, to: 3, right: 4 };
    let (one, zero) = ([0, 0, 0, 0, 0, 0, 0xf0, 0x3f], [0; 8]);
    let bilinear = Bilinear { size: [1, 2], step: [1., 0.], is_aligned: true };
    let (blocks, named) = (Some(BlockType::Q8K), Named::InOrder);
    let experts = Experts { experts: 1, rows: 2, shared: 3, inner: 4, columns: 5, blocks, named, has_factors: true };
    let attending = Attending {
        texts: 1,
        heads: 2,
        kv_heads: 3,
        size: 4,
        scale: 1.,
        cap: 0.,
        before: Some(5),
        behind: None,
        has_slopes: true,
        is_packed: false,
    };
    let of_attending = [&[1, 2, 3, 4][..], &[0, 0, 0x80, 0x3f], &[0; 4], &[1, 5, 0, 1, 0]].concat();
    let all = [
        (Function::Zeros, vec![]),
        (Function::Upload, vec![]),
        (Function::Copy, vec![]),
        (Function::Unary("ab".into()), vec![2, b'a', b'b']),
        (Function::Binary("c".into()), vec![1, b'c']),
        (Function::Affine(1., 0.), vec![0, 0, 0x80, 0x3f, 0, 0, 0, 0]),
        (Function::RowSum(300), vec![0xac, 2]),
        (Function::RowMax(1), vec![1]),
        (Function::RowMin(2), vec![2]),
        (Function::Softmax(3), vec![3]),
        (Function::LayerNorm(4, 1.), vec![4, 0, 0, 0x80, 0x3f]),
        (Function::RmsNorm(5, 1.), vec![5, 0, 0, 0x80, 0x3f]),
        (Function::Matmul, vec![]),
        (Function::Convolution(window), (1..=9).collect()),
        (Function::MaxPool(window), (1..=9).collect()),
        (Function::MeanPool(window), (1..=9).collect()),
        (Function::Part, vec![]),
        (Function::IndexSelect { left: 1, from: 2, right: 3 }, vec![1, 2, 3]),
        (Function::Where, vec![]),
        (Function::Rotary(rotary), vec![1, 2, 3, 4, 1, 5]),
        (Function::TransposedConvolution { window, output_padding: [10, 11] }, (1..=11).collect()),
        (Function::UpsampleNearest([1, 2]), vec![1, 2]),
        (Function::Fill(0xfbff), vec![0xff, 0xf7, 3]),
        (Function::MaskedFill(0xfc00), vec![0x80, 0xf8, 3]),
        (Function::QuantizedProduct(BlockType::Q5K), vec![8]),
        (Function::Gather(indexed), vec![1, 2, 3, 4]),
        (Function::IndexAdd(indexed), vec![1, 2, 3, 4]),
        (Function::ScatterAdd(indexed), vec![1, 2, 3, 4]),
        (Function::Scatter(indexed), vec![1, 2, 3, 4]),
        (Function::ArgSort(7, Order::Descending), vec![7, 1]),
        (Function::ArgMax(8), vec![8]),
        (Function::ArgMin(9), vec![9]),
        (Function::AffineWide(1., 0.), [one, zero].concat()),
        (Function::Power(1.), one.to_vec()),
        (Function::Elu(0.), zero.to_vec()),
        (Function::Unfold(window), (1..=9).collect()),
        (Function::Fold(window), (1..=9).collect()),
        (Function::UpsampleBilinear(bilinear), [&[1, 2], &one[..], &zero, &[1]].concat()),
        (Function::Dequantized(BlockType::Q4_0), vec![0]),
        (Function::QuantizedRows(BlockType::Q8_0), vec![4]),
        (Function::ExpertProduct(experts), vec![1, 2, 3, 4, 5, 1, 10, 1, 1]),
        (Function::Count, vec![]),
        (Function::Bounds, vec![]),
        (Function::Attention(attending), of_attending.clone()),
        (Function::PagedAttention(attending, Pages { keys: 6, of_text: 7 }), [&of_attending[..], &[6, 7]].concat()),
    ];
    for (function, fields) in all {
        let bytes = postcard::to_stdvec(&function).unwrap();
        assert_eq!((bytes[0], &bytes[1..]), (number(&function), &fields[..]), "{function:?}");
    }
    let number = |element: Element| match element {
        Element::Byte => 0,
        Element::F16 => 1,
        Element::Bf16 => 2,
        Element::F32 => 3,
        Element::U8 => 4,
        Element::U32 => 5,
        Element::I64 => 6,
        Element::F64 => 7,
        Element::F8 => 8,
        Element::I16 => 9,
        Element::I32 => 10,
    };
    let names = ["f16", "bf16", "f32", "f64", "f8_e4m3", "u8", "u32", "i16", "i32", "i64"];
    let elements = names.into_iter().filter_map(Element::of_name).chain([Element::Byte]);
    for element in elements {
        assert_eq!(postcard::to_stdvec(&element).unwrap(), [number(element)]);
    }
    let view = View { buffer: 7, element: Element::F32, first: 1, dims: vec![Dim { len: 2, stride: 3 }] };
    let meaning = Meaning { function: Function::Copy, reads: vec![view], writes: None };
    assert_eq!(postcard::to_stdvec(&meaning).unwrap(), [2, 1, 7, 3, 1, 1, 2, 3, 0]);
}

#[test]
fn files_are_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.opara");
    golden().save(&path).unwrap();
    assert_eq!(Trace::load(&path).unwrap(), golden());

    let missing = folder.path().join("none").join("b.opara");
    for error in [golden().save(&missing).unwrap_err(), Trace::load(&missing).unwrap_err()] {
        assert!(matches!(&error, TraceFileError { path, .. } if *path == missing), "{error}");
    }
}

#[test]
fn a_trace_that_could_not_be_loaded_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.opara");
    golden().save(&path).unwrap();

    let mut trace = golden();
    trace.ops[2].accesses[2].region = Region::contiguous(0, 1025);
    assert!(matches!(trace.save(&path), Err(TraceFileError { source: FileError::Invalid(_), .. })));
    trace = golden();
    trace.buffers[0].role = Role::Input(usize::MAX);
    assert!(matches!(trace.save(&path), Err(TraceFileError { source: FileError::Limit { .. }, .. })));
    assert_eq!(Trace::load(&path).unwrap(), golden(), "the old file is left");
}

#[test]
fn a_large_trace_is_small() {
    let trace = nasnet_like(5_000, 6_000);
    let bytes = bytes(&trace);
    assert!(bytes.len() < 200_000, "{} bytes", bytes.len());
    assert_eq!(read(&bytes).unwrap(), trace);
}

#[test]
fn optional_sections_are_skipped_and_others_refused() {
    let mut sections = encode::contents(&golden()).unwrap().to_vec();
    // As later builds may write it; anywhere, and more than once.
    sections.insert(2, (Tag(*b"note"), vec![200, 1, 30]));
    sections.insert(0, (Tag(*b"note"), vec![]));
    assert_eq!(read(&file(&sections)).unwrap(), golden());

    sections[3].0 = Tag(*b"Nano");
    sections.swap(0, 3);
    let error = read(&file(&sections)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "section `Nano` at byte 10 is needed to understand the trace and this build does not know it: update opara-candle"
    );
}

#[test]
fn state_is_a_section_that_readers_need() {
    let mut trace = golden();
    (trace.buffers[0].role, trace.buffers[2].role) = (Role::State(1), Role::State(0));
    let mut sections = encode::contents(&trace).unwrap().to_vec();
    let state = sections.iter().position(|(tag, _)| *tag == Tag::STATE).unwrap();
    assert!(!sections[state].0.is_optional());
    assert_eq!(read(&file(&sections)).unwrap(), trace);
    // Two entries: a distance and a number each.
    assert_eq!(sections[state].1, [2, 0, 1, 2, 0]);
    for named in [3, 99] {
        sections[state].1 = vec![1, named, 0];
        let error = read(&file(&sections)).unwrap_err().to_string();
        assert!(error.contains("`STAT`") && error.ends_with("it names no buffer from before the pass"), "{error}");
    }
}

#[test]
fn sections_may_come_in_any_order_once() {
    let mut sections = encode::contents(&golden()).unwrap().to_vec();
    sections[..4].reverse();
    assert_eq!(read(&file(&sections)).unwrap(), golden());

    let mut twice = sections.clone();
    twice.insert(1, sections[0].clone());
    let error = read(&file(&twice)).unwrap_err();
    assert!(error.to_string().contains("there is a second section `OPER`"), "{error}");

    sections.remove(0);
    let error = read(&file(&sections)).unwrap_err();
    assert_eq!(error.to_string(), "it has no section `OPER`");
}
