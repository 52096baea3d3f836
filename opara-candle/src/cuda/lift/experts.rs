//! candle's kernels of mixtures of experts: rows times the weights of their experts, and how many rows each expert has.

use super::arguments::{by_rows, Arguments};
use super::quantized::Rounded;
use crate::trace::{BlockType, Element, Experts, Function, Meaning, Named, View};
use opara_plan::kernel_catalog::Means;

/// Arguments of a product of rows with their experts' weights.
struct Places {
    weights: usize,
    /// The experts, or the rows and then their experts or the bounds of those.
    names: Vec<usize>,
    factors: Option<usize>,
    result: usize,
}

impl Arguments<'_> {
    /// `q4k_q8_1`. Arguments: weights, blocks, experts, result, rows of a weight, its columns, items, experts of an item, columns with the
    /// padding, rows of an item, of which there is one or one for each expert.
    pub fn block_experts(&self, types: &str, of: &Rounded) -> Option<Meaning> {
        let blocks = types.strip_suffix("_q8_1")?;
        let blocks = BlockType::ALL.into_iter().find(|of| of.name().replace('_', "") == blocks)?;
        let [of_blocks, columns, inner, items, each, padded, of_item] = self.integers([1, 4, 5, 6, 7, 8, 9])?;
        let rows = items.checked_mul(each)?;
        if !of.is_of(of_blocks, inner, padded, items.checked_mul(of_item)?) {
            return None;
        }
        let experts = self.reach(0)?.checked_div(blocks.bytes_of_row(inner)?.checked_mul(columns)?)?;
        let shared = each.checked_div(of_item)?;
        let (blocks, named) = (Some(blocks), Named::ByRow);
        let product = Experts { experts, rows, shared, inner, columns, blocks, named, has_factors: false };
        let places = Places { weights: 0, names: vec![2], factors: None, result: 3 };
        self.expert_product(product, of.rows.clone(), Element::F32, places)
    }

    /// Arguments: weights, blocks, rows in order, their experts, factors or null, result, experts, those of a row, rows, columns of the
    /// result, those of a weight, the same with the padding.
    pub fn linked_experts(&self, name: &str, of: &Rounded) -> Option<Meaning> {
        let product = self.sizes(Named::InOrder, Some(block_of_template(name)?))?;
        let Experts { rows, shared, inner, .. } = product;
        let [of_blocks, padded] = self.integers([1, 11])?;
        let is_of_these = of.is_of(of_blocks, inner, padded, rows.checked_div(shared)?);
        let places = Places { weights: 0, names: vec![2, 3], factors: product.has_factors.then_some(4), result: 5 };
        is_of_these.then(|| self.expert_product(product, of.rows.clone(), Element::F32, places))?
    }

    /// Arguments: operand, weights, rows in order, the bounds of their experts, and the others as before.
    pub fn expert_rows(&self, means: Means, name: &str) -> Option<Meaning> {
        let element = if name.contains("bfloat16") { Element::Bf16 } else { Element::F16 };
        let is_of_blocks = means == Means::LinkedExpertBlocks;
        let blocks = if is_of_blocks { Some(block_of_template(name)?) } else { None };
        let product = self.sizes(Named::ByBounds, blocks)?;
        let Experts { rows, shared, inner, .. } = product;
        let operand = self.view(0, element, by_rows(rows.checked_div(shared)?, inner, inner))?;
        let places = Places { weights: 1, names: vec![2, 3], factors: product.has_factors.then_some(4), result: 5 };
        self.expert_product(product, operand, if is_of_blocks { Element::F32 } else { element }, places)
    }

    /// The sizes of kernels in C++.
    fn sizes(&self, named: Named, blocks: Option<BlockType>) -> Option<Experts> {
        let [factors, experts, each, rows, columns, inner] = self.integers([4, 6, 7, 8, 9, 10])?;
        let has_factors = factors != 0;
        let shared = if has_factors { 1 } else { each };
        Some(Experts { experts, rows, shared, inner, columns, blocks, named, has_factors })
    }

    fn expert_product(&self, of: Experts, operand: View, to: Element, places: Places) -> Option<Meaning> {
        let Experts { experts, rows, inner, columns, blocks, named, .. } = of;
        let (element, of_row) = match blocks {
            Some(blocks) => (Element::U8, blocks.bytes_of_row(inner)?),
            None => (operand.element, inner),
        };
        let of_expert = columns.checked_mul(of_row)?;
        let weights = self.row(places.weights, element, experts.checked_mul(of_expert)?)?;
        let mut reads = vec![operand, weights];
        for (at, &names) in places.names.iter().enumerate() {
            let is_bounds = at == 1 && named == Named::ByBounds;
            reads.push(self.row(names, Element::U32, if is_bounds { experts + 1 } else { rows })?);
        }
        if let Some(factors) = places.factors {
            reads.push(self.row(factors, Element::F32, rows)?);
        }
        let len = rows.checked_mul(columns)?;
        Some(Meaning { function: Function::ExpertProduct(of), reads, writes: Some(self.row(places.result, to, len)?) })
    }

    /// Arguments: experts of rows, counts, rows.
    pub fn count(&self) -> Option<Meaning> {
        let counts = self.row(1, Element::U32, self.reach(1)? / Element::U32.bytes())?;
        let experts = self.row(0, Element::U32, self.integer(2)?)?;
        Some(Meaning { function: Function::Count, reads: vec![counts.clone(), experts], writes: Some(counts) })
    }

    /// Arguments: counts, bounds, experts.
    pub fn bounds(&self) -> Option<Meaning> {
        let experts = self.integer(2)?;
        Some(Meaning {
            function: Function::Bounds,
            reads: vec![self.row(0, Element::U32, experts)?],
            writes: Some(self.row(1, Element::U32, experts + 1)?),
        })
    }
}

/// The type of blocks that a template has as an argument, as in `10block_q4_K`.
fn block_of_template(name: &str) -> Option<BlockType> {
    let (_, behind) = name.split_once("block_q")?;
    BlockType::of_name(&format!("q{}", behind.get(..3)?))
}
