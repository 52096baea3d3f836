//! candle's kernels that compare, sort, and read or write places that integers name.

use super::arguments::Arguments;
use super::kernels::{element, two};
use crate::trace::{Dim, Element, Function, Indexed, Meaning, Order, View};

/// candle's names of comparisons.
const COMPARISONS: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];

impl Arguments<'_> {
    /// What a kernel of this name computes that is one of these.
    pub fn of_places(&self, name: &str) -> Option<Meaning> {
        let (kind, types) = name.split_once('_')?;
        if COMPARISONS.contains(&kind) {
            return self.comparison(kind, element(types)?);
        }
        match kind {
            "gather" => self.gather(two(types)?),
            "asort" => self.sort(types),
            "fast" => self.extreme(types),
            _ => None,
        }
    }

    /// What a kernel of this name computes that adds to what its result holds, or leaves a part of that.
    pub fn added(&self, name: &str) -> Option<Meaning> {
        let (kind, types) = name.split_once('_')?;
        match kind {
            // Ids, how many there are, input, result, sizes.
            "ia" => self.put(two(types)?, [0, 2, 3], 4, Function::IndexAdd),
            // Ids, input, result, sizes.
            "sa" => self.put(two(types)?, [0, 1, 2], 3, Function::ScatterAdd),
            "s" => self.put(two(types)?, [0, 1, 2], 3, Function::Scatter),
            _ => None,
        }
    }

    /// Arguments: elements, dimensions, their table, operands, result.
    fn comparison(&self, name: &str, element: Element) -> Option<Meaning> {
        let len = self.integer(0)?;
        let views = self.dims(1, 2, len)?.into_iter().enumerate();
        Some(Meaning {
            function: Function::Binary(name.into()),
            reads: views.map(|(at, dims)| self.view_of(3 + at, element, dims)).collect::<Option<_>>()?,
            writes: Some(self.row(5, Element::U8, len)?),
        })
    }

    /// Arguments: elements of the result, ids, input, result, then sizes: before, of the input's dimension, of the ids', behind.
    fn gather(&self, (of_ids, element): (Element, Element)) -> Option<Meaning> {
        let shape = self.indexed(4)?;
        let [from, to] = lens(&shape)?;
        (!of_ids.is_float() && self.integer(0)? == to).then_some(())?;
        Some(Meaning {
            function: Function::Gather(shape),
            reads: vec![self.row(2, element, from)?, self.row(1, of_ids, to)?],
            writes: Some(self.row(3, element, to)?),
        })
    }

    /// Arguments at these places: ids, input, and the result, which holds what is added to; sizes from `at` on: before, of the input's
    /// dimension, of the result's, behind.
    fn put(
        &self,
        (of_ids, element): (Element, Element),
        [ids, from, to]: [usize; 3],
        at: usize,
        function: fn(Indexed) -> Function,
    ) -> Option<Meaning> {
        let shape = self.indexed(at)?;
        let [of_input, of_result] = lens(&shape)?;
        // Of an index add, the ids are those of the dimension alone.
        let is_of_dimension = matches!(function(shape), Function::IndexAdd(_));
        let count = if is_of_dimension { self.integer(1)? } else { of_input };
        if of_ids.is_float() || is_of_dimension && count != shape.from {
            return None;
        }
        let result = self.row(to, element, of_result)?;
        Some(Meaning {
            function: function(shape),
            reads: vec![result.clone(), self.row(ids, of_ids, count)?, self.row(from, element, of_input)?],
            writes: Some(result),
        })
    }

    /// `asc_f32`. Arguments: rows, places, elements of a row, those with padding; a block has a row.
    fn sort(&self, types: &str) -> Option<Meaning> {
        let (order, of) = types.split_once('_')?;
        let order = match order {
            "asc" => Order::Ascending,
            "desc" => Order::Descending,
            _ => return None,
        };
        let columns = self.integer(2)?;
        let len = u64::from(self.kernel.launch.grid[0]).checked_mul(columns)?;
        Some(Meaning {
            function: Function::ArgSort(columns, order),
            reads: vec![self.row(0, element(of)?, len)?],
            writes: Some(self.row(1, Element::U32, len)?),
        })
    }

    /// `argmax_f32`. Arguments: elements, those of a row, dimensions, their table, operand, places; a block has a row.
    fn extreme(&self, types: &str) -> Option<Meaning> {
        let (len, columns) = (self.integer(0)?, self.integer(1)?);
        let (kind, of) = types.split_once('_')?;
        let function = match kind {
            "argmax" => Function::ArgMax(columns),
            "argmin" => Function::ArgMin(columns),
            _ => return None,
        };
        let rows = len.checked_div(columns).filter(|rows| rows * columns == len)?;
        if self.kernel.launch.grid.map(u64::from) != [rows, 1, 1] {
            return None;
        }
        let operand = self.view_of(4, element(of)?, self.dims(2, 1, len)?.pop()?)?;
        Some(Meaning { function, reads: vec![operand], writes: Some(self.row(5, Element::U32, rows)?) })
    }

    /// Sizes: before, of the dimension in the input, in the result, behind.
    fn indexed(&self, at: usize) -> Option<Indexed> {
        let [left, from, to, right] = [0, 1, 2, 3].map(|size| self.integer(at + size));
        Some(Indexed { left: left?, from: from?, to: to?, right: right? })
    }

    /// So many elements in a row.
    fn row(&self, argument: usize, element: Element, len: u64) -> Option<View> {
        self.view_of(argument, element, vec![Dim { len, stride: 1 }])
    }
}

/// Elements of what is read, and of what is written.
fn lens(Indexed { left, from, to, right }: &Indexed) -> Option<[u64; 2]> {
    let around = left.checked_mul(*right)?;
    Some([around.checked_mul(*from)?, around.checked_mul(*to)?])
}
