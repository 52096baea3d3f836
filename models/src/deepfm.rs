//! DeepFM, the click predictor of Guo et al., [arXiv:1703.04247](https://arxiv.org/abs/1703.04247): a factorization
//! machine and a deep network on the same embeddings.
//!
//! Tensor names follow the usual PyTorch module, with one embedding per field and order, and `nn.Sequential` for the
//! deep part:
//!
//! | name | shape | |
//! |---|---|---|
//! | `first.{field}.weight` | `(field_size, 1)` | first-order weight of an id |
//! | `second.{field}.weight` | `(field_size, embedding_dim)` | embeddings, whose dot products weight pairs of ids |
//! | `deep.{2 i}.weight`, `.bias` | `(out, in)`, `(out)` | layer `i`, ReLU between layers; the last layer has one output |
//!
//! In memory, all fields of an order share one table, so that one lookup serves them all.

use candle::{bail, DType, Device, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use opara_candle::nn::{linear, Linear};
use opara_candle::ops::{self, Activation};
use opara_candle::scope;
use serde::Deserialize;

/// The configuration of a DeepFM.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Number of ids in each field.
    pub field_sizes: Vec<usize>,
    /// Length of an embedding.
    pub embedding_dim: usize,
    /// Outputs of the deep part's layers except the last, which has one output.
    pub hidden_sizes: Vec<usize>,
}

impl Config {
    /// The categorical columns of the Criteo data, 26 of them, hashed to 10 000 ids each.
    pub fn criteo() -> Self {
        Self { field_sizes: vec![10_000; 26], embedding_dim: 16, hidden_sizes: vec![400, 400] }
    }
}

/// The row ranges of the fields in the tables.
struct Fields {
    sizes: Vec<usize>,
    /// First row of each field, `(fields)` of u32.
    offsets: Tensor,
    /// The same in i64, to avoid a kernel that converts the ids.
    wide_offsets: Tensor,
}

impl Fields {
    fn new(sizes: &[usize], device: &Device) -> Result<Self> {
        if sizes.is_empty() || sizes.contains(&0) {
            bail!("field_sizes {sizes:?} must name one field or more, of one id or more each");
        }
        let mut offsets = Vec::with_capacity(sizes.len());
        let mut rows = 0u32;
        for &size in sizes {
            offsets.push(rows);
            let end = u32::try_from(size).ok().and_then(|size| rows.checked_add(size));
            let Some(end) = end else { bail!("field_sizes have more than {} ids in all", u32::MAX) };
            rows = end;
        }
        let offsets = Tensor::new(offsets, &Device::Cpu)?;
        let wide_offsets = offsets.to_dtype(DType::I64)?.to_device(device)?;
        Ok(Self { sizes: sizes.to_vec(), offsets: offsets.to_device(device)?, wide_offsets })
    }

    /// Loads the embeddings of all fields, of `dim` columns, as one table.
    fn table(&self, dim: usize, vb: VarBuilder) -> Result<Tensor> {
        let init = Init::Randn { mean: 0., stdev: 1. };
        let table = |(field, &size)| vb.pp(field).get_with_hints((size, dim), "weight", init);
        Tensor::cat(&self.sizes.iter().enumerate().map(table).collect::<Result<Vec<_>>>()?, 0)
    }

    /// The table rows for `ids`, `(batch, fields)`.
    fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        let offsets = match ids.dtype() {
            DType::U32 => &self.offsets,
            DType::I64 => &self.wide_offsets,
            other => bail!("ids are u32 or i64, not {other:?}"),
        };
        let sizes = self.sizes.clone();
        ops::custom("rows", &[ids, offsets], move |t| {
            // Reading ids back from a GPU would stall it.
            if t[0].device().is_cpu() {
                check(t[0], &sizes)?;
            }
            t[0].broadcast_add(t[1])
        })
    }
}

/// Checks that each id is in its field's range. Otherwise it would select another field's row, and the result would be
/// wrong without an error.
fn check(ids: &Tensor, sizes: &[usize]) -> Result<()> {
    for (row, ids) in ids.to_dtype(DType::I64)?.to_vec2::<i64>()?.iter().enumerate() {
        for (field, (id, size)) in ids.iter().zip(sizes).enumerate() {
            if !usize::try_from(*id).is_ok_and(|id| id < *size) {
                bail!("id {id} in row {row} is not one of the {size} of field {field}");
            }
        }
    }
    Ok(())
}

/// Click probabilities from one id in each of several fields.
pub struct DeepFm {
    fields: Fields,
    /// `(ids of all fields, 1)`.
    first: Tensor,
    /// `(ids of all fields, embedding_dim)`.
    second: Tensor,
    deep: Vec<Linear>,
    /// `(1, 1, fields)`: a matmul with this vector sums over the fields.
    ones: Tensor,
}

impl DeepFm {
    /// Loads the tensors below `vb`.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape; a configuration without fields or with an empty field.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let fields = Fields::new(&config.field_sizes, vb.device())?;
        let dim = config.embedding_dim;
        let inputs = std::iter::once(config.field_sizes.len() * dim).chain(config.hidden_sizes.iter().copied());
        let outputs = config.hidden_sizes.iter().copied().chain([1]);
        let layers = inputs.zip(outputs).enumerate();
        Ok(Self {
            first: fields.table(1, vb.pp("first"))?,
            second: fields.table(dim, vb.pp("second"))?,
            ones: Tensor::ones((1, 1, config.field_sizes.len()), vb.dtype(), vb.device())?,
            deep: layers.map(|(i, (input, out))| linear(input, out, vb.pp("deep").pp(2 * i))).collect::<Result<_>>()?,
            fields,
        })
    }

    /// Computes the logits of pairs of ids: half of the squared norm of the embeddings' sum minus the sum of their
    /// squared norms.
    fn pairs(&self, embeddings: &Tensor) -> Result<Tensor> {
        let _scope = scope("pairs");
        let (batch, fields, dim) = embeddings.dims3()?;
        let sum = ops::matmul(&ops::broadcast_as(&self.ones, (batch, 1, fields))?, embeddings)?;
        let of_sum = squared_norm(&ops::reshape(&sum, (batch, dim))?)?;
        let of_each = squared_norm(&ops::reshape(embeddings, (batch, fields * dim))?)?;
        ops::affine(&ops::sub(&of_sum, &of_each)?, 0.5, 0.)
    }

    fn deep(&self, embeddings: &Tensor) -> Result<Tensor> {
        let _scope = scope("deep");
        let (batch, fields, dim) = embeddings.dims3()?;
        let mut x = ops::reshape(embeddings, (batch, fields * dim))?;
        for (i, layer) in self.deep.iter().enumerate() {
            let is_last = i + 1 == self.deep.len();
            x = layer.forward_act(&x, if is_last { Activation::None } else { Activation::Relu })?;
        }
        Ok(x)
    }
}

/// Maps `ids` of shape `(batch, fields)`, u32 or i64, one item per row, to click probabilities, `(batch, 1)`.
///
/// # Errors
/// Another shape or dtype. On the CPU also an id outside its field. On a GPU ids are not checked: such an id selects
/// some other id's row or, beyond all rows, causes a device fault.
impl candle::Module for DeepFm {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (batch, fields) = ids.dims2()?;
        if fields != self.fields.sizes.len() {
            bail!("{fields} ids in a row, for {} fields", self.fields.sizes.len());
        }
        let rows = self.fields.rows(ids)?;
        let embeddings = ops::embedding(&self.second, &rows)?;
        let deep = self.deep(&embeddings)?;
        let pairs = self.pairs(&embeddings)?;
        let single = ops::sum_keepdim(&ops::embedding(&self.first, &rows)?, 1)?;
        let shallow = ops::add(&ops::reshape(&single, (batch, 1))?, &pairs)?;
        ops::sigmoid(&ops::add(&deep, &shallow)?)
    }
}

/// Computes the dot product of each row with itself, `(batch, n)` to `(batch, 1)`, in one kernel.
fn squared_norm(x: &Tensor) -> Result<Tensor> {
    let (batch, n) = x.dims2()?;
    let product = ops::matmul(&ops::reshape(x, (batch, 1, n))?, &ops::reshape(x, (batch, n, 1))?)?;
    ops::reshape(&product, (batch, 1))
}
