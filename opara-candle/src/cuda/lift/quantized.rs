//! GGUF's blocks: their elements, rows of tables, and products, for which one launch rounds rows to 8 bits and those behind it multiply.

use super::arguments::{by_rows, Arguments};
use crate::trace::{BlockType, Element, Function, Meaning, View};
use opara_plan::kernel_catalog::{KernelEntry, Meaningless, Means};

/// Rows that a launch has rounded to blocks of 8 bits.
pub(super) struct Rounded {
    /// `(rows, inner)`.
    pub rows: View,
    /// Where the blocks are.
    pub blocks: u64,
    /// Elements of a row with the padding.
    pub padded: u64,
}

/// A product that a launch completes, unless it leaves parts of the last tiles to the launch behind it.
pub(super) struct Product {
    pub meaning: Meaning,
    /// Where the result is, if another launch may complete it.
    incomplete: Option<u64>,
}

impl Arguments<'_> {
    /// Arguments: blocks, elements, and for some types how many blocks or elements there are.
    pub fn dequantize(&self, name: &str) -> Option<Meaning> {
        let (blocks, element) = name.strip_prefix("dequantize_block_")?.rsplit_once('_')?;
        let (blocks, element) = (BlockType::of_name(blocks)?, Element::of_name(element)?);
        let len = match blocks {
            BlockType::Q5_0 | BlockType::Q5_1 => self.integer(2)?,
            BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q8_0 => self.integer(2)?.checked_mul(32)?,
            _ => u64::from(self.launch.grid[0]).checked_mul(256)?,
        };
        Some(Meaning {
            function: Function::Dequantized(blocks),
            reads: vec![self.row(0, Element::U8, blocks.bytes_of_row(len)?)?],
            writes: Some(self.row(1, element, len)?),
        })
    }

    /// Arguments: table, ids, result in f32, elements of a row, bytes of a row; a block has a row.
    pub fn table_rows(&self, types: &str) -> Option<Meaning> {
        let [columns, of_row] = self.integers([3, 4])?;
        let ids = u64::from(self.launch.grid[0]);
        let rows = self.reach(0)?.checked_div(of_row)?;
        let (function, element, row) = match BlockType::of_name(types) {
            Some(blocks) => (Function::QuantizedRows(blocks), Element::U8, blocks.bytes_of_row(columns)?),
            None => {
                let element = Element::of_name(types)?;
                let row = columns.checked_mul(element.bytes())?;
                (Function::IndexSelect { left: 1, from: rows, right: columns }, element, row)
            }
        };
        let columns_of_table = of_row / element.bytes();
        let table = self.view(0, element, by_rows(rows, columns_of_table, columns_of_table))?;
        let len = ids.checked_mul(columns)?;
        (row == of_row).then_some(())?;
        Some(Meaning {
            function,
            reads: vec![table, self.row(1, Element::U32, ids)?],
            writes: Some(self.row(2, Element::F32, len)?),
        })
    }

    /// Arguments: weight, row, result, columns of the weight, its rows. Of the kernel that is not told these, each block has one.
    pub fn block_vector(&self, types: &str) -> Option<Meaning> {
        let blocks = BlockType::of_name(types.strip_suffix("_cuda").unwrap_or(types))?;
        let inner = self.integer(3)?;
        let columns = match self.arguments.count() {
            4 => u64::from(self.launch.grid[0]),
            _ => self.integer(4)?,
        };
        let row = self.view(1, Element::F32, by_rows(1, inner, inner))?;
        self.product(&row, blocks, columns, [0, 2])
    }

    /// The rows that a launch rounds, in front of a product.
    pub fn rounded(&self, entry: &KernelEntry, name: &str) -> Option<Rounded> {
        let [grid, block] = [self.launch.grid, self.launch.block].map(|of| of.map(u64::from));
        if entry.means == Means::LinkedRoundingOfMany {
            // Input, ids, blocks, columns, strides of three dimensions, padded columns, rows, channels.
            let [ids, blocks, inner, of_row, padded, rows, channels] = self.integers([1, 2, 3, 4, 7, 8, 9])?;
            let is_all = ids == 0 && grid[2] == 1 && inner == of_row && channels == 1 && grid[0] == rows;
            let rows = self.view(0, Element::F32, by_rows(rows, inner, inner))?;
            return is_all.then_some(Rounded { rows, blocks, padded });
        }
        if !matches!(entry.means, Means::Rounding | Means::LinkedRounding) {
            return None;
        }
        // Input, blocks, columns, padded columns; f32 unless the name says another type.
        let element = name.strip_prefix(entry.prefix).and_then(Element::of_name).unwrap_or(Element::F32);
        let [blocks, inner, padded] = self.integers([1, 2, 3])?;
        let rows = self.view(0, element, by_rows(grid[1] * block[1], inner, inner))?;
        Some(Rounded { rows, blocks, padded })
    }

    /// The product of rows that a launch before has rounded.
    pub fn product_of(&self, entry: &KernelEntry, name: &str, of: &Rounded) -> Option<Product> {
        if Meaningless::of(name).is_some() {
            return None;
        }
        let types = name.strip_prefix(entry.prefix);
        let complete = |meaning: Meaning| Product { meaning, incomplete: None };
        match entry.means {
            Means::BlockRows => self.block_rows(types?, of).map(complete),
            Means::BlockMatrix => self.block_matrix(types?, of).map(complete),
            Means::BlockExperts => self.block_experts(types?, of).map(complete),
            Means::LinkedRows => self.linked_rows(types?, of).map(complete),
            Means::LinkedExperts => self.linked_experts(name, of).map(complete),
            Means::LinkedMatrix => {
                Some(Product { meaning: self.linked_matrix(name, of)?, incomplete: Some(self.integer(4)?) })
            }
            _ => None,
        }
    }

    /// Does this launch add what the launch of a product has left of its last tiles? Arguments: ids, bounds, result, workspace, ...
    pub fn completes(&self, entry: &KernelEntry, product: &Product) -> bool {
        let result = product.incomplete.filter(|_| entry.means == Means::LinkedRest);
        result.is_some() && self.integer(2) == result
    }

    /// `q4_0_q8_1_cuda1`. Arguments: weight, blocks, result, columns of the weight, its rows, those of the blocks with the padding, those
    /// of the result.
    fn block_rows(&self, types: &str, of: &Rounded) -> Option<Meaning> {
        let (blocks, count) = types.split_once("_q8_1_cuda")?;
        let [of_blocks, inner, columns, padded, of_result] = self.integers([1, 3, 4, 5, 6])?;
        let is_of_these = of.is_of(of_blocks, inner, padded, count.parse().ok()?);
        (is_of_these && of_result == columns)
            .then(|| self.product(&of.rows, BlockType::of_name(blocks)?, columns, [0, 2]))?
    }

    /// `4_0`, behind the `q`. Arguments: weight, blocks, result, columns of the weight, its rows, rows of the result, columns with the
    /// padding, those of the result.
    fn block_matrix(&self, types: &str, of: &Rounded) -> Option<Meaning> {
        let [of_blocks, inner, columns, rows, padded, of_result] = self.integers([1, 3, 4, 5, 6, 7])?;
        let is_of_these = of.is_of(of_blocks, inner, padded, rows);
        let blocks = BlockType::of_name(&format!("q{types}"))?;
        (is_of_these && of_result == columns).then(|| self.product(&of.rows, blocks, columns, [0, 2]))?
    }

    /// `q4_k_f32_plain_cuda1`. Arguments: weight, blocks, result, columns of the weight, its rows, from one row's blocks to the next, from
    /// one row of the result to the next.
    fn linked_rows(&self, types: &str, of: &Rounded) -> Option<Meaning> {
        let (kind, count) = types.split_once("_plain_cuda")?;
        let (blocks, to) = kind.rsplit_once('_')?;
        let [of_blocks, inner, columns, of_row, of_result] = self.integers([1, 3, 4, 5, 6])?;
        let is_of_these = of.is_of(of_blocks, inner, of_row.checked_mul(32)?, count.parse().ok()?);
        let is_all = of_result == columns && Element::of_name(to)? == of.rows.element;
        (is_of_these && is_all).then(|| self.product(&of.rows, BlockType::of_name(blocks)?, columns, [0, 2]))?
    }

    /// Arguments: weight, blocks, ids, bounds, result, workspace, then integers: columns of the weight, its rows, rows of the result,
    /// blocks of a row of the weight, rows of blocks, from one row of the result to the next, those of channels and samples, of which
    /// there is one each.
    fn linked_matrix(&self, name: &str, of: &Rounded) -> Option<Meaning> {
        let template = name.split_once("mul_mat_qIL9ggml_type")?.1;
        let blocks = of_number(template.split_once('E')?.0.parse().ok()?)?;
        let [of_blocks, ids, inner, columns, rows, of_row] = self.integers([1, 2, 6, 7, 8, 9])?;
        let is_of_these = of.is_of(of_blocks, inner, of.padded, rows);
        let is_all = self.integers([2, 11, 13, 18])? == [ids, columns, 1, 1] && of.rows.element == Element::F32;
        if ids != 0 || !is_of_these || !is_all || of_row.checked_mul(blocks.elements())? != inner {
            return None;
        }
        self.product(&of.rows, blocks, columns, [0, 4])
    }

    fn product(&self, rows: &View, blocks: BlockType, columns: u64, [weight, result]: [usize; 2]) -> Option<Meaning> {
        let [of_rows, inner] = rows.dims[..] else { return None };
        let of_row = blocks.bytes_of_row(inner.len)?;
        let weight = self.view(weight, Element::U8, by_rows(columns, of_row, of_row))?;
        Some(Meaning {
            function: Function::QuantizedProduct(blocks),
            reads: vec![rows.clone(), weight],
            writes: Some(self.row(result, rows.element, of_rows.len.checked_mul(columns)?)?),
        })
    }
}

impl Rounded {
    /// Are these that number of rows and elements, in blocks at this address, with the padding?
    pub fn is_of(&self, blocks: u64, inner: u64, padded: u64, rows: u64) -> bool {
        let lens: Vec<u64> = self.rows.dims.iter().map(|dim| dim.len).collect();
        self.blocks == blocks && self.padded == padded && lens == [rows, inner]
    }
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
        15 => BlockType::Q8K,
        _ => return None,
    })
}
