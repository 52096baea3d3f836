//! The attention of candle-flash-attn, whose kernels take one structure.

use super::arguments::{bits, Arguments};
use crate::trace::{Attending, Dim, Element, Function, Meaning, View};

// Places of `Flash_fwd_params` (kernels/flash.h), in bytes.
const QUERIES: usize = 0;
const KEYS: usize = 8;
const VALUES: usize = 16;
const RESULT: usize = 112;
const STARTS: [usize; 2] = [224, 232];
const SLOPES: usize = 440;
/// Pointers that are null where attention is what is understood here: probabilities, padding, lengths, new keys, pages, prefixes.
const OTHERS: [usize; 6] = [152, 240, 248, 264, 352, 376];

impl Arguments<'_> {
    /// What a launch of `flash_fwd_kernel` computes.
    pub fn attention(&self) -> Option<Meaning> {
        let (_, bytes) = self.arguments.argument(0)?;
        let word = |at: usize| bytes.get(at..at + 8).map(bits);
        let int = |at: usize| Some(bits(bytes.get(at..at + 4)?) as u32);
        let float = |at: usize| int(at).map(f32::from_bits);
        if OTHERS.iter().any(|&at| word(at) != Some(0)) {
            return None;
        }
        let [texts, heads, kv_heads, size] = [176, 96, 100, 192].map(|at| int(at).map(u64::from));
        let (texts, heads, kv_heads, size) = (texts?, heads?, kv_heads?, size?);
        let [queries, keys, all_queries] = [180, 184, 212].map(|at| int(at).map(u64::from));
        let (queries, keys, all_queries) = (queries?, keys?, all_queries?);
        let is_packed = word(STARTS[0])? != 0;
        let element = if bytes[432] != 0 { Element::Bf16 } else { Element::F16 };
        // Batch, row and head of `which` of queries, keys and values: what is packed is one text.
        let view = |at: usize, which: usize, rows: u64, heads: u64| -> Option<View> {
            let strides = [24, 48, 72].map(|first| word(first + 8 * which));
            let outer = if is_packed { 1 } else { texts };
            let dims =
                [outer, rows, heads].into_iter().zip(strides).map(|(len, stride)| Some(Dim { len, stride: stride? }));
            let dims = dims.chain([Some(Dim { len: size, stride: 1 })]).collect::<Option<_>>()?;
            self.view_at(at, element, dims)
        };
        // Of packed texts, the keys of all go on to the end of their buffer.
        let all_keys = || {
            let reach = self.reach_at(KEYS)? / element.bytes();
            let row = word(56)?;
            Some(reach.checked_sub(kv_heads.checked_mul(size)?)?.checked_div(row)? + 1)
        };
        let (rows, of_keys) = if is_packed { (all_queries, all_keys()?) } else { (queries, keys) };
        let mut reads = vec![
            view(QUERIES, 0, rows, heads)?,
            view(KEYS, 1, of_keys, kv_heads)?,
            view(VALUES, 2, of_keys, kv_heads)?,
        ];
        let has_slopes = word(SLOPES)? != 0;
        let row = |len| vec![Dim { len, stride: 1 }];
        if has_slopes {
            // One for each head, of all texts.
            (word(448)? == 0).then_some(())?;
            reads.push(self.view_at(SLOPES, Element::F32, row(heads))?);
        }
        if is_packed {
            for at in STARTS {
                reads.push(self.view_at(at, Element::U32, row(texts + 1))?);
            }
        }
        let seen = |at: usize| Some(u64::try_from(int(at)? as i32).ok());
        let (before, behind) = (seen(412)?, seen(416)?);
        let behind = if bytes[433] != 0 { Some(0) } else { behind };
        // With a cap, the factor of the products is that of their part of it.
        let (cap, of_cap) = (float(216)?, float(420)?);
        let (scale, cap) = if of_cap > 0. { (of_cap * cap, cap) } else { (cap, 0.) };
        let of = Attending { texts, heads, kv_heads, size, scale, cap, before, behind, has_slopes, is_packed };
        let all = if is_packed { all_queries } else { texts.checked_mul(queries)? };
        let len = all.checked_mul(heads)?.checked_mul(size)?;
        let is_dense = word(136)? == heads * size && word(144)? == size;
        let writes = Some(self.view_at(RESULT, element, row(len))?);
        is_dense.then_some(Meaning { function: Function::Attention(of), reads, writes })
    }
}
