//! The attention of candle-flash-attn, whose kernels take one structure.

use super::arguments::{bits, Arguments};
use crate::trace::{Attending, Dim, Element, Function, Meaning, Pages, View};

// Places of `Flash_fwd_params` (kernels/flash.h), in bytes.
const QUERIES: usize = 0;
const KEYS: usize = 8;
const VALUES: usize = 16;
const RESULT: usize = 112;
const STARTS: [usize; 2] = [224, 232];
const SLOPES: usize = 440;
const PAGES: usize = 352;
/// Pointers that are null where attention is what is understood here: probabilities, padding, lengths, new keys, prefixes.
const OTHERS: [usize; 5] = [152, 240, 248, 264, 376];

impl Arguments<'_> {
    /// What a launch of `flash_fwd_kernel` computes, or of `flash_fwd_splitkv_kernel`, which splits nothing.
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
        // What goes on to the end of its buffer: the keys of all packed texts, and pages.
        let all = |at: usize, one: u64, stride: u64| {
            let reach = self.reach_at(at)? / element.bytes();
            Some(reach.checked_sub(one)?.checked_div(stride)? + 1)
        };
        let of_token = kv_heads.checked_mul(size)?;
        let pages = match word(PAGES)? {
            0 => None,
            _ => Some(Pages { keys: int(368)?.into(), of_text: word(360)? }).filter(|_| is_packed),
        };
        (pages.is_some() == (word(PAGES)? != 0)).then_some(())?;
        // Pages, or the rows of a text.
        let kept = |at: usize, which: usize| -> Option<View> {
            let Some(pages) = pages else {
                let rows = if is_packed { all(at, of_token, word(48 + 8 * which)?)? } else { keys };
                return view(at, which, rows, kv_heads);
            };
            let [page, row, head] = [24, 48, 72].map(|first| word(first + 8 * which));
            let (page, row, head) = (page?, row?, head?);
            let count = all(at, pages.keys.checked_sub(1)?.checked_mul(row)?.checked_add(of_token)?, page)?;
            let dims = [(count, page), (pages.keys, row), (kv_heads, head), (size, 1)];
            self.view_at(at, element, dims.map(|(len, stride)| Dim { len, stride }).to_vec())
        };
        let rows = if is_packed { all_queries } else { queries };
        let mut reads = vec![view(QUERIES, 0, rows, heads)?, kept(KEYS, 1)?, kept(VALUES, 2)?];
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
        if let Some(pages) = pages {
            let dims = [(texts, pages.of_text), (pages.of_text, 1)].map(|(len, stride)| Dim { len, stride });
            reads.push(self.view_at(PAGES, Element::U32, dims.to_vec())?);
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
        let function = pages.map_or(Function::Attention(of), |pages| Function::PagedAttention(of, pages));
        is_dense.then_some(Meaning { function, reads, writes })
    }
}
