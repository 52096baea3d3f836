//! Tensors by name, as the Open Inference Protocol has them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use super::failure::{Failure, Result};

/// The protocol's types of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the protocol's")]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bf16,
    Bytes,
}

use Datatype::*;

const NAMES: [(Datatype, &str); 14] = [
    (Bool, "BOOL"),
    (Uint8, "UINT8"),
    (Uint16, "UINT16"),
    (Uint32, "UINT32"),
    (Uint64, "UINT64"),
    (Int8, "INT8"),
    (Int16, "INT16"),
    (Int32, "INT32"),
    (Int64, "INT64"),
    (Fp16, "FP16"),
    (Fp32, "FP32"),
    (Fp64, "FP64"),
    (Bf16, "BF16"),
    (Bytes, "BYTES"),
];

impl Datatype {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(datatype, _)| *datatype == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Datatype {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self> {
        let found = NAMES.iter().find(|(_, n)| *n == name);
        found.map(|(datatype, _)| *datatype).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            Failure::invalid(format!("there is no datatype {name:?}: it is one of {}", names.join(", ")))
        })
    }
}

/// Elements in row-major order. Of these types models of this server take inputs and give outputs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// INT32 and INT64.
    Ints(Vec<i64>),
    /// FP32.
    Floats(Vec<f32>),
    /// BYTES.
    Bytes(Vec<bytes::Bytes>),
}

impl Values {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Values::Ints(values) => values.len(),
            Values::Floats(values) => values.len(),
            Values::Bytes(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor of a request or an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its type on the wire.
    pub datatype: Datatype,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// As many as the shape says.
    pub values: Values,
}

/// What a model takes or gives; -1 stands for a dimension that varies.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its type.
    pub datatype: Datatype,
    /// Its dimensions.
    pub shape: Vec<i64>,
}

/// The dimensions of a request as sizes, and the number of elements.
///
/// # Errors
/// A negative dimension; more elements than `limit`.
pub(crate) fn checked_shape(name: &str, shape: &[i64], limit: usize) -> Result<(Vec<usize>, usize)> {
    let negative = || Failure::invalid(format!("input {name:?} has shape {shape:?}: dimensions cannot be negative"));
    let dims = shape.iter().map(|&dim| usize::try_from(dim).map_err(|_| negative())).collect::<Result<Vec<_>>>()?;
    let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)).filter(|&n| n <= limit);
    let elements = elements.ok_or_else(|| {
        let message = format!("input {name:?} has shape {shape:?}: at most {limit} elements are taken");
        Failure::new(super::Kind::TooLarge, message)
    })?;
    Ok((dims, elements))
}
