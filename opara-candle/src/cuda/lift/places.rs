//! candle's kernels that read or write places that integers name.

use super::arguments::Arguments;
use crate::trace::{Dim, Element, Function, Indexed, Meaning};

impl Arguments<'_> {
    /// Arguments: elements, dimensions of the ids, their table, ids, operand, result, then sizes: before, of the dimension, ids,
    /// behind. The operand lies in a row if the ids do.
    pub fn index_select(&self, (of_ids, element): (Element, Element)) -> Option<Meaning> {
        let [left, from, ids, right] = self.integers([6, 7, 8, 9])?;
        let row = vec![Dim { len: ids, stride: 1 }];
        if !of_ids.is_integer() || self.dims(1, 1, ids)?.pop()? != row {
            return None;
        }
        let whole = left.checked_mul(from)?.checked_mul(right)?;
        let len = left.checked_mul(ids)?.checked_mul(right)?;
        let writes = Some(self.row(5, element, len)?);
        // Integers from the host that go on in equal steps: a view.
        let uploaded = self.offset(3).and_then(|word| self.uploaded(word));
        if let Some((first, step)) = uploaded.and_then(|bytes| progression(bytes, of_ids, ids, from)) {
            let dims = [(left, from * right), (ids, step * right), (right, 1)].map(|(len, stride)| Dim { len, stride });
            let mut view = self.view(4, element, dims.to_vec())?;
            view.first += first * right;
            return Some(Meaning { function: Function::Copy, reads: vec![view], writes });
        }
        Some(Meaning {
            function: Function::IndexSelect { left, from, right },
            reads: vec![self.row(4, element, whole)?, self.row(3, of_ids, ids)?],
            writes,
        })
    }

    /// Arguments: elements of the result, ids, input, result, then sizes: before, of the input's dimension, of the ids', behind.
    pub fn gather(&self, (of_ids, element): (Element, Element)) -> Option<Meaning> {
        let shape = self.indexed(4)?;
        let [from, to] = lens(&shape)?;
        (of_ids.is_integer() && self.integer(0)? == to).then_some(())?;
        Some(Meaning {
            function: Function::Gather(shape),
            reads: vec![self.row(2, element, from)?, self.row(1, of_ids, to)?],
            writes: Some(self.row(3, element, to)?),
        })
    }

    /// Arguments at these places: ids, input, and the result, which holds what is added to; sizes from `at` on: before, of the input's
    /// dimension, of the result's, behind.
    pub fn put(
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
        if !of_ids.is_integer() || is_of_dimension && count != shape.from {
            return None;
        }
        let result = self.row(to, element, of_result)?;
        Some(Meaning {
            function: function(shape),
            reads: vec![result.clone(), self.row(ids, of_ids, count)?, self.row(from, element, of_input)?],
            writes: Some(result),
        })
    }

    /// Sizes: before, of the dimension in the input, in the result, behind.
    fn indexed(&self, at: usize) -> Option<Indexed> {
        let [left, from, to, right] = self.integers([at, at + 1, at + 2, at + 3])?;
        Some(Indexed { left, from, to, right })
    }
}

/// Elements of what is read, and of what is written.
fn lens(Indexed { left, from, to, right }: &Indexed) -> Option<[u64; 2]> {
    let around = left.checked_mul(*right)?;
    Some([around.checked_mul(*from)?, around.checked_mul(*to)?])
}

/// The first of a number of integers, and the step from one to the next, if that is always the same and none is beyond `from`.
fn progression(bytes: &[u8], element: Element, count: u64, from: u64) -> Option<(u64, u64)> {
    let size = element.bytes() as usize;
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let ids: Vec<u64> = bytes.chunks_exact(size).take(count as usize).map(number).collect();
    let (first, step) = match ids[..] {
        [one] => (one, 1),
        [one, two, ..] => (one, two.checked_sub(one).filter(|&step| step > 0)?),
        [] => return None,
    };
    let is_even = ids.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(step));
    (ids.len() as u64 == count && is_even && ids.iter().all(|&id| id < from)).then_some((first, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    #[test]
    fn equal_steps_are_a_progression() {
        let of = |ids: &[u32]| progression(&bytes(ids), Element::U32, ids.len() as u64, 64);
        assert_eq!(of(&[1, 3, 5, 7]), Some((1, 2)));
        assert_eq!(of(&[9]), Some((9, 1)));
        for other in [&[][..], &[3, 2, 1], &[0, 1, 3], &[5, 5], &[62, 64]] {
            assert_eq!(of(other), None, "{other:?}");
        }
        assert_eq!(progression(&bytes(&[1, 2]), Element::U32, 3, 64), None, "fewer than there should be");
        assert_eq!(progression(&7i64.to_le_bytes(), Element::I64, 1, 8), Some((7, 1)));
    }
}
