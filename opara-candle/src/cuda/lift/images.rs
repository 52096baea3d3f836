//! candle's kernels on images: convolutions, windows, pools, and more rows and columns.

use super::arguments::Arguments;
use crate::trace::{Bilinear, Dim, Element, Function, Meaning, View, Window};

impl Arguments<'_> {
    /// Arguments: elements, rows and columns of a window, and from one to the next, dimensions and strides, operand, result.
    pub fn pool(&self, element: Element, function: fn(Window) -> Function) -> Option<Meaning> {
        let [rows, columns, down, right] = self.integers([1, 2, 3, 4])?;
        let [image] = self.images(5, 2)?;
        let window =
            Window { kernel: [rows, columns], padding: [0; 2], stride: [down, right], dilation: [1; 2], groups: 1 };
        let size = window.windows(plane(&image))?;
        self.of_image(function(window), element, (image, size), [6, 7])
    }

    /// Arguments: rows and columns of the result, how many of the operand are one of those, dimensions and strides, operand, result.
    pub fn upsample_nearest(&self, element: Element) -> Option<Meaning> {
        let size = self.integers([0, 1])?;
        let [image] = self.images(4, 2)?;
        let scale = |axis: usize| (plane(&image)[axis] as f64 / size[axis] as f64).to_bits();
        if self.integers([2, 3])? != [scale(0), scale(1)] {
            return None;
        }
        self.of_image(Function::UpsampleNearest(size), element, (image, size), [5, 6])
    }

    /// Arguments: columns and rows of the result, whether corners are aligned, whether rows have a factor, that, the same of columns,
    /// dimensions and strides, operand, result.
    pub fn upsample_bilinear(&self, element: Element) -> Option<Meaning> {
        let size = self.integers([1, 0])?;
        let [image] = self.images(7, 2)?;
        let is_true = |at: usize| Some(self.bits(at, Element::U8)? != 0);
        let is_aligned = is_true(2)?;
        let step = |axis: usize| {
            let (from, to) = (plane(&image)[axis], size[axis]);
            Some(match (is_aligned, is_true(3 + 2 * axis)?) {
                (true, _) if to > 1 => from.checked_sub(1)? as f64 / (to - 1) as f64,
                (true, _) => 0.,
                (false, true) => 1. / self.number(4 + 2 * axis, Element::F64)?,
                (false, false) => from as f64 / to as f64,
            })
        };
        let bilinear = Bilinear { size, step: [step(0)?, step(1)?], is_aligned };
        self.of_image(Function::UpsampleBilinear(bilinear), element, (image, size), [8, 9])
    }

    /// Arguments: elements, lengths of the result from the innermost on, stride, padding, dilation, dimensions and strides of the operand,
    /// then of the weight, operand, weight, result. Of one dimension, it is one of columns of one element.
    pub fn convolution(&self, element: Element, dims: usize) -> Option<Meaning> {
        let [stride, padding, dilation] = self.integers([dims + 1, dims + 2, dims + 3])?;
        let [x, weight] = self.images(dims + 4, dims)?;
        let window = window(plane(&weight), dims, [padding, stride, dilation]);
        let size = window.windows(plane(&x))?;
        // candle's kernel over one dimension multiplies the stride, too.
        let is_known = dims == 2 || dilation == 1;
        if self.told(dims)? != size || x[1].len != weight[1].len || !is_known {
            return None;
        }
        self.of_weight(Function::Convolution(window), element, (x, weight.clone(), weight[0].len, size), dims + 5)
    }

    /// The same with an output padding behind the padding.
    pub fn transposed_convolution(&self, element: Element, dims: usize) -> Option<Meaning> {
        let [stride, padding, output_padding, dilation] = self.integers([dims + 1, dims + 2, dims + 3, dims + 4])?;
        let [x, weight] = self.images(dims + 5, dims)?;
        let window = window(plane(&weight), dims, [padding, stride, dilation]);
        let output_padding = pair(dims, output_padding, 0);
        let size = window.transposed(plane(&x), output_padding)?;
        if self.told(dims)? != size || x[1].len != weight[0].len {
            return None;
        }
        let function = Function::TransposedConvolution { window, output_padding };
        self.of_weight(function, element, (x, weight.clone(), weight[1].len, size), dims + 6)
    }

    /// Arguments: threads, lengths of the result and then of a window from the outermost on, stride, padding, dilation, dimensions and
    /// strides, operand, result. A thread writes all of a window of one dimension.
    pub fn unfold(&self, element: Element, dims: usize) -> Option<Meaning> {
        let of = |first: usize| match dims {
            1 => Some([self.integer(first)?, 1]),
            _ => self.integers([first, first + 1]),
        };
        let (told, kernel) = (of(1)?, of(1 + dims)?);
        let [stride, padding, dilation] = [1, 2, 3].map(|at| self.integer(2 * dims + at));
        let [image] = self.images(2 * dims + 4, dims)?;
        let window = window(kernel, dims, [padding?, stride?, dilation?]);
        let size = window.windows(plane(&image)).filter(|size| *size == told)?;
        let lens = [image[0].len, size[0], size[1], image[1].len, kernel[0], kernel[1]];
        let len = lens.into_iter().try_fold(1u64, u64::checked_mul)?;
        Some(Meaning {
            function: Function::Unfold(window),
            reads: vec![self.view(2 * dims + 5, element, image)?],
            writes: Some(self.row(2 * dims + 6, element, len)?),
        })
    }

    /// Arguments: elements, length of the result, of the operand, channels, elements of a window, stride, operand, result.
    pub fn fold(&self, element: Element) -> Option<Meaning> {
        let [len, to, from, channels, kernel, stride] = self.integers([0, 1, 2, 3, 4, 5])?;
        let window = window([kernel, 1], 1, [0, stride, 1]);
        let images = len.checked_div(channels.checked_mul(to)?)?;
        if window.transposed([from, 1], [0; 2])? != [to, 1] || images * channels * to != len {
            return None;
        }
        let lens = [images, from, 1, channels, kernel, 1];
        let dims = (0..6).map(|at| Dim { len: lens[at], stride: lens[at + 1..].iter().product() }).collect();
        Some(Meaning {
            function: Function::Fold(window),
            reads: vec![self.view(6, element, dims)?],
            writes: Some(self.row(7, element, len)?),
        })
    }

    /// Rows and columns of a result, behind the number of elements.
    fn told(&self, dims: usize) -> Option<[u64; 2]> {
        match dims {
            1 => Some([self.integer(1)?, 1]),
            _ => self.integers([2, 1]),
        }
    }

    /// The operands of which a table has dimensions and strides. Those of one dimension have columns of one element.
    fn images<const N: usize>(&self, argument: usize, dims: usize) -> Option<[Vec<Dim>; N]> {
        let table = self.table(self.offset(argument)?)?;
        let rank = 2 + dims;
        let of = |at: usize| {
            let part = table.get(2 * at * rank..2 * (at + 1) * rank)?;
            let dims = part[..rank].iter().zip(&part[rank..]).map(|(&len, &stride)| Dim { len, stride });
            Some(dims.chain([Dim { len: 1, stride: 1 }]).take(4).collect())
        };
        let found: Vec<_> = (0..N).map(of).collect::<Option<_>>()?;
        found.try_into().ok()
    }

    /// Of an image and the size of the result's planes, with the arguments of operand and result.
    fn of_image(
        &self,
        function: Function,
        element: Element,
        (image, [rows, columns]): (Vec<Dim>, [u64; 2]),
        [from, to]: [usize; 2],
    ) -> Option<Meaning> {
        let len = image[0].len.checked_mul(image[1].len)?.checked_mul(rows)?.checked_mul(columns)?;
        let reads = vec![self.view(from, element, image)?];
        Some(Meaning { function, reads, writes: Some(self.row(to, element, len)?) })
    }

    /// Of an image, a weight, the result's channels and the size of its planes; operand, weight and result are arguments from `at` on.
    fn of_weight(
        &self,
        function: Function,
        element: Element,
        (x, weight, channels, [rows, columns]): (Vec<Dim>, Vec<Dim>, u64, [u64; 2]),
        at: usize,
    ) -> Option<Meaning> {
        let len = x[0].len.checked_mul(channels)?.checked_mul(rows)?.checked_mul(columns)?;
        let reads: Vec<View> = vec![self.view(at, element, x)?, self.view(at + 1, element, weight)?];
        Some(Meaning { function, reads, writes: Some(self.row(at + 2, element, len)?) })
    }
}

/// Rows and columns of an image.
fn plane(dims: &[Dim]) -> [u64; 2] {
    [dims[2].len, dims[3].len]
}

/// A number for rows and columns, or for rows alone.
fn pair(dims: usize, of: u64, of_columns: u64) -> [u64; 2] {
    [of, if dims == 2 { of } else { of_columns }]
}

/// A window of this size over a number of dimensions.
fn window(kernel: [u64; 2], dims: usize, [padding, stride, dilation]: [u64; 3]) -> Window {
    Window {
        kernel,
        padding: pair(dims, padding, 0),
        stride: pair(dims, stride, 1),
        dilation: pair(dims, dilation, 1),
        groups: 1,
    }
}
