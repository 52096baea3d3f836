//! The effects of kernels: which memory each launch reads and writes.

mod compiled;
mod effects;
mod proof;
mod ptx;
mod table;
mod uses;

use std::sync::OnceLock;

use hashbrown::HashMap;
use parking_lot::RwLock;

use self::compiled::linked;
use self::effects::{read_element, written_element};
use self::ptx::Entry;
use self::table::{declared, effects_of};
use super::driver::{Arguments, KernelNode};
use crate::trace::{AccessMode, Launch, Region};
use opara_plan::kernel_catalog::{Before, Effects, Extent, Factor, KernelEntry};

/// The launch of a kernel whose effects are known: one of candle's or of this library's, listed in the table. `code` is
/// the hash of the PTX text that the kernel was loaded from: a kernel of the same name from another module is unknown. Kernels that the
/// program was linked with have none.
pub(super) fn known<'a>(
    name: &'a str,
    arguments: &'a Arguments,
    launch: &'a Launch,
    code: Option<u64>,
) -> Option<Call<'a>> {
    let effects = match code {
        Some(code) => {
            let shipped = shipped(name).filter(|kernel| kernel.code == code)?;
            (shipped.parameters == arguments.count()).then_some(shipped.effects)?
        }
        None => &linked(name, arguments)?.effects,
    };
    Some(Call { effects, name, arguments, launch })
}

/// The row in the catalogue of the kernel that a launch is of, if that is candle's.
pub(super) fn entry_of(kernel: &KernelNode) -> Option<&'static KernelEntry> {
    known(&kernel.name, &kernel.arguments, &kernel.launch, kernel.code)?;
    match kernel.code {
        Some(_) if declared(&kernel.name).is_some() => None,
        Some(_) => KernelEntry::of(&kernel.name),
        None => linked(&kernel.name, &kernel.arguments),
    }
}

/// The addresses that a launch may write to: the output argument of the table; for an unknown kernel, all words of its
/// arguments.
pub(super) fn written_by(kernel: &KernelNode) -> Vec<u64> {
    let call = known(&kernel.name, &kernel.arguments, &kernel.launch, kernel.code);
    let writes =
        |word| call.as_ref().is_none_or(|call| kernel.arguments.argument_at(word).is_some_and(|at| call.writes(at)));
    kernel.arguments.words().filter(|(word, _)| writes(*word)).map(|(_, value)| value).collect()
}

/// Offsets of the pointers that a launch may read through before its predecessors have ended; `None` if its kernel does not wait
/// for them by itself.
pub(super) fn read_early(kernel: &KernelNode) -> Option<Vec<usize>> {
    let shipped = shipped(&kernel.name).filter(|shipped| kernel.code == Some(shipped.code) && shipped.waits)?;
    let is_early = |word: usize| {
        let argument = kernel.arguments.argument_at(word);
        argument.is_some_and(|argument| shipped.effects.early.contains(&argument))
            && has_address(shipped.effects, &kernel.arguments, word)
    };
    // Nothing is read through null.
    let words = kernel.arguments.words().filter(|&(word, value)| value != 0 && is_early(word));
    Some(words.map(|(word, _)| word).collect())
}

/// Whether the word at an offset may be an address: those behind the first one of a matrix are its sizes.
fn has_address(effects: &Effects, arguments: &Arguments, word: usize) -> bool {
    let is_size = |matrix: usize| {
        let found = arguments.argument(matrix);
        found.is_some_and(|(start, of)| (start + 1..start + of.len()).contains(&word))
    };
    !effects.matrices.iter().any(|&matrix| is_size(matrix))
}

/// A kernel of the table.
#[derive(Clone, Copy)]
struct Shipped {
    effects: &'static Effects,
    parameters: usize,
    /// The hash of the text that it is loaded from.
    code: u64,
    /// Does it wait by itself for its predecessors (`griddepcontrol.wait`)?
    waits: bool,
}

/// The kernel of this name, if its code agrees with table or declaration: another version of candle may differ.
fn shipped(name: &str) -> Option<Shipped> {
    static ENTRIES: OnceLock<HashMap<&str, Entry>> = OnceLock::new();
    static PROVEN: RwLock<Option<HashMap<&str, Option<Shipped>>>> = RwLock::new(None);
    let entry = ENTRIES.get_or_init(|| ptx::entries().map(|entry| (entry.name, entry)).collect()).get(name)?;
    if let Some(proven) = PROVEN.read().as_ref().and_then(|proven| proven.get(name)) {
        return *proven;
    }
    let proven = effects_of(name).and_then(|effects| {
        let of_candle = || proof::holds(entry, effects);
        let proof = declared(name).map_or_else(of_candle, |(declared, _)| proof::agrees(entry, declared));
        let refused = |reason: &String| tracing::warn!(name, reason, "a kernel does not have the expected effects");
        proof.inspect_err(refused).ok()?;
        let waits = entry.waits();
        Some(Shipped { effects, parameters: entry.parameters, code: entry.hash(), waits })
    });
    PROVEN.write().get_or_insert_default().insert(entry.name, proven);
    proven
}

/// The names of candle's kernels that are compiled to PTX, with the bytes of each parameter.
#[cfg(test)]
pub(super) fn kernels_in_ptx() -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    ptx::entries().filter(|entry| declared(entry.name).is_none()).map(|entry| (entry.name, entry.widths()))
}

/// A launch of a known kernel.
pub(super) struct Call<'a> {
    effects: &'static Effects,
    name: &'a str,
    arguments: &'a Arguments,
    launch: &'a Launch,
}

impl Call<'_> {
    /// The region and mode of the access through the pointer argument `argument`, which points to byte `delta` of a
    /// buffer of `bytes` bytes.
    ///
    /// A region that is not known exactly is the rest of the buffer from there: views never reach backwards.
    pub fn access(&self, argument: Option<usize>, delta: u64, bytes: u64) -> (Region, AccessMode) {
        let (region, mode) = match argument {
            Some(argument) if argument == self.effects.output => (self.written(delta), self.mode()),
            Some(argument) if self.writes(argument) => (None, AccessMode::ReadWrite),
            Some(argument) => (self.read(argument, delta), AccessMode::Read),
            None => (None, AccessMode::Read),
        };
        let rest = Region::contiguous(delta, bytes.saturating_sub(delta));
        (region.filter(|r| r.end() <= bytes).unwrap_or(rest), mode)
    }

    /// Whether the word at an offset of the arguments may be an address.
    pub fn has_address(&self, word: usize) -> bool {
        has_address(self.effects, self.arguments, word)
    }

    fn writes(&self, argument: usize) -> bool {
        argument == self.effects.output || Some(argument) == self.effects.updated
    }

    fn mode(&self) -> AccessMode {
        match self.effects.before {
            Before::Overwritten | Before::ReadBack => AccessMode::Write,
            Before::InPlaceOf(input) if !self.is_null(input) => AccessMode::Write,
            Before::KeptBetween(strides) if self.is_null(strides) => AccessMode::Write,
            Before::InPlaceOf(_) | Before::KeptBetween(_) | Before::PartlyKept | Before::AddedTo => {
                AccessMode::ReadWrite
            }
        }
    }

    fn written(&self, delta: u64) -> Option<Region> {
        let is_scattered = matches!(self.effects.before, Before::KeptBetween(strides) if !self.is_null(strides));
        let size = written_element(self.effects, self.name)?;
        match self.effects.extent {
            Extent::Elements(factors) if !is_scattered => self.contiguous(delta, factors, size),
            Extent::Rows => self.rows(delta, size),
            Extent::Elements(_) | Extent::Rest => None,
        }
    }

    fn read(&self, argument: usize, delta: u64) -> Option<Region> {
        let strided = self.effects.strides.is_some_and(|strides| !self.is_null(strides));
        match self.effects.extent {
            Extent::Elements(factors) if !strided && self.effects.inputs.contains(&argument) => {
                self.contiguous(delta, factors, read_element(self.effects, self.name)?)
            }
            _ => None,
        }
    }

    fn contiguous(&self, delta: u64, factors: &[Factor], size: u64) -> Option<Region> {
        let bytes = factors.iter().try_fold(size, |product, factor| match *factor {
            Factor::Argument(i) => product.checked_mul(self.arguments.integer(i)?),
            Factor::Grid(axis) => product.checked_mul(self.launch.grid[axis].into()),
            Factor::Block(axis) => product.checked_mul(self.launch.block[axis].into()),
            Factor::Times(n) => product.checked_mul(n),
            Factor::Over(n) => Some(product.div_ceil(n)),
        })?;
        Some(Region::contiguous(delta, bytes))
    }

    /// `copy2d`: source, target, rows, columns, source stride, target stride, in elements.
    fn rows(&self, delta: u64, size: u64) -> Option<Region> {
        let [rows, columns, stride] = [2, 3, 5].map(|i| self.arguments.integer(i));
        Some(Region::rows(delta, columns? * size, stride? * size, rows?))
    }

    fn is_null(&self, argument: usize) -> bool {
        self.arguments.integer(argument) == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 1 << 20;

    fn launch(grid: [u32; 3], block: [u32; 3]) -> Launch {
        Launch { grid, block, ..Default::default() }
    }

    /// The access of a known kernel through one argument, which points to byte 64 of a large buffer.
    fn access(name: &str, words: &[u64], argument: usize) -> (Region, AccessMode) {
        let (words, launch) = (Arguments::from_words(words), launch([3, 5, 7], [1, 2, 1]));
        let call = known(name, &words, &launch, code_of(name));
        call.unwrap_or_else(|| panic!("{name} is in the table")).access(Some(argument), 64, ROOM)
    }

    /// The hash of the text that the kernel is loaded from.
    fn code_of(name: &str) -> Option<u64> {
        shipped(name).map(|shipped| shipped.code)
    }

    fn bytes(n: u64) -> Region {
        Region::contiguous(64, n)
    }

    fn rest() -> Region {
        Region::contiguous(64, ROOM - 64)
    }

    #[test]
    fn a_null_input_means_in_place() {
        assert_eq!(access("urelu_f32", &[8, 1, 0, 0xa000, 0xb000], 4), (bytes(32), AccessMode::Write));
        assert_eq!(access("urelu_f32", &[8, 1, 0, 0, 0xb000], 4), (bytes(32), AccessMode::ReadWrite));
        assert_eq!(access("upowf_f64", &[8, 1, 0, 0, 0xa000, 0xb000], 5), (bytes(64), AccessMode::Write));
        assert_eq!(access("badd_f32", &[8, 1, 0, 0, 0, 0xb000], 5), (bytes(32), AccessMode::Write));
    }

    #[test]
    fn inputs_are_contiguous_without_a_strides_argument() {
        assert_eq!(access("cast_bf16_f64", &[8, 1, 0, 0xa000, 0xb000], 3), (bytes(16), AccessMode::Read));
        assert_eq!(access("cast_bf16_f64", &[8, 1, 0, 0xa000, 0xb000], 4), (bytes(64), AccessMode::Write));
        assert_eq!(access("cast_bf16_f64", &[8, 1, 0xc000, 0xa000, 0xb000], 3), (rest(), AccessMode::Read));
        assert_eq!(access("cast_bf16_f64", &[8, 1, 0xc000, 0xa000, 0xb000], 2), (rest(), AccessMode::Read));
    }

    #[test]
    fn the_written_extent_follows_from_arguments_and_launch_shape() {
        let written = |name, words: &[u64], output| access(name, words, output).0;
        assert_eq!(written("gt_f32", &[16, 1, 0, 1, 2, 3], 5), bytes(16), "booleans take one byte");
        assert_eq!(written("im2col1d_f32", &[10, 0, 4, 0, 0, 0, 1, 2, 3], 8), bytes(4 * 10 * 4));
        assert_eq!(written("softmax_bf16", &[1, 2, 9], 1), bytes(2 * 3 * 9));
        assert_eq!(written("layernorm_f32", &[1, 2, 3, 4, 9, 32, 0], 1), bytes(4 * 3 * 2 * 9));
        assert_eq!(written("opara_norm_layer_f16", &[6, 9, 0, 1, 0, 2, 3, 4, 5], 8), bytes(2 * 6 * 9));
        assert_eq!(written("opara_norm_rms_f64", &[6, 9, 0, 1, 2, 3], 5), bytes(8 * 6 * 9));
        assert_eq!(written("opara_norm_add_rms_f16", &[6, 9, 0, 1, 2, 3, 4], 6), bytes(2 * 6 * 9 * 2));
        assert_eq!(written("opara_softmax_long_f32", &[6, 9, 1, 1, 0, 0, 0, 1, 0, 2], 9), bytes(4 * 6 * 9));
        assert_eq!(written("opara_matmul_gemv_8_f16", &[54, 9, 30, 1, 1, 0, 1, 2, 3, 4, 5, 6], 11), bytes(2 * 54));
        assert_eq!(written("opara_matmul_gated_gemv_8_bf16", &[54, 9, 30, 1, 4, 0, 1, 2, 3, 4, 5], 10), bytes(2 * 54));
        assert_eq!(written("opara_elementwise_bias_act_bf16", &[54, 9, 0, 1, 0, 2], 5), bytes(2 * 54));
        assert_eq!(written("opara_layout_split_heads_f32", &[54, 3, 2, 9, 18, 0, 1, 2, 3], 8), bytes(4 * 54));
        assert_eq!(written("opara_gather_embedding_i64_f16", &[54, 9, 30, 1, 2, 3], 5), bytes(2 * 54));
        let sums: Vec<u64> = [54, 9, 1, 2].into_iter().chain([3; 24]).collect();
        assert_eq!(written("opara_layout_cat_sums_8_f16", &sums, 3), bytes(2 * 54));
        let squares: Vec<u64> = [96].into_iter().chain([1; 15]).collect();
        assert_eq!(written("opara_layout_space_to_depth_nhwc_f16", &squares, 15), bytes(2 * 96));
        assert_eq!(written("opara_upsample_nhwc8_f16", &[96, 8, 1, 3, 2, 6, 0, 0, 1, 2], 9), bytes(2 * 96));
        assert_eq!(written("fast_argmax_i64", &[27, 9, 2, 1, 2, 3], 5), bytes(4 * 3));
        assert_eq!(written("fast_sum_small_f64", &[27, 9, 2, 1, 2, 3], 5), bytes(8 * 27));
        assert_eq!(written("asort_desc_u8", &[1, 2, 9, 16], 1), bytes(4 * 3 * 9));
        assert_eq!(written("rope_thd_f32", &[1, 2, 3, 4, 2, 3, 4, 5, 0], 3), bytes(4 * 2 * 3 * 4 * 5));
        assert_eq!(written("quantize_q8_1", &[1, 2, 500, 512], 1), bytes(5 * 2 * 512 / 32 * 36));
        assert_eq!(written("conv2d_f32", &[1; 10], 9), rest());
    }

    #[test]
    fn outputs_with_gaps_count_as_read_and_written() {
        assert_eq!(access("sa_u32_f32", &[1, 2, 3, 4, 9, 5, 6], 2), (bytes(4 * 4 * 5 * 6), AccessMode::ReadWrite));
        assert_eq!(access("s_u32_f32", &[1, 2, 3, 4, 9, 5, 6], 2), (bytes(4 * 4 * 5 * 6), AccessMode::ReadWrite));
        assert_eq!(access("const_set_f32", &[8, 1, 0, 0, 0xb000], 4), (bytes(32), AccessMode::Write));
        assert_eq!(access("const_set_f32", &[8, 1, 0xc000, 0, 0xb000], 4), (rest(), AccessMode::ReadWrite));
    }

    #[test]
    fn attention_writes_its_result_and_a_part_of_the_cache() {
        let words: Vec<u64> = [9, 6].into_iter().chain([1; 19]).collect();
        let name = "opara_attention_cached_8x8_f16";
        assert_eq!(access(name, &words, 20), (bytes(2 * 54), AccessMode::Write));
        assert_eq!(access(name, &words, 19), (rest(), AccessMode::ReadWrite), "the cache");
        assert_eq!(access(name, &words, 12), (rest(), AccessMode::Read));
        let words: Vec<u64> = [54].into_iter().chain([1; 20]).collect();
        assert_eq!(access("opara_attention_one_query_8x1_f16", &words, 20), (bytes(2 * 54), AccessMode::Write));
        let words: Vec<u64> = [54].into_iter().chain([1; 17]).collect();
        let name = "opara_elementwise_new_tokens_8_f32";
        assert_eq!(access(name, &words, 17), (bytes(4 * 54), AccessMode::Write));
        assert_eq!(access(name, &words, 16), (rest(), AccessMode::ReadWrite), "the cache");
        assert_eq!(access(name, &words, 9), (rest(), AccessMode::Read));
    }

    #[test]
    fn words_of_a_structure_are_accessed_each_in_its_way() {
        let (arguments, launch) = (Arguments::of_structure(&[0xa000; 58]), Launch::default());
        let call = known("_Z16flash_fwd_kernelI23Flash_fwd_kernel_traits", &arguments, &launch, None).unwrap();
        let mode = |word: usize| call.access(arguments.argument_at(word), 0, 64).1;
        assert_eq!([0, 112, 160, 224].map(mode), {
            use AccessMode::{Read, ReadWrite, Write};
            [Read, Write, ReadWrite, Read]
        });
        let other = Arguments::of_structure(&[0xa000; 57]);
        assert!(known("flash_fwd_kernel", &other, &launch, None).is_none(), "of another version");
    }

    #[test]
    fn of_a_matrix_the_first_word_alone_is_an_address() {
        let name = "opara_matmul_many_128_of128_by1_f16";
        let arguments = Arguments::of_sizes(&[4, 4, 4, 4, 128, 128, 8, 8, 8], 0xa000);
        let launch = Launch::default();
        let call = known(name, &arguments, &launch, code_of(name)).expect("it is declared");
        let words = arguments.pointer_words().map(|(word, _)| word).filter(|&word| call.has_address(word));
        assert_eq!(words.collect::<Vec<_>>(), [32, 160, 288, 296, 304]);
    }

    #[test]
    fn parts_of_a_concatenation_are_exact() {
        let arguments = Arguments::from_words(&[0xa000, 0xb000, 2, 3, 3, 8]);
        let launch = Launch::default();
        let call = known("copy2d_f32", &arguments, &launch, code_of("copy2d_f32")).expect("it is in the table");
        let copy = |delta| call.access(Some(1), delta, 64).0;
        assert_eq!(copy(0), Region::rows(0, 12, 32, 2));
        assert!(!copy(0).overlaps(&copy(12)));
        assert_eq!(
            copy(32),
            Region::contiguous(32, 32),
            "a region past the end of the buffer becomes the rest of the buffer"
        );
    }

    #[test]
    fn a_kernel_is_known_by_name_signature_and_module_hash() {
        let is_known = |name: &str, words: &[u64], code| {
            known(name, &Arguments::from_words(words), &Launch::default(), code).is_some()
        };
        let unary = code_of("urelu_f32");
        assert!(is_known("urelu_f32", &[1; 5], unary));
        assert!(!is_known("urelu_f32", &[1; 4], unary), "the same name with another signature");
        assert!(!is_known("urelu_f32", &[1; 5], Some(1)), "the same name in another module");
        assert!(!is_known("urelu_f32", &[1; 5], None), "kernels of libraries and of C++ have no hash");
        assert!(!is_known("update_f32", &[1; 5], unary), "an unknown kernel whose name begins like a unary kernel's");
        assert!(!is_known("my_gemm", &[1; 5], Some(1)));
    }
}
