//! Products with a packed weight on the CPU, with bias and activation.

use candle::{bail, CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use pulp::{Arch, Simd, WithSimd};

use crate::cpu::kernels::{
    each, elements, multiply, rows_at_once, weight_vectors, Element, Sum, VECTORS, WIDE_PANEL, WIDE_VECTORS,
    WORTH_A_THREAD,
};
use crate::gradient::{applied2, applied3};
use crate::ops::Activation;

/// Panels of one task at most.
const PANELS: usize = 8;

/// Tasks for each core, so that cores that are late hold up the others little.
const TASKS: usize = 3;

/// A weight `(out, k)` of f32 or f64 as panels `(panel, k, column)`: each has the weights of as many results as a panel row has
/// elements, side by side. Zeros fill the last one.
pub(super) fn packed(weight: &Tensor) -> Result<Tensor> {
    match weight.dtype() {
        candle::DType::F32 => packed_of::<f32>(weight),
        candle::DType::F64 => packed_of::<f64>(weight),
        dtype => bail!("weights of {dtype:?} are not packed"),
    }
}

/// Elements of a panel row on this machine.
fn width<T: Sum>() -> usize {
    struct Width<T>(std::marker::PhantomData<T>);
    impl<T: Sum> WithSimd for Width<T> {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            weight_vectors::<S>() * T::lanes::<S>()
        }
    }
    Arch::new().dispatch(Width::<T>(std::marker::PhantomData))
}

fn packed_of<T: Element<Sum = T> + Sum>(weight: &Tensor) -> Result<Tensor> {
    let ((out, k), width) = (weight.dims2()?, width::<T>());
    let rows = weight.to_vec2::<T>()?;
    let mut panels = vec![T::zero(); out.div_ceil(width) * width * k];
    for (at, row) in rows.iter().enumerate() {
        let to = panels[at / width * width * k..].iter_mut().skip(at % width).step_by(width);
        to.zip(row).for_each(|(to, from)| *to = *from);
    }
    Tensor::from_vec(panels, (out.div_ceil(width), k, width), weight.device())
}

/// `activation(x weightᵀ + bias)` with a packed weight of `out` rows.
pub(super) fn linear(
    x: &Tensor,
    panels: &Tensor,
    out: usize,
    bias: Option<&Tensor>,
    activation: Activation,
) -> Result<Tensor> {
    let (_, k, _) = panels.dims3()?;
    if x.dims().last() != Some(&k) {
        bail!("rows of {:?} do not match a weight of {:?}", x.dims(), [out, k])
    }
    if let Some(bias) = bias.filter(|bias| bias.dims() != [out]) {
        bail!("a bias of {:?} for {out} results", bias.dims())
    }
    let linear = Linear { out, activation };
    let x = x.contiguous()?;
    match bias {
        None => applied2(&x, panels, &linear),
        Some(bias) => applied3(&x, panels, &bias.contiguous()?, &linear),
    }
}

/// The custom operator.
struct Linear {
    out: usize,
    activation: Activation,
}

type Operand<'a> = (&'a CpuStorage, &'a Layout);

impl Linear {
    fn run(&self, x: Operand, panels: Operand, bias: Option<Operand>) -> Result<(CpuStorage, Shape)> {
        let (_, k, _) = panels.1.shape().dims3()?;
        let mut dims = x.1.dims().to_vec();
        dims.pop();
        let rows = dims.iter().product();
        dims.push(self.out);
        macro_rules! run {
            ($t:ty) => {{
                let bias = bias.map(|bias| elements(bias.0, bias.1)).transpose()?;
                let product = Product::<$t> {
                    x: elements(x.0, x.1)?,
                    panels: elements(panels.0, panels.1)?,
                    bias,
                    k,
                    activation: self.activation,
                };
                <$t as WithDType>::to_cpu_storage_owned(product.run(rows, self.out))
            }};
        }
        let y = match x.0 {
            CpuStorage::F32(_) => run!(f32),
            CpuStorage::F64(_) => run!(f64),
            _ => bail!("no product of this dtype with a packed weight"),
        };
        Ok((y, dims.into()))
    }
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run((x, xl), (w, wl), None)
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.run((x, xl), (w, wl), Some((b, bl)))
    }
}

/// The operands.
#[derive(Clone, Copy)]
struct Product<'a, T> {
    x: &'a [T],
    panels: &'a [T],
    bias: Option<&'a [T]>,
    k: usize,
    activation: Activation,
}

impl<T: Element<Sum = T> + Sum> Product<'_, T> {
    fn run(&self, rows: usize, out: usize) -> Vec<T> {
        let width = width::<T>();
        let mut y = vec![T::zero(); rows * out];
        if y.is_empty() {
            return y;
        }
        let panels = out.div_ceil(width).div_ceil(TASKS * crate::cpu::cores::cores()).clamp(1, PANELS);
        let columns = panels * width;
        let task = |task: usize| (task * columns, Vec::with_capacity(rows));
        let mut tasks: Vec<(usize, Vec<&mut [T]>)> = (0..out.div_ceil(columns)).map(task).collect();
        for row in y.chunks_exact_mut(out) {
            tasks.iter_mut().zip(row.chunks_mut(columns)).for_each(|(task, y)| task.1.push(y));
        }
        each(2 * rows * self.k * out > WORTH_A_THREAD, tasks, |(first, y)| {
            Arch::new().dispatch(Columns { product: *self, first, y });
        });
        y
    }
}

/// Some panels of a product, and of every row of the result their piece.
struct Columns<'a, 'y, T> {
    product: Product<'a, T>,
    /// The first column.
    first: usize,
    y: Vec<&'y mut [T]>,
}

impl<T: Element<Sum = T> + Sum> WithSimd for Columns<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for start in (0..self.y[0].len()).step_by(weight_vectors::<S>() * T::lanes::<S>()) {
            let mut row = 0;
            while row < self.y.len() {
                let left = self.y.len() - row;
                row += match weight_vectors::<S>() {
                    VECTORS => match rows_at_once::<S>(left) {
                        8 => self.rows::<S, 8, VECTORS>(simd, start, row),
                        4 => self.rows::<S, 4, VECTORS>(simd, start, row),
                        2 => self.rows::<S, 2, VECTORS>(simd, start, row),
                        _ => self.rows::<S, 1, VECTORS>(simd, start, row),
                    },
                    _ => match left {
                        6.. => self.rows::<S, 6, WIDE_VECTORS>(simd, start, row),
                        4.. => self.rows::<S, 4, WIDE_VECTORS>(simd, start, row),
                        2.. => self.rows::<S, 2, WIDE_VECTORS>(simd, start, row),
                        _ => self.rows::<S, 1, WIDE_VECTORS>(simd, start, row),
                    },
                };
            }
        }
    }
}

impl<T: Element<Sum = T> + Sum> Columns<'_, '_, T> {
    /// Computes the columns of the panel at `start` of `R` rows.
    #[inline(always)]
    fn rows<S: Simd, const R: usize, const V: usize>(&mut self, simd: S, start: usize, row: usize) -> usize {
        let Product { x, panels, bias, k, activation } = self.product;
        let (width, first) = (V * T::lanes::<S>(), self.first + start);
        let mut sums = [[T::default(); WIDE_PANEL]; R];
        let x: [&[T]; R] = std::array::from_fn(|r| &x[(row + r) * k..][..k]);
        // Each piece of rows brings its part of the next panel from memory: the first one would wait for all of it. With 16 registers
        // the compiler has none left for that.
        let next = &panels[(first + width).saturating_mul(k).min(panels.len())..];
        let part = (width * k).div_ceil(self.y.len().div_ceil(R));
        let next = next.get(row / R * part..).map_or(&[][..], |next| &next[..part.min(next.len())]);
        let next = if V == WIDE_VECTORS { next } else { &[] };
        multiply::<T, S, R, V, V, _>(simd, x, &panels[first * k..][..width * k], &mut sums, next);
        for (y, sums) in self.y[row..].iter_mut().zip(&mut sums) {
            let columns = (y.len() - start).min(width);
            if let Some(bias) = bias {
                sums[..columns].iter_mut().zip(&bias[first..][..columns]).for_each(|(sum, &bias)| *sum += bias);
            }
            // All columns of the panel, also those beyond the result's: the compiler knows their number.
            activate(activation, &mut sums[..width]);
            y[start..start + columns].copy_from_slice(&sums[..columns]);
        }
        R
    }
}

#[inline(always)]
fn activate<T: Sum>(activation: Activation, values: &mut [T]) {
    match activation {
        Activation::None => {}
        Activation::Relu => values.iter_mut().for_each(|x| *x = if *x > T::default() { *x } else { T::default() }),
        Activation::Gelu => values.iter_mut().for_each(|x| *x = x.gelu()),
        Activation::GeluErf => values.iter_mut().for_each(|x| *x = x.gelu_erf()),
        Activation::Silu => values.iter_mut().for_each(|x| *x = x.silu()),
    }
}
