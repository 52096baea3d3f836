//! candle's kernels on rows: reductions, sorts, softmax, norms and rotary embeddings.

use super::arguments::Arguments;
use crate::trace::{Element, Function, Meaning, Order, Rotary};
use opara_plan::kernel_catalog::Means;

impl Arguments<'_> {
    /// Arguments: elements, those of a row, dimensions, their table, operand, result; a block has a row.
    pub fn reduction(&self, function: fn(u64) -> Function, (from, to): (Element, Element)) -> Option<Meaning> {
        let [len, columns] = self.integers([0, 1])?;
        let rows = len.checked_div(columns).filter(|rows| rows * columns == len)?;
        if self.launch.grid.map(u64::from) != [rows, 1, 1] {
            return None;
        }
        self.reduced(function(columns), (from, to), [len, rows])
    }

    /// Arguments: sums, elements of each, dimensions, their table, operand, result.
    pub fn few_sum(&self, element: Element) -> Option<Meaning> {
        let [sums, columns] = self.integers([0, 1])?;
        let len = sums.checked_mul(columns).filter(|&len| len > 0)?;
        self.reduced(Function::RowSum(columns), (element, element), [len, sums])
    }

    fn reduced(&self, function: Function, (from, to): (Element, Element), [len, rows]: [u64; 2]) -> Option<Meaning> {
        let operand = self.view(4, from, self.dims(2, 1, len)?.pop()?)?;
        Some(Meaning { function, reads: vec![operand], writes: Some(self.row(5, to, rows)?) })
    }

    /// Arguments: rows, places, elements of a row, those with padding; a block has a row.
    pub fn sort(&self, order: Order, element: Element) -> Option<Meaning> {
        let columns = self.integer(2)?;
        let len = u64::from(self.launch.grid[0]).checked_mul(columns)?;
        Some(Meaning {
            function: Function::ArgSort(columns, order),
            reads: vec![self.row(0, element, len)?],
            writes: Some(self.row(1, Element::U32, len)?),
        })
    }

    /// Arguments: operand, result, elements of a row; a block's column of threads has one.
    pub fn softmax(&self, element: Element) -> Option<Meaning> {
        let columns = self.integer(2)?;
        let rows = u64::from(self.launch.grid[0]) * u64::from(self.launch.block[0]);
        self.of_rows(Function::Softmax(columns), element, [rows, columns], &[])
    }

    /// Arguments: operand, result, weight, bias, elements of a row, threads, epsilon.
    pub fn layer_norm(&self, element: Element) -> Option<Meaning> {
        let (columns, epsilon) = (self.integer(4)?, self.number(6, Element::F32)?);
        self.of_rows(Function::LayerNorm(columns, epsilon as f32), element, [self.norms(), columns], &[2, 3])
    }

    /// Arguments: operand, result, weight, elements of a row, threads, epsilon.
    pub fn rms_norm(&self, element: Element) -> Option<Meaning> {
        let (columns, epsilon) = (self.integer(3)?, self.number(5, Element::F32)?);
        self.of_rows(Function::RmsNorm(columns, epsilon as f32), element, [self.norms(), columns], &[2])
    }

    /// Rows of a norm: a block's row of threads has one.
    fn norms(&self) -> u64 {
        u64::from(self.launch.grid[0]) * u64::from(self.launch.block[1])
    }

    /// Arguments: operand, result, and those of one number a column.
    fn of_rows(
        &self,
        function: Function,
        element: Element,
        [rows, columns]: [u64; 2],
        vectors: &[usize],
    ) -> Option<Meaning> {
        let len = rows.checked_mul(columns)?;
        let vectors = vectors.iter().map(|&at| self.row(at, element, columns));
        let reads = std::iter::once(self.row(0, element, len)).chain(vectors).collect::<Option<_>>()?;
        Some(Meaning { function, reads, writes: Some(self.row(1, element, len)?) })
    }

    /// Arguments: operand, cosines, sines, result, then sizes.
    pub fn rotary(&self, means: Means, element: Element) -> Option<Meaning> {
        let sizes: Vec<u64> = (4..self.arguments.count()).map(|at| self.integer(at)).collect::<Option<_>>()?;
        // Elements from one batch to the next that has angles of its own.
        let (of, stride) = match (means, &sizes[..]) {
            (Means::RotaryByTokens, &[outer, tokens, heads, size, stride]) => ((outer, tokens, heads, size), stride),
            (Means::Rotary, &[outer, all, size, stride]) => ((outer, all.checked_div(size)?, 1, size), stride),
            // The size of a head is not told: tokens and heads are of one pair each then.
            (Means::RotaryOfNeighbours, &[outer, all, stride]) => ((outer, all / 2, 1, 2), stride),
            _ => return None,
        };
        let (outer, tokens, heads, size) = of;
        let len = outer.checked_mul(tokens)?.checked_mul(heads)?.checked_mul(size)?;
        let angles = if stride == 0 { 0 } else { len.checked_div(stride)? };
        let is_sound = size >= 2 && size % 2 == 0 && (stride == 0 || angles * stride == len);
        if !is_sound || outer.checked_rem(angles.max(1)) != Some(0) {
            return None;
        }
        let of_angles = angles.max(1) * tokens * (size / 2);
        let is_of_neighbours = means == Means::RotaryOfNeighbours;
        let function = Function::Rotary(Rotary { outer, tokens, heads, size, is_of_neighbours, angles });
        let reads = [(0, len), (1, of_angles), (2, of_angles)].map(|(at, len)| self.row(at, element, len));
        Some(Meaning {
            function,
            reads: reads.into_iter().collect::<Option<_>>()?,
            writes: Some(self.row(3, element, len)?),
        })
    }
}
