//! Modules of candle's rarer kernels, between parts that rules are about: exact executors give candle's bits, accurate ones are no less
//! accurate.
#![cfg(feature = "cuda")]

use candle::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle::cuda_backend::{kernels, CudaDType, CudaStorage, WrapErr};
use candle::quantized::{GgmlDType, QTensor};
use candle::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, D};
use candle_nn::moe::moe_gemm_gguf;
use half::f16;
use opara_candle::OparaExecutor;

use super::{no_less_accurate, noise, Inputs};
use crate::common::{answers_like, gpu};

/// A module of weights and inputs.
type Module = fn(&[Tensor], &[Tensor]) -> Result<Tensor>;

/// What a module is said to be, itself, the shapes of its weights, and of its input.
struct Case {
    said: &'static str,
    module: Module,
    weights: &'static [&'static [usize]],
    x: &'static [usize],
}

/// An RMS norm in elementary operators.
fn norm(x: &Tensor) -> Result<Tensor> {
    x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?)
}

/// A product and an activation.
fn dense(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.matmul(&weight.t()?)?.silu()
}

/// Windows of so many rows and columns, one after another, by the kernels with which candle computes convolutions without cuDNN.
struct Windows {
    /// Of an image; a line has columns alone.
    rows: Option<usize>,
    columns: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Windows {
    fn count(&self, len: usize, kernel: usize) -> usize {
        (len + 2 * self.padding - self.dilation * (kernel - 1) - 1) / self.stride + 1
    }

    /// The number of each item's windows, along rows and columns, and the elements of a window.
    fn sizes(&self, dims: &[usize]) -> (Vec<usize>, usize) {
        let kernel: Vec<usize> = self.rows.iter().chain([&self.columns]).copied().collect();
        let counts = dims[2..].iter().zip(&kernel).map(|(&len, &kernel)| self.count(len, kernel));
        (counts.collect(), dims[1] * kernel.iter().product::<usize>())
    }

    fn launch<T: CudaDType + DeviceRepr>(
        &self,
        of: &CudaStorage,
        layout: &Layout,
        types: &str,
    ) -> Result<(CudaStorage, Shape)> {
        let (device, dims) = (of.device.clone(), layout.dims());
        let (counts, window) = self.sizes(dims);
        let (windows, kernel) =
            (counts.iter().product::<usize>() * dims[0], if self.rows.is_some() { "" } else { "1d" });
        // A thread writes an element of a window, or a line of one.
        let threads = windows * if self.rows.is_some() { window } else { dims[1] };
        let function = device.get_or_load_func(&format!("im2col{kernel}_{types}"), &kernels::CONV)?;
        let table = device.clone_htod(&[dims, layout.stride()].concat())?;
        let from = of.as_cuda_slice::<T>()?.slice(layout.start_offset()..);
        // SAFETY: the kernel writes all elements.
        let to = unsafe { device.alloc::<T>(windows * window)? };
        let numbers: Vec<usize> = [threads].into_iter().chain(counts).chain(self.rows).collect();
        let mut launch = function.builder();
        for number in &numbers {
            launch.arg(number);
        }
        launch.arg(&self.columns).arg(&self.stride).arg(&self.padding).arg(&self.dilation);
        launch.arg(&table).arg(&from).arg(&to);
        // SAFETY: candle launches it so, with these arguments.
        unsafe { launch.launch(LaunchConfig::for_num_elems(threads as u32)) }.w()?;
        Ok((CudaStorage::wrap_cuda_slice(to, device), (windows, window).into()))
    }
}

impl CustomOp1 for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle::bail!("a kernel of the GPU")
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        use candle::backend::BackendStorage;
        match storage.dtype() {
            DType::F16 => self.launch::<f16>(storage, layout, "f16"),
            DType::F32 => self.launch::<f32>(storage, layout, "f32"),
            _ => self.launch::<f64>(storage, layout, "f64"),
        }
    }
}

// Means of errors are of many rows.
const CASES: [Case; 10] = [
    Case {
        said: "windows of images and lines, times weights",
        module: |w, x| {
            let y = x[0].conv2d(&w[0], 1, 1, 1, 1)?.silu()?;
            let of_image = Windows { rows: Some(3), columns: 2, stride: 2, padding: 1, dilation: 1 };
            let y = y.apply_op1_no_bwd(&of_image)?.matmul(&w[1].t()?)?.silu()?;
            // As candle lays it out: windows, then channels.
            let y = y.reshape((2, (), 16))?.transpose(1, 2)?;
            let of_line = Windows { rows: None, columns: 4, stride: 1, padding: 2, dilation: 2 };
            y.contiguous()?.apply_op1_no_bwd(&of_line)?.matmul(&w[2].t()?)?.tanh()
        },
        weights: &[&[24, 16, 3, 3], &[16, 24 * 6], &[8, 16 * 4]],
        x: &[2, 16, 12, 10],
    },
    Case {
        said: "bilinear upsampling between convolutions",
        module: |w, x| {
            let y = x[0].conv2d(&w[0], 1, 1, 1, 1)?.silu()?.upsample_bilinear2d(23, 20, false)?;
            y.conv2d(&w[1], 1, 1, 1, 1)?.relu()?.upsample_bilinear2d(40, 40, true)
        },
        weights: &[&[24, 16, 3, 3], &[16, 24, 3, 3]],
        x: &[2, 16, 12, 10],
    },
    Case {
        said: "a transposed convolution whose columns are folded",
        module: |w, x| {
            let y = x[0].conv1d(&w[0], 1, 1, 1, 1)?.tanh()?.conv_transpose1d(&w[1], 0, 0, 2, 1, 1)?;
            y.conv1d(&w[0], 1, 1, 1, 1)?.silu()
        },
        weights: &[&[16, 16, 3], &[16, 16, 4]],
        x: &[2, 16, 40],
    },
    Case {
        said: "transposed convolutions over rows and columns",
        module: |w, x| x[0].conv2d(&w[0], 1, 1, 1, 1)?.silu()?.conv_transpose2d(&w[1], 1, 1, 2, 2)?.tanh(),
        weights: &[&[16, 16, 3, 3], &[16, 8, 3, 3]],
        x: &[1, 16, 9, 10],
    },
    Case {
        said: "convolutions of weights that are views",
        module: |w, x| {
            let y = x[0].conv1d(&w[0].transpose(0, 1)?, 1, 1, 1, 1)?.silu()?;
            y.unsqueeze(3)?.conv2d(&w[1].transpose(0, 1)?, 1, 1, 1, 1)?.relu()
        },
        weights: &[&[16, 16, 3], &[16, 16, 3, 3]],
        x: &[2, 16, 40],
    },
    Case {
        said: "a head that sorts",
        module: |w, x| {
            let y = dense(&norm(&x[0])?, &w[0])?;
            let (sorted, order) = x[0].sort_last_dim(false)?;
            dense(&(y.gather(&order, 1)? * sorted)?, &w[1])
        },
        weights: &[&[64, 64], &[32, 64]],
        x: &[96, 64],
    },
    Case {
        said: "running sums",
        module: |w, x| dense(&(dense(&norm(&x[0])?, &w[0])?.cumsum(1)? * 0.1)?, &w[1]),
        weights: &[&[64, 64], &[32, 64]],
        x: &[96, 64],
    },
    Case {
        said: "sums in places that integers name",
        module: |w, x| {
            let (rows, y) = (x[0].dim(0)?, dense(&norm(&x[0])?, &w[0])?);
            let ids = Tensor::from_iter((0..rows).map(|row| (row * 5 % (rows - 2)) as u32), x[0].device())?;
            let each = ids.reshape((rows, 1))?.broadcast_as((rows, 64))?.contiguous()?;
            let zeros = Tensor::zeros((rows - 2, 64), y.dtype(), y.device())?;
            let sums = (zeros.scatter_add(&each, &y, 0)? + zeros.index_add(&ids, &y, 0)?)?;
            dense(&(sums * 0.3)?, &w[1])
        },
        weights: &[&[64, 64], &[32, 64]],
        x: &[96, 64],
    },
    Case {
        said: "activations with numbers",
        module: |w, x| {
            let y = dense(&norm(&x[0])?, &w[0])?.elu(0.7)?;
            let y = dense(&norm(&(y.erf()? + y.abs()?.affine(1., 1.)?.powf(1.5)?)?)?, &w[1])?;
            &y + y.affine(3., 0.)?.round()?
        },
        weights: &[&[64, 64], &[32, 64]],
        x: &[96, 64],
    },
    Case {
        said: "a norm in double precision",
        module: |w, x| {
            let y = norm(&dense(&x[0], &w[0])?.to_dtype(DType::F64)?)?.to_dtype(x[0].dtype())?;
            dense(&norm(&y)?, &w[1])
        },
        weights: &[&[64, 64], &[32, 64]],
        x: &[96, 64],
    },
];

#[test]
fn rarer_kernels_between_rewritten_parts_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for Case { said, module, weights, x } in CASES {
        for dtype in [DType::F16, DType::F32] {
            let small = |(at, shape): (usize, &&[usize])| {
                let inner: usize = shape[1..].iter().product();
                (noise(20 + at as u64, *shape)? * (inner as f64).powf(-0.5))?.to_dtype(dtype)?.to_device(&device)
            };
            let of: Vec<Tensor> = weights.iter().enumerate().map(small).collect::<Result<_>>()?;
            let wide: Vec<Tensor> = of.iter().map(|weight| weight.to_dtype(DType::F64)).collect::<Result<_>>()?;
            let input = |seed: u64| Ok(vec![noise(seed, x)?.to_dtype(dtype)?.to_device(&device)?]);
            let narrow = of.clone();
            let function = move |x: &[Tensor]| Ok(vec![module(&narrow, x)?]);
            let exact = OparaExecutor::builder().benchmark_challengers(false).build_fn(function.clone(), &input(1)?)?;
            assert_eq!((exact.report().mode(), exact.report().reason()), (opara_candle::Mode::Graph, None), "{said}");
            answers_like(&exact, function, |i| input(i as u64));
            let inputs = Inputs { built: input(1)?, asked: input(2)? };
            no_less_accurate(dtype, said, move |x| module(&of, x), move |x| module(&wide, x), inputs)?;
        }
    }
    Ok(())
}

/// A table in blocks, a product, and experts in blocks, of 256 elements a row.
struct Blocks {
    table: QTensor,
    dense: Tensor,
    experts: QTensor,
}

impl Blocks {
    fn new(device: &Device) -> Result<Self> {
        let of = |seed, rows: usize| (noise(seed, (rows, 256))? * (1. / 16.))?.to_device(device);
        Ok(Self {
            table: QTensor::quantize(&(of(1, 32)? * 16.)?, GgmlDType::Q4K)?,
            dense: of(2, 256)?,
            experts: QTensor::quantize(&of(3, 4 * 64)?.reshape((4, 64, 256))?, GgmlDType::Q4K)?,
        })
    }

    /// Ids of rows, and of two experts of each, by both of candle's kernels.
    fn forward(&self, ids: &Tensor, experts: &Tensor) -> Result<Tensor> {
        let x = norm(&dense(&norm(&self.table.embedding(ids)?)?, &self.dense)?)?;
        let y = self.experts.indexed_moe_forward(&x.unsqueeze(1)?, experts)?;
        let (by_expert, order) = experts.reshape((1, ()))?.sort_last_dim(true)?;
        let (by_expert, order) = (by_expert.flatten_all()?, order.flatten_all()?);
        let z = moe_gemm_gguf(&x, &self.experts, &None, &order, &by_expert, 2, false, DType::F16)?;
        norm(&(&y + z.reshape(y.shape())?)?)?.sum(1)?.silu()
    }

    /// The same with the blocks' elements, in double precision.
    fn in_double(&self, ids: &Tensor, experts: &Tensor) -> Result<Tensor> {
        let wide = |t: &QTensor| t.dequantize(ids.device())?.to_dtype(DType::F64);
        let x = wide(&self.table)?.index_select(ids, 0)?;
        let y = norm(&dense(&norm(&x)?, &self.dense.to_dtype(DType::F64)?)?)?;
        let weights = wide(&self.experts)?.index_select(&experts.flatten_all()?, 0)?;
        let y = y
            .unsqueeze(1)?
            .repeat((1, 2, 1))?
            .reshape(((), 1, 256))?
            .matmul(&weights.transpose(1, 2)?.contiguous()?)?;
        norm(&(y.reshape(((), 2, 64))? * 2.)?)?.sum(1)?.silu()
    }
}

#[test]
fn tables_and_experts_in_blocks_are_no_less_accurate() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let blocks = std::sync::Arc::new(Blocks::new(&device)?);
    let input = |i: usize| {
        let ids = Tensor::from_iter((0..5).map(|at| ((at * 7 + i * 3) % 32) as u32), &device)?;
        let experts = Tensor::from_iter((0..10).map(|at| ((at * 3 + i) % 4) as u32), &device)?.reshape((5, 2))?;
        Ok(vec![ids, experts])
    };
    let of = blocks.clone();
    let function = move |x: &[Tensor]| Ok(vec![of.forward(&x[0], &x[1])?]);
    let exact = OparaExecutor::builder().benchmark_challengers(false).build_fn(function.clone(), &input(0)?)?;
    answers_like(&exact, function.clone(), input);
    let fast = super::accurate().stress(1).build_fn(function.clone(), &input(0)?)?;
    let report = fast.report();
    println!("{report}");
    assert_eq!(report.mode(), opara_candle::Mode::Graph, "{report}");
    for i in 1..4 {
        let x = input(i)?;
        let reference = blocks.in_double(&x[0], &x[1])?;
        let [candle, ours] = [function(&x)?, fast.call(&x)?].map(|y| super::error(DType::F32, &y[0], &reference));
        let (candle, ours) = (candle?, ours?);
        assert!(ours <= 1.2 * candle + 0.1, "{ours} roundings, candle {candle}: {report}");
    }
    Ok(())
}
