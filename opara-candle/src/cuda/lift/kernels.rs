//! What candle's kernels compute, by their rows in the catalogue and their arguments.

use super::arguments::Arguments;
use crate::trace::{Element, Function, Meaning, Order, View};
use opara_plan::kernel_catalog::{KernelEntry, Meaningless, Means};

impl Arguments<'_> {
    /// What a launch of the kernel of this name computes; `None` also where it is launched in a way that has no meaning.
    pub fn meaning(&self, entry: &KernelEntry, name: &str) -> Option<Meaning> {
        if Meaningless::of(name).is_some() {
            return None;
        }
        // Of kernels in C++ the name ends in no types.
        let types = name.strip_prefix(entry.prefix).unwrap_or_default();
        let one = || Element::of_name(types);
        let two = || Element::two_of_names(types);
        match entry.means {
            Means::Cast => self.map(Function::Copy, two()?, 3, 1),
            Means::Copy => self.map(Function::Copy, (one()?, one()?), 3, 1),
            Means::CopyRows => self.copy_rows(one()?),
            Means::Fill => self.fill(one()?),
            Means::FillView => self.fill_view(one()?),
            Means::Unary(function) => self.map(Function::Unary(function.into()), (one()?, one()?), 3, 1),
            Means::Binary(function) => self.map(Function::Binary(function.into()), (one()?, one()?), 3, 2),
            Means::Comparison(function) => self.map(Function::Binary(function.into()), (one()?, Element::U8), 3, 2),
            Means::Affine => self.affine(one()?),
            Means::Power => self.map(Function::Power(self.number(3, one()?)?), (one()?, one()?), 4, 1),
            Means::Elu => self.map(Function::Elu(self.number(3, one()?)?), (one()?, one()?), 4, 1),
            Means::Where => self.select(two()?),
            Means::RowSum => self.reduction(Function::RowSum, (one()?, one()?)),
            Means::FewSum => self.few_sum(one()?),
            Means::RowMax => self.reduction(Function::RowMax, (one()?, one()?)),
            Means::RowMin => self.reduction(Function::RowMin, (one()?, one()?)),
            Means::ArgMax => self.reduction(Function::ArgMax, (one()?, Element::U32)),
            Means::ArgMin => self.reduction(Function::ArgMin, (one()?, Element::U32)),
            Means::SortUp => self.sort(Order::Ascending, one()?),
            Means::SortDown => self.sort(Order::Descending, one()?),
            Means::Softmax => self.softmax(one()?),
            Means::LayerNorm => self.layer_norm(one()?),
            Means::RmsNorm => self.rms_norm(one()?),
            Means::Rotary | Means::RotaryOfNeighbours | Means::RotaryByTokens => self.rotary(entry.means, one()?),
            Means::IndexSelect => self.index_select(two()?),
            Means::Gather => self.gather(two()?),
            Means::IndexAdd => self.put(two()?, [0, 2, 3], 4, Function::IndexAdd),
            Means::ScatterAdd => self.put(two()?, [0, 1, 2], 3, Function::ScatterAdd),
            Means::Scatter => self.put(two()?, [0, 1, 2], 3, Function::Scatter),
            Means::Convolution(dims) => self.convolution(one()?, dims),
            Means::TransposedConvolution(dims) => self.transposed_convolution(one()?, dims),
            Means::Unfold(dims) => self.unfold(one()?, dims),
            Means::Fold => self.fold(one()?),
            Means::MaxPool => self.pool(one()?, Function::MaxPool),
            Means::MeanPool => self.pool(one()?, Function::MeanPool),
            Means::UpsampleNearest => self.upsample_nearest(one()?),
            Means::UpsampleBilinear => self.upsample_bilinear(one()?),
            Means::Dequantize => self.dequantize(name),
            Means::TableRows => self.table_rows(types),
            Means::BlockVector => self.block_vector(types),
            Means::LinkedExpertRows | Means::LinkedExpertBlocks => self.expert_rows(entry.means, name),
            Means::Count => self.count(),
            Means::Bounds => self.bounds(),
            Means::Attention => self.attention(),
            // Launches that belong together have one meaning.
            Means::Rounding
            | Means::BlockRows
            | Means::BlockMatrix
            | Means::BlockExperts
            | Means::LinkedRounding
            | Means::LinkedRows
            | Means::LinkedRoundingOfMany
            | Means::LinkedMatrix
            | Means::LinkedRest
            | Means::LinkedExperts
            | Means::Unused => None,
        }
    }

    /// Arguments: elements, dimensions, their table, ..., from `at` on operands, and the result.
    fn map(&self, function: Function, (from, to): (Element, Element), at: usize, operands: usize) -> Option<Meaning> {
        let len = self.integer(0)?;
        let views = self.dims(1, operands, len)?.into_iter().enumerate();
        Some(Meaning {
            function,
            reads: views.map(|(operand, dims)| self.view(at + operand, from, dims)).collect::<Option<_>>()?,
            writes: Some(self.row(at + operands, to, len)?),
        })
    }

    /// The same, and then the factor and the summand.
    fn affine(&self, element: Element) -> Option<Meaning> {
        let (factor, summand) = (self.number(5, element)?, self.number(6, element)?);
        let function = match element.is_float() {
            true => Function::Affine(factor as f32, summand as f32),
            false => Function::AffineWide(factor, summand),
        };
        self.map(function, (element, element), 3, 1)
    }

    /// Arguments: elements, dimensions, their table, condition, where it holds, where it does not, result.
    fn select(&self, (condition, element): (Element, Element)) -> Option<Meaning> {
        let len = self.integer(0)?;
        let [of_condition, of_one, of_other] = self.dims(1, 3, len)?.try_into().ok()?;
        let condition = self.view(3, condition, of_condition)?;
        let other = self.view(5, element, of_other)?;
        // A number that the host has uploaded, for all elements.
        let is_one = of_one.iter().all(|dim| dim.len == 1 || dim.stride == 0);
        let uploaded = self.offset(4).and_then(|word| self.uploaded(word)).filter(|_| is_one);
        let number = uploaded.and_then(|bytes| bytes.get(..element.bytes() as usize)).map(super::arguments::bits);
        let (function, reads) = match number {
            Some(bits) => (Function::MaskedFill(bits), vec![condition, other]),
            None => (Function::Where, vec![condition, self.view(4, element, of_one)?, other]),
        };
        Some(Meaning { function, reads, writes: Some(self.row(6, element, len)?) })
    }

    /// Arguments: source, target, rows, columns, source stride, target stride.
    fn copy_rows(&self, element: Element) -> Option<Meaning> {
        let [rows, columns, from, to] = self.integers([2, 3, 4, 5])?;
        let dims = |stride| super::arguments::by_rows(rows, columns, stride);
        Some(Meaning {
            function: Function::Copy,
            reads: vec![self.view(0, element, dims(from))?],
            writes: Some(self.view(1, element, dims(to))?),
        })
    }

    /// Arguments: result, number, elements.
    fn fill(&self, element: Element) -> Option<Meaning> {
        let view = self.row(0, element, self.integer(2)?)?;
        self.filled(1, element, view)
    }

    /// Arguments: elements, dimensions, their table, number, result.
    fn fill_view(&self, element: Element) -> Option<Meaning> {
        let view = self.view(4, element, self.dims(1, 1, self.integer(0)?)?.pop()?)?;
        self.filled(3, element, view)
    }

    fn filled(&self, number: usize, element: Element, view: View) -> Option<Meaning> {
        let function = Function::Fill(self.bits(number, element)?);
        Some(Meaning { function, reads: Vec::new(), writes: Some(view) })
    }
}
