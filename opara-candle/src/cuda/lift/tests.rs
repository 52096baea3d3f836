//! Every kernel of candle's has a meaning: a launch of each is made up, and read.

use hashbrown::HashMap;

use super::arguments::{Arguments, Pointed};
use crate::cuda::driver;
use crate::cuda::kernels::kernels_in_ptx;
use crate::trace::{BlockType, Element, Function, Launch, Meaning, Named, Pages};
use opara_plan::kernel_catalog::{KernelEntry, Meaningless, Means, LINKED};

/// An argument.
#[derive(Clone, Copy)]
enum Word {
    /// A number of eight bytes.
    Number(u64),
    /// A number of this many bytes.
    Small(u64, usize),
    /// A pointer to a buffer.
    Pointer,
    /// A pointer to dimensions and strides.
    Table(&'static [u64]),
}

use Word::{Number, Pointer, Small, Table};

/// A launch that was made up.
struct Made {
    arguments: driver::Arguments,
    launch: Launch,
    pointers: HashMap<usize, Pointed>,
    tables: HashMap<usize, Vec<u8>>,
}

impl Made {
    fn new(words: &[Word], grid: [u32; 3], block: [u32; 3]) -> Self {
        let value = |(at, word): (usize, &Word)| match word {
            Number(value) | Small(value, _) => *value,
            Pointer | Table(_) => address(at),
        };
        let mut arguments = driver::Arguments::from_words(&words.iter().enumerate().map(value).collect::<Vec<_>>());
        let (mut pointers, mut tables) = (HashMap::new(), HashMap::new());
        for (at, word) in words.iter().enumerate() {
            match word {
                Number(_) => {}
                Small(_, bytes) => arguments.cut(at, *bytes),
                Pointer => drop(pointers.insert(at * 8, Pointed { buffer: at, delta: 0, bytes: 1 << 20 })),
                Table(numbers) => {
                    pointers.insert(at * 8, Pointed { buffer: at, delta: 0, bytes: 1 << 20 });
                    tables.insert(at, numbers.iter().flat_map(|number| number.to_ne_bytes()).collect());
                }
            }
        }
        Self { arguments, launch: Launch { grid, block, ..Default::default() }, pointers, tables }
    }

    /// The same structure with other words.
    fn with(mut self, others: &[(usize, u64)]) -> Self {
        let mut words: Vec<u64> = self.arguments.words().map(|(_, word)| word).collect();
        for &(at, word) in others {
            words[at] = word;
            if word == address(at) {
                self.pointers.insert(at * 8, Pointed { buffer: at, delta: 0, bytes: 384 });
            }
        }
        Self { arguments: driver::Arguments::of_structure(&words), ..self }
    }

    fn read<T>(&self, read: impl FnOnce(&Arguments) -> T) -> T {
        let uploads = self.tables.iter().map(|(buffer, bytes)| (*buffer, &bytes[..])).collect();
        let Self { arguments, launch, pointers, .. } = self;
        read(&Arguments { arguments, launch, pointers: pointers.clone(), uploads: &uploads })
    }
}

/// The address that the argument of this index points to.
fn address(at: usize) -> u64 {
    0x1000 + at as u64
}

const LINE: &[u64] = &[2, 3, 8, 24, 8, 1];
const IMAGE: &[u64] = &[2, 3, 8, 8, 192, 64, 8, 1];
const LINE_AND_WEIGHT: &[u64] = &[2, 3, 8, 24, 8, 1, 4, 3, 3, 9, 3, 1];
const IMAGE_AND_WEIGHT: &[u64] = &[2, 3, 8, 8, 192, 64, 8, 1, 4, 3, 3, 3, 27, 9, 3, 1];
const LINE_AND_TRANSPOSED: &[u64] = &[2, 3, 8, 24, 8, 1, 3, 4, 3, 12, 3, 1];
const IMAGE_AND_TRANSPOSED: &[u64] = &[2, 3, 8, 8, 192, 64, 8, 1, 3, 4, 3, 3, 36, 9, 3, 1];

/// A launch of the kernel of this name that is compiled to PTX.
fn launch(entry: &KernelEntry, name: &str) -> Made {
    let types = name.strip_prefix(entry.prefix).unwrap();
    let last = Element::of_name(types).or_else(|| Some(Element::two_of_names(types)?.1));
    let number = |bits| Small(bits, last.map_or(8, |element| element.bytes() as usize));
    let [n, p, null] = [Number(24), Pointer, Number(0)];
    let numbers = |numbers: &[u64]| numbers.iter().copied().map(Number).collect::<Vec<_>>();
    let blocks = BlockType::of_name(types);
    let of_row = blocks.map_or(256 * last.map_or(1, Element::bytes), |blocks| blocks.bytes_of_row(256).unwrap());
    let (words, grid): (Vec<Word>, u32) = match entry.means {
        Means::Cast | Means::Copy | Means::Unary(_) => (vec![n, Number(1), null, p, p], 1),
        Means::Affine => (vec![n, Number(1), null, p, p, number(1), number(2)], 1),
        Means::Power | Means::Elu => (vec![n, Number(1), null, number(1), p, p], 1),
        Means::Binary(_) | Means::Comparison(_) => (vec![n, Number(1), null, p, p, p], 1),
        Means::CopyRows => ([vec![p, p], numbers(&[2, 3, 3, 8])].concat(), 1),
        Means::Fill => (vec![p, number(1), n], 1),
        Means::FillView => (vec![Number(6), Number(2), Table(&[2, 3, 4, 1]), number(1), p], 1),
        Means::Where => (vec![n, Number(1), null, p, p, p, p], 1),
        Means::RowSum | Means::RowMax | Means::RowMin | Means::ArgMax | Means::ArgMin | Means::FewSum => {
            let sums = if entry.means == Means::FewSum { Number(6) } else { n };
            (vec![sums, Number(4), Number(1), null, p, p], 6)
        }
        Means::SortUp | Means::SortDown => (vec![p, p, Number(4), Number(4)], 6),
        Means::Softmax => (vec![p, p, Number(4)], 6),
        Means::LayerNorm => (vec![p, p, p, p, Number(4), Number(32), Small(0, 4)], 6),
        Means::RmsNorm => (vec![p, p, p, Number(4), Number(32), Small(0, 4)], 6),
        Means::Rotary => ([vec![p; 4], numbers(&[2, 12, 4, 0])].concat(), 1),
        Means::RotaryOfNeighbours => ([vec![p; 4], numbers(&[2, 12, 0])].concat(), 1),
        Means::RotaryByTokens => ([vec![p; 4], numbers(&[2, 3, 1, 4, 0])].concat(), 1),
        Means::IndexSelect => ([vec![n, Number(1), null, p, p, p], numbers(&[2, 5, 3, 4])].concat(), 1),
        Means::Gather => ([vec![n, p, p, p], numbers(&[2, 5, 3, 4])].concat(), 1),
        Means::IndexAdd => ([vec![p, Number(3), p, p], numbers(&[2, 3, 5, 4])].concat(), 1),
        Means::ScatterAdd | Means::Scatter => ([vec![p, p, p], numbers(&[2, 3, 5, 4])].concat(), 1),
        Means::Convolution(1) => ([numbers(&[48, 6, 1, 0, 1]), vec![Table(LINE_AND_WEIGHT), p, p, p]].concat(), 1),
        Means::Convolution(_) => ([numbers(&[48, 6, 6, 1, 0, 1]), vec![Table(IMAGE_AND_WEIGHT), p, p, p]].concat(), 1),
        Means::TransposedConvolution(1) => {
            ([numbers(&[48, 10, 1, 0, 0, 1]), vec![Table(LINE_AND_TRANSPOSED), p, p, p]].concat(), 1)
        }
        Means::TransposedConvolution(_) => {
            ([numbers(&[48, 10, 10, 1, 0, 0, 1]), vec![Table(IMAGE_AND_TRANSPOSED), p, p, p]].concat(), 1)
        }
        Means::Unfold(1) => ([numbers(&[36, 6, 3, 1, 0, 1]), vec![Table(LINE), p, p]].concat(), 1),
        Means::Unfold(_) => ([numbers(&[1944, 6, 6, 3, 3, 1, 0, 1]), vec![Table(IMAGE), p, p]].concat(), 1),
        Means::Fold => ([numbers(&[80, 10, 8, 4, 3, 1]), vec![p, p]].concat(), 1),
        Means::MaxPool | Means::MeanPool => ([numbers(&[384, 2, 2, 2, 2]), vec![Table(IMAGE), p, p]].concat(), 1),
        Means::UpsampleNearest => {
            let half = 0.5f64.to_bits();
            ([numbers(&[16, 16, half, half]), vec![Table(IMAGE), p, p]].concat(), 1)
        }
        Means::UpsampleBilinear => {
            let no = Small(0, 1);
            (vec![Number(16), Number(16), no, no, null, no, null, Table(IMAGE), p, p], 1)
        }
        Means::Dequantize => match types {
            "f16" | "f32" => (vec![p, p, Number(512)], 1),
            _ => (vec![p, p], 2),
        },
        Means::TableRows => ([vec![p; 3], numbers(&[256, of_row])].concat(), 3),
        Means::BlockVector if types == "q5_k" => ([vec![p; 3], numbers(&[256])].concat(), 8),
        Means::BlockVector => ([vec![p; 3], numbers(&[256, 8])].concat(), 8),
        Means::BlockRows => ([vec![p; 3], numbers(&[256, 8, 512, 8])].concat(), 8),
        Means::BlockMatrix => ([vec![p; 3], numbers(&[256, 8, 2, 512, 8])].concat(), 1),
        Means::BlockExperts => ([vec![p; 4], numbers(&[8, 256, 2, 2, 512, 1])].concat(), 8),
        Means::Rounding => ([vec![p; 2], numbers(&[256, 512])].concat(), 1),
        other => panic!("no kernel in PTX is for {other:?}"),
    };
    Made::new(&words, [grid, 1, 1], [1, 1, 1])
}

/// Rows of 256 elements that a launch of this kernel has rounded, at the second address of the product.
fn rounded(entry: &KernelEntry, name: &str, rows: u32, product: &Made) -> super::quantized::Rounded {
    let words = match entry.means {
        Means::LinkedRoundingOfMany => {
            let rows = Number(rows.into());
            let [inner, one] = [Number(256), Number(1)];
            vec![Pointer, Number(0), Pointer, inner, inner, one, one, Number(512), rows, one]
        }
        _ => vec![Pointer, Pointer, Number(256), Number(512)],
    };
    let grid = if entry.means == Means::LinkedRoundingOfMany { [rows, 1, 1] } else { [1, rows, 1] };
    let made = Made::new(&words, grid, [256, 1, 1]);
    let mut found = made.read(|arguments| arguments.rounded(entry, name)).expect("its rows are read");
    found.blocks = product.arguments.integer(1).unwrap();
    found
}

fn inside(meaning: &Meaning) -> bool {
    meaning.views().all(|view| view.end().is_some_and(|end| end <= 1 << 20))
}

#[test]
fn every_kernel_in_ptx_has_a_meaning() {
    let rounding = KernelEntry::of("quantize_q8_1").unwrap();
    let mut without = Vec::new();
    let mut count = 0;
    for (name, widths) in kernels_in_ptx() {
        let entry = KernelEntry::of(name).unwrap_or_else(|| panic!("{name} has no row"));
        if Meaningless::of(name).is_some() {
            continue;
        }
        assert_ne!(entry.means, Means::Unused, "{name} is to say why it has no meaning");
        count += 1;
        let made = launch(entry, name);
        let of_made = (0..made.arguments.count()).map(|at| made.arguments.argument(at).unwrap().1.len());
        // Numbers of four bytes are read like those of eight; the sizes of structures, as halves are, are not told.
        let are_alike = |(made, code): (usize, &usize)| made == *code || *code == 0 || (made, *code) == (8, 4);
        let has_parameters = widths.len() == made.arguments.count() && of_made.zip(&widths).all(are_alike);
        assert!(has_parameters, "{name} has parameters of {widths:?} bytes");
        let meaning = match entry.means {
            Means::Rounding => {
                assert_eq!(rounded(entry, name, 2, &made).rows.elements(), Some(512));
                continue;
            }
            Means::BlockRows | Means::BlockMatrix | Means::BlockExperts => {
                let of_name = name.rsplit_once("cuda").and_then(|(_, rows)| rows.parse().ok());
                let rows = rounded(rounding, "quantize_q8_1", of_name.unwrap_or(2), &made);
                made.read(|arguments| arguments.product_of(entry, name, &rows)).map(|product| product.meaning)
            }
            _ => made.read(|arguments| arguments.meaning(entry, name)),
        };
        match meaning {
            Some(meaning) => assert!(inside(&meaning), "{name}: {meaning:?}"),
            None => without.push(name),
        }
    }
    assert!(without.is_empty(), "kernels without a meaning: {without:?}");
    assert!(count > 700, "{count}");
}

/// Names as compilers give them, with their widths in the catalogue.
#[test]
fn every_kernel_that_is_linked_has_a_meaning() {
    let row = |prefix: &str| LINKED.iter().find(|row| row.prefix == prefix).expect("it has a row");
    let mut with: Vec<&str> = Vec::new();
    // Products behind a rounding.
    let (few, many) = (row("mmvq_gguf_quantize_q8_1_"), row("quantize_mmq_q8_1"));
    let product = row("mmvq_gguf_");
    let types = BlockType::ALL.into_iter().filter(|of| *of != BlockType::Q8K);
    for (of, to) in types.flat_map(|of| ["f32", "f16", "bf16"].map(|to| (of, to))) {
        let made = Made::new(&[&[Pointer; 3][..], &[256, 8, 16, 8].map(Number)].concat(), [1; 3], [1; 3]);
        let rows = rounded(few, &format!("mmvq_gguf_quantize_q8_1_{to}"), 4, &made);
        let name = format!("mmvq_gguf_{}_{to}_plain_cuda4", of.name());
        let found = made.read(|arguments| arguments.product_of(product, &name, &rows)).map(|of| of.meaning);
        assert_eq!(found.map(|of| of.function), Some(Function::QuantizedProduct(of)), "{name}");
    }
    let integers = [256, 8, 100, 8, 100, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    let words = [&[Pointer, Pointer, Number(0), Number(0), Pointer, Pointer][..], &integers.map(Number)].concat();
    let made = Made::new(&words, [1; 3], [1; 3]);
    let rows = rounded(many, "_Z17quantize_mmq_q8_1IL18mmq_q8_1_ds_layout0EE", 100, &made);
    let name = "_Z9mul_mat_qIL9ggml_type8ELi128ELb0EEvPKc";
    let found = made.read(|arguments| arguments.product_of(row("mul_mat_q"), name, &rows)).unwrap();
    assert_eq!(found.meaning.function, Function::QuantizedProduct(BlockType::Q8_0));
    let words = [&[Pointer, Pointer, Number(address(4)), Pointer][..], &[Number(1); 9]].concat();
    let rest = Made::new(&words, [1; 3], [1; 3]);
    assert!(rest.read(|arguments| arguments.completes(row("mul_mat_q_stream_k_fixup"), &found)));
    with.extend([
        "mmvq_gguf_quantize_q8_1_",
        "mmvq_gguf_",
        "quantize_mmq_q8_1",
        "mul_mat_q",
        "mul_mat_q_stream_k_fixup",
    ]);
    // Experts, with and without factors.
    for factors in [Pointer, Number(0)] {
        let each = if let Pointer = factors { 6 } else { 2 };
        let pointers = [Pointer, Pointer, Pointer, Pointer, factors, Pointer];
        let sizes = |last: u64| [&pointers[..], &[4, 3, 6, 8, 256, last].map(Number)].concat();
        let experts = row("vllm_rs::moe_gemm_gguf_kernel");
        let made = Made::new(&sizes(512), [1; 3], [1; 3]);
        let rows = rounded(row("quantize_q8_1"), "_ZL13quantize_q8_1PKfPvii", each, &made);
        let name = "_ZN7vllm_rs20moe_gemm_gguf_kernelILi256ELi32E10block_q4_KLi2EXadL_ZL17vec_dot_q4_K_q8_1";
        let found = made.read(|arguments| arguments.product_of(experts, name, &rows)).unwrap().meaning;
        let Function::ExpertProduct(found) = found.function else { panic!("{found:?}") };
        assert_eq!((found.blocks, found.named, found.rows), (Some(BlockType::Q4K), Named::InOrder, 6));
        assert_eq!((found.shared, found.has_factors), (6 / u64::from(each), each == 6));
        let prefill = "_Z28moe_gemm_gguf_prefill_kernelI13__nv_bfloat16Li256E10block_q6_KLi64EEvPKT_";
        let grouped = "_ZN7vllm_rs23moe_gemm_grouped_kernelI13__nv_bfloat16Li16ELi16ELi2EEEvPKT_";
        for (prefix, name, words, of) in [
            ("moe_gemm_gguf_prefill_kernel", prefill, sizes(5), [Element::Bf16, Element::F32]),
            ("vllm_rs::moe_gemm_grouped_kernel", grouped, sizes(0)[..11].to_vec(), [Element::Bf16; 2]),
        ] {
            let made = Made::new(&words, [1; 3], [1; 3]);
            let found = made.read(|arguments| arguments.meaning(row(prefix), name)).unwrap();
            assert_eq!([found.reads[0].element, found.writes.as_ref().unwrap().element], of, "{name}");
            assert_eq!(found.reads[3].elements(), Some(5), "the bounds of four experts");
            with.push(prefix);
        }
        let of_halves = "_ZN7vllm_rs23moe_gemm_grouped_kernelI6__halfLi16ELi16ELi2EEEvPKT_";
        let made = Made::new(&sizes(0)[..11], [1; 3], [1; 3]);
        let found = made.read(|arguments| arguments.meaning(row("vllm_rs::moe_gemm_grouped_kernel"), of_halves));
        assert!(found.is_none() && Meaningless::of(of_halves).is_some());
        with.extend(["vllm_rs::moe_gemm_gguf_kernel", "quantize_q8_1"]);
    }
    for prefix in ["count_tokens_per_expert_kernel", "expert_prefix_sum_kernel"] {
        let made = Made::new(&[Pointer, Pointer, Number(4)], [1; 3], [1; 3]);
        assert!(made.read(|arguments| arguments.meaning(row(prefix), prefix)).is_some(), "{prefix}");
        with.push(prefix);
    }
    // Attention has tests of its own.
    with.extend(["flash_fwd_kernel", "flash_fwd_splitkv_kernel"]);
    let without: Vec<&str> = LINKED.iter().map(|row| row.prefix).filter(|prefix| !with.contains(prefix)).collect();
    assert!(without.is_empty(), "kernels without a meaning: {without:?}");
}

/// `Flash_fwd_params` of two texts of five queries and seven keys, or of twelve of each: four heads of eight elements over two of keys.
fn flash_params(is_packed: bool, window: [i32; 2], cap: f32) -> Made {
    let mut words = [0u64; 58];
    let [q, k, v, o, lse] = [0, 1, 2, 14, 20];
    for at in [q, k, v, o, lse] {
        words[at] = address(at);
    }
    let (of_batch, queries, keys) = if is_packed { ([0; 3], 12, 12) } else { ([160, 112, 112], 5, 7) };
    words[3..12].copy_from_slice(&[of_batch[0], of_batch[1], of_batch[2], 32, 16, 16, 8, 8, 8]);
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    (words[12], words[13]) = (two(4, 2), 2);
    words[16..19].copy_from_slice(&[of_batch[0], 32, 8]);
    (words[22], words[23], words[24]) = (two(2, queries), two(keys, 0), two(8, 128));
    words[26] = two(0, if is_packed { 12 } else { 10 });
    let (scale, of_cap) = if cap > 0. { (cap, 0.25 / cap) } else { (0.25, 0.) };
    words[27] = two(scale.to_bits(), 0);
    if is_packed {
        (words[28], words[29]) = (address(28), address(29));
    }
    words[51] = two(0, window[0] as u32);
    words[52] = two(window[1] as u32, of_cap.to_bits());
    words[54] = 1;
    let is_pointer = |at: &usize| words[*at] == address(*at);
    let pointers = (0..58).filter(is_pointer).map(|at| (at * 8, Pointed { buffer: at, delta: 0, bytes: 384 }));
    let (pointers, tables) = (pointers.collect(), HashMap::new());
    Made { arguments: driver::Arguments::of_structure(&words), launch: Launch::default(), pointers, tables }
}

#[test]
fn the_structure_of_attention_is_read() {
    let entry = KernelEntry::of_linked("flash_fwd_kernel").unwrap();
    let of = |is_packed, window, cap| {
        let meaning = flash_params(is_packed, window, cap).read(|arguments| arguments.meaning(entry, "")).unwrap();
        let dims = |at: usize| meaning.reads[at].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
        let Function::Attention(attending) = meaning.function else { panic!("{meaning:?}") };
        assert!(meaning.views().all(|view| view.element != Element::F16), "it is of bf16");
        (attending, [dims(0), dims(1)], meaning.reads.len(), meaning.writes.as_ref().unwrap().elements())
    };
    let (attending, dims, reads, results) = of(false, [-1, -1], 0.);
    assert_eq!((attending.texts, attending.heads, attending.kv_heads, attending.size), (2, 4, 2, 8));
    assert_eq!((attending.scale, attending.cap, attending.before, attending.behind), (0.25, 0., None, None));
    assert_eq!(dims, [vec![(2, 160), (5, 32), (4, 8), (8, 1)], vec![(2, 112), (7, 16), (2, 8), (8, 1)]]);
    assert_eq!((reads, results), (3, Some(2 * 5 * 32)));
    let (attending, dims, reads, results) = of(true, [3, 0], 20.);
    assert_eq!((attending.scale, attending.cap, attending.before, attending.behind), (0.25, 20., Some(3), Some(0)));
    assert_eq!(dims, [vec![(1, 0), (12, 32), (4, 8), (8, 1)], vec![(1, 0), (12, 16), (2, 8), (8, 1)]]);
    assert_eq!((reads, results), (5, Some(12 * 32)));
    // What is understood neither way: pages of texts that are not packed, and prefixes that all queries see.
    for (is_packed, at) in [(false, PAGES), (true, 47)] {
        let made = flash_params(is_packed, [-1, -1], 0.).with(&[(at, address(at))]);
        assert!(made.read(|arguments| arguments.meaning(entry, "")).is_none());
    }
}

/// The word that points to the pages of texts.
const PAGES: usize = 44;

#[test]
fn keys_in_pages_are_read() {
    let entry = KernelEntry::of_linked("flash_fwd_splitkv_kernel").unwrap();
    // Pages of four tokens, two heads of eight elements each; a text has two.
    let pages = [(PAGES, address(PAGES)), (45, 2), (46, 4), (4, 64), (5, 64)];
    let meaning = flash_params(true, [-1, -1], 0.).with(&pages).read(|arguments| arguments.meaning(entry, "")).unwrap();
    let dims = |at: usize| meaning.reads[at].dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
    let Function::PagedAttention(attending, pages) = meaning.function else { panic!("{meaning:?}") };
    assert!(attending.is_packed);
    assert_eq!(pages, Pages { keys: 4, of_text: 2 });
    // Buffers of 192 elements.
    assert_eq!([dims(1), dims(2)], [(); 2].map(|()| vec![(3, 64), (4, 16), (2, 8), (8, 1)]));
    assert_eq!((meaning.reads.len(), dims(5)), (6, vec![(2, 2), (2, 1)]));
}
