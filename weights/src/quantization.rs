//! What a configuration says about quantised weights.

use serde_json::Value;

use crate::fields::Fields;
use crate::harmless::Harmless;
use crate::{Unread, WeightsError};

/// The fields that describe quantised weights: of transformers, of older compressed-tensors, of MLX.
const NAMES: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// Weights of 8-bit floats, each with a scale of its own: one for the tensor, for a row, or for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantization {
    /// Rows and columns of a block.
    pub block: (usize, usize),
}

impl Default for Quantization {
    fn default() -> Self {
        Self { block: (128, 128) }
    }
}

/// How deep an object with a quantization may be: a text model is one or two levels deep.
const DEPTH: usize = 4;

impl Quantization {
    /// The quantization that a configuration, or a configuration inside of it, describes.
    ///
    /// # Errors
    /// [`WeightsError::Quantization`] for a method that is not known, [`WeightsError::UnreadFields`] for a part of a known one.
    pub fn of(config: &Value, unread: Unread) -> Result<Option<Self>, WeightsError> {
        // What is no object is its reader's to refuse.
        Fields::of(config).map_or(Ok(None), |fields| Self::within(&fields, DEPTH, unread))
    }

    fn within(all: &Fields<&Value>, depth: usize, unread: Unread) -> Result<Option<Self>, WeightsError> {
        for name in NAMES {
            match all.get(name) {
                Some(Value::Object(_)) => {
                    let Some(fields) = all.inside(name)? else { continue };
                    match Self::read(name, &fields, unread) {
                        Err(error @ WeightsError::Quantization { .. }) => unread.report(error)?,
                        found => return found.map(Some),
                    }
                }
                Some(other) => unread.report(refused(name, &other.to_string(), "is not an object"))?,
                None => {}
            }
        }
        let inner = all.iter().filter(|(name, value)| depth > 0 && value.is_object() && !NAMES.contains(name));
        for (_, value) in inner {
            if let Some(found) = Self::within(&Fields::of(*value)?, depth - 1, unread)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn read(name: &str, fields: &Fields<&Value>, unread: Unread) -> Result<Self, WeightsError> {
        let method = fields.text("quant_method")?;
        // Before they had a name, compressed tensors were known by their format.
        let method = method.or(fields.get("format").map(|_| "compressed-tensors"));
        match method {
            Some("fp8" | "fbgemm_fp8") => Self::of_fp8(name, fields, unread),
            Some("compressed-tensors") => Self::of_compressed_tensors(name, fields, unread),
            Some(other) => Err(refused(name, other, "is not known")),
            None => Err(refused(name, "no quant_method", "is not known")),
        }
    }

    /// `fp8` of transformers, DeepSeek, vLLM.
    fn of_fp8(name: &str, fields: &Fields<&Value>, unread: Unread) -> Result<Self, WeightsError> {
        if let Some(format) =
            fields.text("fmt")?.filter(|format| !format.starts_with("e4m3") && *format != "float8_e4m3fn")
        {
            return Err(refused(name, "fp8", format!("with fmt {format} is not known: known is e4m3")));
        }
        let block = block(name, fields, "weight_block_size")?;
        fields.refuse_unread(&[FP8], unread)?;
        Ok(block)
    }

    /// `compressed-tensors` of 8-bit floats.
    fn of_compressed_tensors(name: &str, fields: &Fields<&Value>, unread: Unread) -> Result<Self, WeightsError> {
        let other = |reason: String| Err(refused(name, "compressed-tensors", reason));
        let known = ["float-quantized", "naive-quantized"];
        match fields.text("format")? {
            Some(format) if known.contains(&format) => {}
            format => {
                return other(format!("of format {} is not known: known is float-quantized", format.unwrap_or("none")))
            }
        }
        let mut found = Self::default();
        let groups = fields.inside("config_groups")?;
        let names = fields
            .get("config_groups")
            .and_then(|groups| groups.as_object())
            .into_iter()
            .flatten()
            .map(|(name, _)| name);
        for group in names {
            let Some(group) = groups.as_ref().map(|groups| groups.inside(group)).transpose()?.flatten() else {
                continue;
            };
            if let Some(format) = group.text("format")?.filter(|format| !known.contains(format)) {
                return other(format!("of format {format} is not known: known is float-quantized"));
            }
            let Some(weights) = group.inside("weights")? else { continue };
            let (bits, kind) = (weights.count("num_bits")?.unwrap_or(8), weights.text("type")?.unwrap_or("int"));
            if (bits, kind) != (8, "float") {
                return other(format!("of {kind} weights of {bits} bits is not known: known are floats of 8"));
            }
            match weights.text("strategy")?.unwrap_or("tensor") {
                "tensor" | "channel" => {}
                "block" => found = block(name, &weights, "block_structure")?,
                strategy => {
                    return other(format!("by strategy {strategy} is not known: known are tensor, channel, block"))
                }
            }
            weights.refuse_unread(&[COMPRESSED_WEIGHTS], unread)?;
            group.refuse_unread(&[COMPRESSED_GROUP], unread)?;
        }
        fields.refuse_unread(&[COMPRESSED], unread)?;
        Ok(found)
    }
}

impl Fields<&Value> {
    /// Refuses what was not read by now and is not harmless, and a quantization that is not known.
    ///
    /// # Errors
    /// [`WeightsError::UnreadFields`], [`WeightsError::Quantization`].
    pub fn check(&self, harmless: &[Harmless], unread: Unread) -> Result<(), WeightsError> {
        Quantization::within(self, DEPTH, unread)?;
        for name in NAMES {
            self.get(name);
        }
        self.refuse_unread(harmless, unread)
    }
}

/// Which layers are quantised is read from the tensors. Activations and caches are not rounded here.
const FP8: Harmless = Harmless {
    names: &[
        "activation_scale_ub",
        "activation_scheme",
        "dequantize",
        "ignored_layers",
        "kv_cache_scheme",
        "modules_to_not_convert",
        "scale_fmt",
    ],
    neutral: &[],
};

const COMPRESSED: Harmless = Harmless {
    names: &["global_compression_ratio", "ignore", "kv_cache_scheme", "quantization_status", "version"],
    neutral: &[("sparsity_config", "{}"), ("sparsity_config", r#"{"format":"dense"}"#), ("transform_config", "{}")],
};

const COMPRESSED_GROUP: Harmless =
    Harmless { names: &["input_activations", "output_activations", "targets"], neutral: &[] };

const COMPRESSED_WEIGHTS: Harmless = Harmless {
    names: &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
    neutral: &[("actorder", "false"), ("dynamic", "false"), ("symmetric", "true")],
};

fn block(name: &str, fields: &Fields<&Value>, field: &str) -> Result<Quantization, WeightsError> {
    let sizes = fields.parsed(field, "a list of two numbers above 0", |value| {
        let sizes: Option<Vec<u64>> = value.as_array()?.iter().map(Value::as_u64).collect();
        match sizes?[..] {
            [rows, columns] if rows > 0 && columns > 0 => {
                Some((usize::try_from(rows).ok()?, usize::try_from(columns).ok()?))
            }
            _ => None,
        }
    });
    let sizes = sizes.map_err(|error| refused(name, "a block", error.to_string()))?;
    Ok(sizes.map_or_else(Quantization::default, |block| Quantization { block }))
}

fn refused(field: &str, method: &str, reason: impl Into<String>) -> WeightsError {
    WeightsError::Quantization { field: field.to_owned(), method: method.to_owned(), reason: reason.into() }
}
