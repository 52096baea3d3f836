//! Products with quantised weights: one launch rounds rows to 8 bits, and those behind it multiply.

use super::arguments::Arguments;
use super::kernels::element;
use crate::cuda::kernels::identifier;
use crate::trace::{BlockType, Dim, Element, Function, Meaning, View};

/// Rows that a launch has rounded to blocks of 8 bits.
pub(super) struct Rounded {
    /// `(rows, inner)`.
    rows: View,
    /// Where the blocks are.
    blocks: u64,
    /// Blocks of a row, each of 32 elements, or elements of a row with the padding.
    padded: u64,
}

/// A product that a launch completes, unless it leaves parts of the last tiles to the launch behind it.
pub(super) struct Product {
    pub meaning: Meaning,
    /// Where the result is.
    result: u64,
}

impl Arguments<'_> {
    /// The rows that a launch of candle's rounds, in front of a product.
    pub fn rounded(&self, name: &str) -> Option<Rounded> {
        let [grid, block] = [self.kernel.launch.grid, self.kernel.launch.block].map(|of| of.map(u64::from));
        let identifier = identifier(name)?;
        // Input, blocks, columns, padded columns.
        if let Some(of) = identifier.strip_prefix("mmvq_gguf_quantize_q8_1_").and_then(element) {
            let (inner, padded) = (self.integer(2)?, self.integer(3)?);
            let rows = self.view_of(0, of, by_rows(grid[1] * block[1], inner))?;
            return Some(Rounded { rows, blocks: self.integer(1)?, padded });
        }
        // Input, ids, blocks, columns, strides of three dimensions, padded columns, rows, channels.
        if identifier != "quantize_mmq_q8_1" || self.integer(1)? != 0 || grid[2] != 1 {
            return None;
        }
        let [inner, of_row, padded, rows, channels] = [3, 4, 7, 8, 9].map(|at| self.integer(at));
        if inner? != of_row? || channels? != 1 || grid[0] != rows? {
            return None;
        }
        let rows = self.view_of(0, Element::F32, by_rows(rows?, inner?))?;
        Some(Rounded { rows, blocks: self.integer(2)?, padded: padded? })
    }

    /// The product of a few rows, which the launch before has rounded. Arguments: weight, blocks, result, columns of the weight, its rows,
    /// from one row's blocks to the next, from one row of the result to the next.
    pub fn product_of_few(&self, name: &str, of: &Rounded) -> Option<Meaning> {
        let (kind, count) = name.strip_prefix("mmvq_gguf_")?.split_once("_plain_cuda")?;
        let (blocks, to) = kind.rsplit_once('_')?;
        let (blocks, to) = (BlockType::of_name(blocks)?, element(to)?);
        let [of_blocks, inner, columns, of_row, of_result] = [1, 3, 4, 5, 6].map(|at| self.integer(at));
        let [rows, of_rows] = of.rows.dims[..] else { return None };
        let is_of_these = of_blocks? == of.blocks && of_row?.checked_mul(32)? == of.padded && inner? == of_rows.len;
        let is_all = count.parse::<u64>() == Ok(rows.len) && of_result? == columns? && to == of.rows.element;
        (is_of_these && is_all).then(|| self.product(of, blocks, columns?, [0, 2]))?
    }

    /// The product of many rows. Arguments: weight, blocks, ids, bounds, result, workspace, then integers: columns of the weight, its rows,
    /// rows of the result, blocks of a row of the weight, rows of blocks, from one row of the result to the next, those of channels and
    /// samples, of which there is one each.
    pub fn product_of_many(&self, name: &str, of: &Rounded) -> Option<Product> {
        let template = name.split_once("mul_mat_qIL9ggml_type")?.1;
        let blocks = of_number(template.split_once('E')?.0.parse().ok()?)?;
        let [of_blocks, ids, result, inner, columns, results, of_row] =
            [1, 2, 4, 6, 7, 8, 9].map(|at| self.integer(at));
        let [of_result, channels, samples] = [11, 13, 18].map(|at| self.integer(at));
        let [rows, of_rows] = of.rows.dims[..] else { return None };
        let is_of_these = of_blocks? == of.blocks && ids? == 0 && inner? == of_rows.len && results? == rows.len;
        let is_all = of_result? == columns? && channels? == 1 && samples? == 1 && of.rows.element == Element::F32;
        if !is_of_these || !is_all || of_row?.checked_mul(blocks.elements())? != inner? {
            return None;
        }
        Some(Product { meaning: self.product(of, blocks, columns?, [0, 4])?, result: result? })
    }

    /// Does this launch add what the launch of a product has left of its last tiles? Arguments: ids, bounds, result, workspace, ...
    pub fn completes(&self, name: &str, product: &Product) -> bool {
        identifier(name) == Some("mul_mat_q_stream_k_fixup") && self.integer(2) == Some(product.result)
    }

    fn product(&self, of: &Rounded, blocks: BlockType, columns: u64, [weight, result]: [usize; 2]) -> Option<Meaning> {
        let [rows, inner] = of.rows.dims[..] else { return None };
        let of_row = blocks.bytes_of_row(inner.len)?;
        let weight = self.view_of(weight, Element::U8, by_rows(columns, of_row))?;
        let len = rows.len.checked_mul(columns)?;
        Some(Meaning {
            function: Function::QuantizedProduct(blocks),
            reads: vec![of.rows.clone(), weight],
            writes: Some(self.view_of(result, of.rows.element, vec![Dim { len, stride: 1 }])?),
        })
    }
}

/// Rows of `columns` elements, one after the other.
fn by_rows(rows: u64, columns: u64) -> Vec<Dim> {
    vec![Dim { len: rows, stride: columns }, Dim { len: columns, stride: 1 }]
}

/// The type that has this number in GGUF.
fn of_number(number: u32) -> Option<BlockType> {
    Some(match number {
        2 => BlockType::Q4_0,
        3 => BlockType::Q4_1,
        6 => BlockType::Q5_0,
        7 => BlockType::Q5_1,
        8 => BlockType::Q8_0,
        10 => BlockType::Q2K,
        11 => BlockType::Q3K,
        12 => BlockType::Q4K,
        13 => BlockType::Q5K,
        14 => BlockType::Q6K,
        _ => return None,
    })
}
