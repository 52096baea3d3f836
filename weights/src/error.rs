//! The errors of finding a checkpoint and reading its tensors.

use std::error::Error;
use std::path::PathBuf;

use candle::DType;
use hf_hub::api::sync::ApiError;

use crate::fields::FieldError;

/// Why a checkpoint or one of its tensors could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The name is neither an existing file or folder nor a hub repository id.
    #[error("`{model}` is neither an existing file or folder nor a hub repository id such as `org/name`")]
    NotAModel {
        /// The name as given.
        model: String,
    },

    /// The hub did not return the list of the model's files.
    #[error(
        "model `{model}` is not in the local cache and the hub did not answer for it; a local \
         folder with config.json, model.safetensors or pytorch_model.bin (or the .index.json of \
         either and its shards) and, where needed, tokenizer.json can be given instead"
    )]
    Hub {
        /// The repository id.
        model: String,
        /// The error of the hub client.
        source: ApiError,
    },

    /// The hub accepted a request and then sent no data until the timeout.
    #[error(
        "the hub sent nothing for {seconds} s after a request for {what} of model `{model}`: check the network, the proxy and \
         HF_ENDPOINT, wait longer with HF_HUB_DOWNLOAD_TIMEOUT (in seconds), or give a local folder instead"
    )]
    HubSilent {
        /// The repository id.
        model: String,
        /// The requested file, or the list of files.
        what: String,
        /// The timeout in seconds.
        seconds: u64,
    },

    /// The hub lists the file, but the download failed.
    #[error("cannot download `{file}` of model `{model}`")]
    Download {
        /// The repository id.
        model: String,
        /// The file inside the repository.
        file: String,
        /// The error of the hub client.
        source: ApiError,
    },

    /// A required file does not exist.
    #[error("model `{model}` has no {file}")]
    MissingFile {
        /// The folder or repository id.
        model: String,
        /// The file, or the alternatives.
        file: String,
    },

    /// The file is a Git LFS pointer instead of the weights.
    #[error(
        "{} is a Git LFS pointer and not the file itself: run `git lfs pull` in its folder, or download the file",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },

    /// The operating system could not read a file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A JSON file does not have the expected contents.
    #[error("cannot parse {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },

    /// A configuration lacks a field, or a field has a value that no model can have.
    #[error("the configuration is not sound: {reason}")]
    Config {
        /// The field, and the reason.
        reason: String,
    },

    /// A configuration has fields that nothing here reads, and that may change the model's answer.
    #[error(
        "the configuration has {}, which {} not known here and may change the answer: use another checkpoint, or leave the \
         model's meaning to your own judgement with --allow-unread (`Checkpoint::allow_unread`)",
        fields.join(", "),
        if fields.len() == 1 { "is" } else { "are" }
    )]
    UnreadFields {
        /// Names and values.
        fields: Vec<String>,
    },

    /// A weight is packed, and the configuration does not say how.
    #[error(
        "`{name}` is quantised in {}, where `{beside}` stands beside it, and the configuration names no quantization. Read are 8-bit \
         floats with `weight_scale` or `weight_scale_inv`: use such a checkpoint, one of 16-bit floats, or a GGUF file",
        file.display()
    )]
    Packed {
        /// The weight that the model asks for.
        name: String,
        /// A tensor of a quantization.
        beside: String,
        /// The weights file, or the index of the shards.
        file: PathBuf,
    },

    /// An adapter lies beside the weights.
    #[error("{}: an adapter, which is not applied here: merge it into the weights", path.display())]
    Adapter {
        /// The adapter's configuration.
        path: PathBuf,
    },

    /// A configuration describes quantised weights that cannot be read.
    #[error(
        "`{field}` of the configuration says {method}, which {reason}. Read are 8-bit floats (fp8, fbgemm_fp8, and \
         compressed-tensors of format float-quantized): use such a checkpoint, one of 16-bit floats, or a GGUF file"
    )]
    Quantization {
        /// The field of the configuration.
        field: String,
        /// The method of quantization.
        method: String,
        /// Why it cannot be read.
        reason: String,
    },

    /// A quantised tensor lacks its scale, or the scale does not fit it.
    #[error("tensor `{name}` in {} is quantised, and {reason}", file.display())]
    Scale {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The scale, and the reason.
        reason: String,
    },

    /// A checkpoint has tensors that the model does not read, and that may change its answer.
    #[error(
        "the model does not read {} of the tensors in {}, which may change the answer: {}. Use a checkpoint of this \
         architecture, or load it without them with --allow-unread (`Checkpoint::allow_unread`)",
        names.len(),
        file.display(),
        listed(names)
    )]
    UnreadTensors {
        /// The weights file, or the index of the shards.
        file: PathBuf,
        /// The tensors' full names.
        names: Vec<String>,
    },

    /// A weights file is inconsistent: it is truncated, or its header is wrong.
    #[error("{} is not a valid weights file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The inconsistency.
        reason: String,
    },

    /// A requested tensor is not in the checkpoint.
    #[error("tensor `{name}` is not in {}", file.display())]
    MissingTensor {
        /// The tensor's full name.
        name: String,
        /// The weights file, or the index of the shards.
        file: PathBuf,
    },

    /// A tensor's shape differs from the requested one.
    #[error("tensor `{name}` in {} has shape {found:?}, not {wanted:?}", file.display())]
    WrongShape {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The shape in the file.
        found: Vec<usize>,
        /// The requested shape.
        wanted: Vec<usize>,
    },

    /// A tensor's dtype cannot be converted to the requested one.
    #[error("tensor `{name}` in {} has dtype {found}, which does not convert to {wanted:?}", file.display())]
    WrongDtype {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The dtype in the file.
        found: safetensors::Dtype,
        /// The requested dtype.
        wanted: DType,
    },

    /// A tensor was read but could not be converted or moved to its device.
    #[error("cannot convert or move tensor `{name}` of {}", file.display())]
    Place {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The error of candle.
        source: Box<candle::Error>,
    },

    /// A seeded weight was requested in a dtype other than a float.
    #[error("seeded tensor `{name}` cannot have dtype {wanted:?}: seeded weights are floats")]
    SeededDtype {
        /// The tensor's full name.
        name: String,
        /// The requested dtype.
        wanted: DType,
    },

    /// A seeded weight was requested without a shape, which only the model knows.
    #[error("seeded tensor `{name}` was requested without a shape, which only the model knows")]
    SeededShape {
        /// The tensor's full name.
        name: String,
    },
}

/// The first names of a list, and the number of the others.
fn listed(names: &[String]) -> String {
    const LISTED: usize = 8;
    let first = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => first,
        others => format!("{first} and {others} others"),
    }
}

impl From<FieldError> for WeightsError {
    fn from(error: FieldError) -> Self {
        Self::Config { reason: error.to_string() }
    }
}

/// Includes all causes in the message, because candle keeps only a message.
impl From<WeightsError> for candle::Error {
    fn from(error: WeightsError) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message.push_str(&format!(": {inner}"));
            cause = inner.source();
        }
        Self::msg(message)
    }
}
