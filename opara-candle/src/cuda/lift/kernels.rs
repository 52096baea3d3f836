//! What candle's kernels compute, by name and arguments.

use super::arguments::Arguments;
use crate::cuda::driver::KernelNode;
use crate::cuda::fuse::candle_kernel::CandleKernel;
use crate::cuda::fuse::dtype::Type;
use crate::cuda::fuse::fused_kernel::Operation;
use crate::trace::{Dim, Element, Function, Meaning, Rotary, Window};
use opara_plan::kernel_catalog::{FusedAs, KernelEntry};

impl Arguments<'_> {
    pub fn meaning(&self, name: &str) -> Option<Meaning> {
        if let Some(element) = name.strip_prefix("copy2d_").and_then(element) {
            return self.copy2d(element);
        }
        for (prefix, is_max) in [("max_pool2d_", true), ("avg_pool2d_", false)] {
            if let Some(element) = name.strip_prefix(prefix).and_then(element) {
                return self.pool(element, is_max);
            }
        }
        if let Some(element) = name.strip_prefix("const_set_").and_then(element) {
            return self.fill(element);
        }
        if let Some(element) = name.strip_prefix("upsample_nearest2d_").and_then(element) {
            return self.upsample_nearest(element);
        }
        for (prefix, planes) in [("conv_transpose1d_", 1), ("conv_transpose2d_", 2)] {
            if let Some(element) = name.strip_prefix(prefix).and_then(element) {
                return self.transposed_convolution(element, planes);
            }
        }
        if let Some(element) = name.strip_prefix("fast_sum_small_").and_then(element) {
            return self.small_sum(element);
        }
        if let Some((ids, element)) = name.strip_prefix("is_").and_then(two) {
            return self.index_select(ids, element);
        }
        if let Some(meaning) = self.of_places(name) {
            return Some(meaning);
        }
        if let Some((condition, element)) = name.strip_prefix("where_").and_then(two) {
            return self.select(condition, element);
        }
        for (prefix, kind) in [("rope_thd_", Rope::Thd), ("rope_i_", Rope::I), ("rope_", Rope::Halves)] {
            if let Some(element) = name.strip_prefix(prefix).and_then(element) {
                return self.rotary(kind, element);
            }
        }
        self.candle_kernel(name).or_else(|| self.element_wise(name)).or_else(|| self.reduction(name))
    }

    /// Element-wise kernels, and those on rows.
    fn candle_kernel(&self, name: &str) -> Option<Meaning> {
        let KernelNode { arguments, launch, .. } = self.kernel;
        let kernel = CandleKernel::of(name, arguments, launch, |word| self.table(word))?;
        let columns = kernel.columns.unwrap_or(0);
        let function = match kernel.operation {
            Operation::Cast => Function::Copy,
            Operation::ElementWise(name, 1) => Function::Unary(name.into()),
            Operation::ElementWise(name, _) => Function::Binary(name.into()),
            Operation::Affine(factor, summand) => Function::Affine(factor, summand),
            Operation::RowSum(_) => Function::RowSum(columns),
            Operation::RowMax => Function::RowMax(columns),
            Operation::RowMin => Function::RowMin(columns),
            Operation::Softmax => Function::Softmax(columns),
            Operation::LayerNorm(epsilon) => Function::LayerNorm(columns, epsilon),
            Operation::RmsNorm(epsilon) => Function::RmsNorm(columns, epsilon),
        };
        let from = of_type(kernel.from);
        let read = |&(word, view): &(usize, opara_plan::fusion::StridedView)| {
            let dims: Vec<Dim> = view.dims_and_strides().map(|(len, stride)| Dim { len, stride }).collect();
            let whole = vec![Dim { len: kernel.elements, stride: 1 }];
            self.view(word, from, if view.is_contiguous() { whole } else { dims })
        };
        let len = if kernel.operation.reduces() { kernel.elements / columns.max(1) } else { kernel.elements };
        Some(Meaning {
            function,
            reads: kernel.operands.iter().map(read).collect::<Option<_>>()?,
            writes: Some(self.view(kernel.result, of_type(kernel.to), vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Element-wise kernels that no fused kernel stands for: of integers, of more dimensions.
    /// Arguments: elements, dimensions, their table, operands, result.
    fn element_wise(&self, name: &str) -> Option<Meaning> {
        let entry = KernelEntry::of(name)?;
        let types = name.strip_prefix(entry.prefix)?;
        let of_one = |function| element(types).map(|element| (function, element, element, 1));
        let (function, from, to, operands) = match entry.fused_as? {
            FusedAs::Cast => two(types).map(|(from, to)| (Function::Copy, from, to, 1))?,
            FusedAs::Copy => of_one(Function::Copy)?,
            FusedAs::Unary(function) => of_one(Function::Unary(function.into()))?,
            FusedAs::Binary(function) => (Function::Binary(function.into()), element(types)?, element(types)?, 2),
            _ => return None,
        };
        // Only functions of floats can be computed in double precision; sums and products of integers are what they are.
        let is_known = operands == 2 || function == Function::Copy || from.is_float();
        if self.kernel.arguments.count() != 4 + operands || !is_known {
            return None;
        }
        let len = self.integer(0)?;
        let views = self.dims(1, operands, len)?.into_iter().enumerate();
        Some(Meaning {
            function,
            reads: views.map(|(at, dims)| self.view_of(3 + at, from, dims)).collect::<Option<_>>()?,
            writes: Some(self.view_of(3 + operands, to, vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Arguments: elements, dimensions of the ids, their table, ids, operand, result, then sizes: before, of the dimension, ids,
    /// behind. The operand lies in a row if the ids do.
    fn index_select(&self, of_ids: Element, element: Element) -> Option<Meaning> {
        let [left, from, ids, right] = [6, 7, 8, 9].map(|argument| self.integer(argument));
        let (left, from, ids, right) = (left?, from?, ids?, right?);
        let row = |len| vec![Dim { len, stride: 1 }];
        if of_ids.is_float() || self.dims(1, 1, ids)?.pop()? != row(ids) {
            return None;
        }
        let whole = row(left.checked_mul(from)?.checked_mul(right)?);
        let len = left.checked_mul(ids)?.checked_mul(right)?;
        let writes = Some(self.view_of(5, element, row(len))?);
        // Integers from the host that go on in equal steps: a view.
        let uploaded = self.offset(3).and_then(|word| self.uploaded(word));
        if let Some((first, step)) = uploaded.and_then(|bytes| progression(bytes, of_ids, ids, from)) {
            let dims = [(left, from * right), (ids, step * right), (right, 1)].map(|(len, stride)| Dim { len, stride });
            let mut view = self.view_of(4, element, dims.to_vec())?;
            view.first += first * right;
            return Some(Meaning { function: Function::Copy, reads: vec![view], writes });
        }
        Some(Meaning {
            function: Function::IndexSelect { left, from, right },
            reads: vec![self.view_of(4, element, whole)?, self.view_of(3, of_ids, row(ids))?],
            writes,
        })
    }

    /// Arguments: elements, dimensions, their table, condition, where it holds, where it does not, result.
    fn select(&self, condition: Element, element: Element) -> Option<Meaning> {
        let len = self.integer(0)?;
        let [of_condition, of_one, of_other] = <[Vec<Dim>; 3]>::try_from(self.dims(1, 3, len)?).ok()?;
        if condition.is_float() {
            return None;
        }
        let condition = self.view_of(3, condition, of_condition)?;
        let other = self.view_of(5, element, of_other)?;
        let writes = Some(self.view_of(6, element, vec![Dim { len, stride: 1 }])?);
        let (function, reads) = match self.number_of(4, element, &of_one) {
            Some(bits) => (Function::MaskedFill(bits), vec![condition, other]),
            None => (Function::Where, vec![condition, self.view_of(4, element, of_one)?, other]),
        };
        Some(Meaning { function, reads, writes })
    }

    /// The bits of the number that all elements of an argument are, if the host has uploaded it.
    fn number_of(&self, argument: usize, element: Element, dims: &[Dim]) -> Option<u64> {
        if dims.iter().any(|dim| dim.len != 1 && dim.stride != 0) {
            return None;
        }
        self.uploaded(self.offset(argument)?)?.get(..element.bytes() as usize).map(bits)
    }

    /// Arguments: operand, cosines, sines, result, then sizes.
    fn rotary(&self, kind: Rope, element: Element) -> Option<Meaning> {
        let sizes: Vec<u64> = (4..self.kernel.arguments.count()).map(|at| self.integer(at)).collect::<Option<_>>()?;
        // Elements from one batch to the next that has angles of its own.
        let (of, stride) = match (kind, &sizes[..]) {
            (Rope::Thd, &[outer, tokens, heads, size, stride]) => ((outer, tokens, heads, size), stride),
            (Rope::Halves, &[outer, all, size, stride]) => ((outer, all.checked_div(size)?, 1, size), stride),
            // The size of a head is not told: tokens and heads are of one pair each then.
            (Rope::I, &[outer, all, stride]) => ((outer, all / 2, 1, 2), stride),
            _ => return None,
        };
        let (outer, tokens, heads, size) = of;
        let len = outer.checked_mul(tokens)?.checked_mul(heads)?.checked_mul(size)?;
        let angles = if stride == 0 { 0 } else { len.checked_div(stride)? };
        let is_sound = size >= 2 && size % 2 == 0 && (stride == 0 || angles * stride == len);
        if !is_sound || outer.checked_rem(angles.max(1)) != Some(0) {
            return None;
        }
        let row = |len| vec![Dim { len, stride: 1 }];
        let of_angles = angles.max(1) * tokens * (size / 2);
        let function =
            Function::Rotary(Rotary { outer, tokens, heads, size, is_of_neighbours: kind == Rope::I, angles });
        Some(Meaning {
            function,
            reads: vec![
                self.view_of(0, element, row(len))?,
                self.view_of(1, element, row(of_angles))?,
                self.view_of(2, element, row(of_angles))?,
            ],
            writes: Some(self.view_of(3, element, row(len))?),
        })
    }

    /// Arguments: source, target, rows, columns, source stride, target stride.
    fn copy2d(&self, element: Element) -> Option<Meaning> {
        let [rows, columns, from, to] = [2, 3, 4, 5].map(|argument| self.integer(argument));
        let dims = |stride| Some(vec![Dim { len: rows?, stride }, Dim { len: columns?, stride: 1 }]);
        Some(Meaning {
            function: Function::Copy,
            reads: vec![self.view_of(0, element, dims(from?)?)?],
            writes: Some(self.view_of(1, element, dims(to?)?)?),
        })
    }

    /// Arguments: elements, dimensions, their table, element, result. With a table the result has gaps.
    fn fill(&self, element: Element) -> Option<Meaning> {
        let (len, table) = (self.integer(0)?, self.integer(2)?);
        let (_, bytes) = self.kernel.arguments.argument(3)?;
        if table != 0 || bytes.len() as u64 != element.bytes() {
            return None;
        }
        Some(Meaning {
            function: Function::Fill(bits(bytes)),
            reads: Vec::new(),
            writes: Some(self.view_of(4, element, vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Arguments: elements, rows and columns of a window, and from one to the next, dimensions and strides, operand, result.
    fn pool(&self, element: Element, is_max: bool) -> Option<Meaning> {
        let [rows, columns, down, right] = [1, 2, 3, 4].map(|argument| self.integer(argument));
        let table = self.table(self.kernel.arguments.argument(5)?.0)?;
        let (lens, strides) = (table.get(..4)?, table.get(4..8)?);
        let dims = lens.iter().zip(strides).map(|(&len, &stride)| Dim { len, stride }).collect();
        let window =
            Window { kernel: [rows?, columns?], padding: [0; 2], stride: [down?, right?], dilation: [1; 2], groups: 1 };
        let along = |size: u64, i: usize| Some(size.checked_sub(window.kernel[i])?.checked_div(window.stride[i])? + 1);
        let len = lens[0] * lens[1] * along(lens[2], 0)? * along(lens[3], 1)?;
        Some(Meaning {
            function: if is_max { Function::MaxPool(window) } else { Function::MeanPool(window) },
            reads: vec![self.view_of(6, element, dims)?],
            writes: Some(self.view_of(7, element, vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Arguments: rows and columns of the result, how many of the operand are one of those, dimensions and strides, operand, result.
    fn upsample_nearest(&self, element: Element) -> Option<Meaning> {
        let (rows, columns) = (self.integer(0)?, self.integer(1)?);
        let table = self.table(self.offset(4)?)?;
        let (lens, strides) = (table.get(..4)?, table.get(4..8)?);
        let scale = |from: u64, to: u64| (from as f64 / to as f64).to_bits();
        if [self.integer(2)?, self.integer(3)?] != [scale(lens[2], rows), scale(lens[3], columns)] {
            return None;
        }
        let dims = lens.iter().zip(strides).map(|(&len, &stride)| Dim { len, stride }).collect();
        let len = lens[0].checked_mul(lens[1])?.checked_mul(rows)?.checked_mul(columns)?;
        Some(Meaning {
            function: Function::UpsampleNearest([rows, columns]),
            reads: vec![self.view_of(5, element, dims)?],
            writes: Some(self.view_of(6, element, vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Arguments: elements, lengths of the result from the innermost on, stride, padding, output padding, dilation, dimensions and
    /// strides of the operand, then of the weight, operand, weight, result. Of one dimension, it is one of columns of one element.
    fn transposed_convolution(&self, element: Element, planes: usize) -> Option<Meaning> {
        let [stride, padding, output_padding, dilation] = [1, 2, 3, 4].map(|at| self.integer(planes + at));
        let table = self.table(self.offset(planes + 5)?)?;
        let rank = 2 + planes;
        let dims = |at: usize| -> Option<Vec<Dim>> {
            let (lens, strides) =
                (table.get(at * rank..(at + 1) * rank)?, table.get((at + 1) * rank..(at + 2) * rank)?);
            let dims = lens.iter().zip(strides).map(|(&len, &stride)| Dim { len, stride });
            Some(dims.chain([Dim { len: 1, stride: 1 }]).take(4).collect())
        };
        let (x, weight) = (dims(0)?, dims(2)?);
        let pair = |of: Option<u64>, other: u64| Some([of?, if planes == 2 { of? } else { other }]);
        let window = Window {
            kernel: [weight[2].len, weight[3].len],
            padding: pair(padding, 0)?,
            stride: pair(stride, 1)?,
            dilation: pair(dilation, 1)?,
            groups: 1,
        };
        let output_padding = pair(output_padding, 0)?;
        let [rows, columns] = window.transposed([x[2].len, x[3].len], output_padding)?;
        let told = if planes == 2 { [self.integer(2)?, self.integer(1)?] } else { [self.integer(1)?, 1] };
        let len = x[0].len.checked_mul(weight[1].len)?.checked_mul(rows.checked_mul(columns)?)?;
        if told != [rows, columns] || x[1].len != weight[0].len || !element.is_float() {
            return None;
        }
        Some(Meaning {
            function: Function::TransposedConvolution { window, output_padding },
            reads: vec![self.view_of(planes + 6, element, x)?, self.view_of(planes + 7, element, weight)?],
            writes: Some(self.view_of(planes + 8, element, vec![Dim { len, stride: 1 }])?),
        })
    }

    /// Reductions of rows that are too long for a fused kernel, or lie in no way that it reads. Arguments: elements, those of a row,
    /// dimensions, their table, operand, result.
    fn reduction(&self, name: &str) -> Option<Meaning> {
        let (columns, len) = (self.integer(1)?, self.integer(0)?);
        let (function, types) = [
            ("fast_sum_", Function::RowSum(columns)),
            ("fast_max_", Function::RowMax(columns)),
            ("fast_min_", Function::RowMin(columns)),
        ]
        .into_iter()
        .find_map(|(prefix, function)| Some((function, name.strip_prefix(prefix)?)))?;
        let element = element(types).filter(|element| element.is_float())?;
        let rows = len.checked_div(columns).filter(|rows| rows * columns == len)?;
        if self.kernel.arguments.count() != 6 || self.kernel.launch.grid.map(u64::from) != [rows, 1, 1] {
            return None;
        }
        Some(Meaning {
            function,
            reads: vec![self.view_of(4, element, self.dims(2, 1, len)?.pop()?)?],
            writes: Some(self.view_of(5, element, vec![Dim { len: rows, stride: 1 }])?),
        })
    }

    /// Arguments: sums, elements of each, dimensions, their table, operand, result.
    fn small_sum(&self, element: Element) -> Option<Meaning> {
        let (sums, columns) = (self.integer(0)?, self.integer(1)?);
        let len = sums.checked_mul(columns).filter(|&len| len > 0)?;
        Some(Meaning {
            function: Function::RowSum(columns),
            reads: vec![self.view_of(4, element, self.dims(2, 1, len)?.pop()?)?],
            writes: Some(self.view_of(5, element, vec![Dim { len: sums, stride: 1 }])?),
        })
    }
}

/// The type that a kernel's name ends in.
pub(super) fn element(name: &str) -> Option<Element> {
    match name {
        "f32" => Some(Element::F32),
        "f16" => Some(Element::F16),
        "bf16" => Some(Element::Bf16),
        "u8" => Some(Element::U8),
        "u32" => Some(Element::U32),
        "i64" => Some(Element::I64),
        _ => None,
    }
}

fn of_type(of: Type) -> Element {
    match of {
        Type::F32 => Element::F32,
        Type::F16 => Element::F16,
        Type::Bf16 => Element::Bf16,
    }
}

/// The bits of a number of at most eight bytes.
fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Two types, as in `u32_f16`.
pub(super) fn two(names: &str) -> Option<(Element, Element)> {
    let (one, other) = names.split_once('_')?;
    Some((element(one)?, element(other)?))
}

/// candle's kernels for rotary embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rope {
    /// Tokens outside heads.
    Thd,
    /// Of neighbours.
    I,
    /// Of elements half a head apart.
    Halves,
}

/// The first of so many integers, and the step from one to the next, if that is always the same and none is beyond `from`.
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
