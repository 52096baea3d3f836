//! A decoder's weights as its layers ask for them, whatever file they are in.

use std::sync::Arc;

use candle::quantized::{GgmlDType, QMatMul, QTensor};
use candle::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use opara_candle::ops::{self, Activation, QuantizedWeight};
use opara_candle::scope;
use opara_weights::{Floats, Unread};

use super::error::DecoderError;
use super::gguf::Gguf;
use super::matrix::Matrix;

/// Where tensors come from. They are asked for by the names of transformers' Llama.
pub(super) enum Source<'a> {
    /// Safetensors and the like; the prefix stands before all names.
    Names { vb: VarBuilder<'a>, prefix: &'static str, quantize: Option<GgmlDType> },
    /// A GGUF file.
    Gguf(Box<Gguf>),
}

impl<'a> Source<'a> {
    /// Gemma 3 with pictures has its text model one level deeper, and old and new files differ in how.
    /// `quantize` is what matrices become.
    pub fn of(vb: VarBuilder<'a>, quantize: Option<GgmlDType>) -> Self {
        let has = |prefix: &str| vb.contains_tensor(&format!("{prefix}model.embed_tokens.weight"));
        let prefix = match () {
            () if has("") => "",
            () if has("language_model.") => "language_model.",
            () if vb.contains_tensor("model.language_model.embed_tokens.weight") => "model.language_model.",
            () => "",
        };
        Self::Names { vb, prefix, quantize }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Self::Names { vb, .. } => vb.dtype(),
            Self::Gguf(gguf) => gguf.dtype(),
        }
    }

    pub fn device(&self) -> &Device {
        match self {
            Self::Names { vb, .. } => vb.device(),
            Self::Gguf(gguf) => gguf.device(),
        }
    }

    /// A tensor of floats of this shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> candle::Result<Tensor> {
        match self {
            Self::Names { vb, prefix, .. } => vb.get(shape, &in_file(prefix, name)),
            Self::Gguf(gguf) => gguf.tensor(name, shape),
        }
    }

    /// A weight of `rows` rows.
    fn matrix(&self, name: &str, rows: usize, columns: usize) -> candle::Result<Matrix> {
        match self {
            Self::Gguf(gguf) => gguf.matrix(name, rows, columns),
            Self::Names { quantize: Some(to), .. } if columns.is_multiple_of(to.block_size()) => {
                let dense = self.tensor(name, &[rows, columns])?.to_device(&Device::Cpu)?;
                Ok(Matrix::Quantized(Arc::new(QTensor::quantize(&dense, *to)?)))
            }
            Self::Names { vb, prefix, .. } => {
                // 8-bit floats stay such where products take them. What is wrong with them is said below.
                let floats = match QuantizedWeight::multiplies_floats(vb.dtype(), vb.device())? {
                    true => Floats::of(vb, &in_file(prefix, name)).filter(|of| of.bytes.dims() == [rows, columns]),
                    false => None,
                };
                if let Some(Floats { bytes, scales }) = floats {
                    return QuantizedWeight::of_floats(&[(&bytes, &scales)], vb.device()).map(Matrix::Packed);
                }
                Ok(Matrix::Dense(self.tensor(name, &[rows, columns])?))
            }
        }
    }

    /// The product with the rows of several weights, as one weight where all are dense.
    pub fn product(
        &self,
        label: &'static str,
        parts: &[(&str, usize)],
        columns: usize,
        has_bias: bool,
    ) -> candle::Result<Product> {
        let mut matrices = Vec::with_capacity(parts.len());
        for (name, rows) in parts {
            matrices.push(self.matrix(&format!("{name}.weight"), *rows, columns)?);
        }
        let weight = Weight::of(matrices, self.dtype(), self.device())?;
        let bias = match has_bias {
            true => {
                let biases = parts.iter().map(|(name, rows)| self.tensor(&format!("{name}.bias"), &[*rows]));
                Some(Tensor::cat(&biases.collect::<candle::Result<Vec<_>>>()?, 0)?)
            }
            false => None,
        };
        Ok(Product { label, weight, bias })
    }

    /// The product that gives logits.
    pub fn head(&self, name: &str, rows: usize, columns: usize) -> super::error::Result<Product> {
        let head = self.product("head", &[(name, rows)], columns, false);
        let is_there = match self {
            Self::Names { vb, prefix, .. } => vb.contains_tensor(&in_file(prefix, &format!("{name}.weight"))),
            Self::Gguf(_) => true,
        };
        match head {
            Err(error) if !is_there => Err(DecoderError::NoHead { reason: error.to_string() }),
            head => Ok(head?),
        }
    }

    /// Refuses tensors of a GGUF file that were not asked for.
    pub fn check(&self, unread: Unread) -> super::error::Result<()> {
        match self {
            Self::Gguf(gguf) => gguf.check_tensors(unread),
            Self::Names { .. } => Ok(()),
        }
    }

    /// A table of embeddings, and the product with the same weight if that is the head.
    pub fn table(&self, name: &str, rows: usize, columns: usize) -> candle::Result<Matrix> {
        match self.matrix(&format!("{name}.weight"), rows, columns)? {
            Matrix::Quantized(table) if self.device().is_cuda() => {
                Ok(Matrix::Packed(QuantizedWeight::new(&[&table], self.device())?))
            }
            table => Ok(table),
        }
    }
}

/// The name of a tensor in a file whose names have this prefix.
fn in_file(prefix: &str, name: &str) -> String {
    // This prefix takes the place of one; others stand before the whole name.
    if prefix == "model.language_model." {
        return name.strip_prefix("model.").map_or_else(|| name.into(), |inner| format!("{prefix}{inner}"));
    }
    format!("{prefix}{name}")
}

/// What a product multiplies with.
#[derive(Debug, Clone)]
enum Weight {
    Dense(Tensor),
    /// Quantised, on a GPU.
    Packed(QuantizedWeight),
    /// Weights whose results follow one another, on the CPU: they may be quantised differently.
    Parts(Vec<Part>),
}

#[derive(Debug, Clone)]
enum Part {
    Dense(Tensor),
    Quantized(Arc<QMatMul>),
}

impl Weight {
    /// Of weights whose results follow one another.
    fn of(matrices: Vec<Matrix>, dtype: DType, device: &Device) -> candle::Result<Self> {
        let packed = matrices.iter().map(|matrix| match matrix {
            Matrix::Packed(packed) => Some(packed),
            _ => None,
        });
        if let Some(packed) = packed.collect::<Option<Vec<_>>>() {
            return QuantizedWeight::joined(&packed).map(Self::Packed);
        }
        let quantized = |matrix: &Matrix| match matrix {
            Matrix::Quantized(tensor) => Some(tensor.clone()),
            _ => None,
        };
        let all = matrices.iter().map(quantized).collect::<Option<Vec<_>>>();
        if let Some(all) = all.filter(|_| device.is_cuda()) {
            let all: Vec<_> = all.iter().map(|tensor| &**tensor).collect();
            return QuantizedWeight::new(&all, device).map(Self::Packed);
        }
        let is_dense = matrices.iter().all(|matrix| matches!(matrix, Matrix::Dense(_)));
        if is_dense || device.is_cuda() {
            let dense = matrices.iter().map(|matrix| match matrix {
                Matrix::Dense(tensor) => Ok(tensor.clone()),
                Matrix::Quantized(tensor) => tensor.dequantize(&Device::Cpu)?.to_dtype(dtype)?.to_device(device),
                Matrix::Packed(packed) => packed.dequantize(dtype),
            });
            let dense = dense.collect::<candle::Result<Vec<_>>>()?;
            return Ok(Self::Dense(if dense.len() == 1 { dense[0].clone() } else { Tensor::cat(&dense, 0)? }));
        }
        let part = |matrix: Matrix| match matrix {
            Matrix::Dense(tensor) => Ok(Part::Dense(tensor)),
            Matrix::Quantized(tensor) => QMatMul::from_arc(tensor).map(|product| Part::Quantized(Arc::new(product))),
            Matrix::Packed(packed) => packed.dequantize(dtype).map(Part::Dense),
        };
        matrices.into_iter().map(part).collect::<candle::Result<_>>().map(Self::Parts)
    }
}

/// A product with a weight of the model, with what stands around it in a layer.
#[derive(Debug, Clone)]
pub(super) struct Product {
    label: &'static str,
    weight: Weight,
    bias: Option<Tensor>,
}

impl Product {
    /// With a weight that is used elsewhere, too.
    pub fn shared(label: &'static str, weight: &Matrix, source: &Source) -> candle::Result<Self> {
        let weight = Weight::of(vec![weight.clone()], source.dtype(), source.device())?;
        Ok(Self { label, weight, bias: None })
    }

    /// `residual + norm(x) * weightᵀ + bias`.
    pub fn forward(&self, x: &Tensor, norm: Option<&Norm>, residual: Option<&Tensor>) -> candle::Result<Tensor> {
        let _scope = scope(self.label);
        match &self.weight {
            Weight::Dense(weight) => ops::norm_linear(x, norm.map(Norm::scale), weight, self.bias.as_ref(), residual),
            Weight::Packed(weight) => {
                ops::quantized_linear(x, norm.map(Norm::scale), weight, self.bias.as_ref(), residual)
            }
            Weight::Parts(parts) => {
                let y = self.by_parts(x, norm, parts)?;
                residual.map_or_else(|| Ok(y.clone()), |residual| ops::add(residual, &y))
            }
        }
    }

    /// `activation(gate) * up` of that, where the weight is both.
    pub fn gated(&self, x: &Tensor, norm: Option<&Norm>, activation: Activation) -> candle::Result<Tensor> {
        let _scope = scope(self.label);
        match &self.weight {
            Weight::Dense(weight) => ops::norm_gated(x, norm.map(Norm::scale), weight, self.bias.as_ref(), activation),
            Weight::Packed(weight) => {
                ops::quantized_gated(x, norm.map(Norm::scale), weight, self.bias.as_ref(), activation)
            }
            Weight::Parts(parts) => ops::gated(&self.by_parts(x, norm, parts)?, activation),
        }
    }

    fn by_parts(&self, x: &Tensor, norm: Option<&Norm>, parts: &[Part]) -> candle::Result<Tensor> {
        let x = norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))?;
        let results = parts.iter().map(|part| match part {
            Part::Dense(weight) => ops::linear(&x, weight, None),
            Part::Quantized(product) => {
                let product = product.clone();
                ops::custom("quantized_linear", &[&x], move |t| {
                    let of = if t[0].is_contiguous() { t[0].clone() } else { t[0].contiguous()? };
                    product.forward(&of.to_dtype(DType::F32)?)?.to_dtype(of.dtype())
                })
            }
        });
        let results = results.collect::<candle::Result<Vec<_>>>()?;
        let y = match results.as_slice() {
            [one] => one.clone(),
            several => ops::cat(&several.iter().collect::<Vec<_>>(), x.rank() - 1)?,
        };
        self.bias.as_ref().map_or_else(|| Ok(y.clone()), |bias| ops::add(&y, bias))
    }
}

/// A root-mean-square norm.
#[derive(Debug, Clone)]
pub(super) struct Norm {
    scale: Tensor,
    eps: f32,
}

impl Norm {
    /// With one plus the weight as scale, where `one_plus`.
    pub fn load(source: &Source, name: &str, size: usize, eps: f64, one_plus: bool) -> candle::Result<Self> {
        let weight = source.tensor(&format!("{name}.weight"), &[size])?;
        // GGUF files of Gemma have the sum.
        let scale = match one_plus && matches!(source, Source::Names { .. }) {
            true => (weight.to_dtype(DType::F32)? + 1.)?.to_dtype(weight.dtype())?,
            false => weight,
        };
        Ok(Self { scale, eps: eps as f32 })
    }

    pub fn scale(&self) -> ops::RmsScale<'_> {
        (&self.scale, self.eps)
    }

    pub fn forward(&self, x: &Tensor) -> candle::Result<Tensor> {
        ops::rms_norm(x, &self.scale, self.eps)
    }
}
