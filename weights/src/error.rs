//! What can go wrong between a model's name and its tensors.

use std::error::Error;
use std::path::PathBuf;

use candle::DType;
use hf_hub::api::sync::ApiError;

/// Why a checkpoint or one of its tensors could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The name can be neither a file nor a folder nor a hub repository.
    #[error("`{model}` is neither an existing file or folder nor a hub repository id such as `org/name`")]
    NotAModel {
        /// The name as given.
        model: String,
    },

    /// The hub did not say which files the model has.
    #[error(
        "model `{model}` is not in the local cache and the hub did not answer for it; a local \
         folder with config.json, model.safetensors or pytorch_model.bin (or the .index.json of \
         either and its shards) and, where needed, tokenizer.json can be given instead"
    )]
    Hub {
        /// The repository id.
        model: String,
        /// What the hub client reported.
        source: ApiError,
    },

    /// The hub accepted a request and then sent nothing.
    #[error(
        "the hub sent nothing for {seconds} s when asked for {what} of model `{model}`: check the network, the proxy and \
         HF_ENDPOINT, wait longer with HF_HUB_DOWNLOAD_TIMEOUT (in seconds), or give a local folder instead"
    )]
    HubSilent {
        /// The repository id.
        model: String,
        /// The file, or the list of files.
        what: String,
        /// How long it was silent.
        seconds: u64,
    },

    /// The hub lists the file, but it could not be downloaded.
    #[error("cannot download `{file}` of model `{model}`")]
    Download {
        /// The repository id.
        model: String,
        /// The file inside the repository.
        file: String,
        /// What the hub client reported.
        source: ApiError,
    },

    /// A file that is needed is not there.
    #[error("model `{model}` has no {file}")]
    MissingFile {
        /// The folder or repository id.
        model: String,
        /// The file, or the alternatives.
        file: String,
    },

    /// A pointer of Git LFS lies where the file should be.
    #[error(
        "{} is a pointer of Git LFS and not the file itself: run `git lfs pull` in its folder, or download the file",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },

    /// The operating system refused to read a file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },

    /// A JSON file does not hold what it should.
    #[error("cannot understand {}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },

    /// A weights file contradicts itself: cut short, or a header that lies.
    #[error("{} is not a sound weights file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },

    /// A tensor is not where it should be.
    #[error("tensor `{name}` is not in {}", file.display())]
    MissingTensor {
        /// The tensor's full name.
        name: String,
        /// The weights file, or the index of the shards.
        file: PathBuf,
    },

    /// A tensor has another shape than the model wants.
    #[error("tensor `{name}` in {} has shape {found:?}, not {wanted:?}", file.display())]
    WrongShape {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that was asked for.
        wanted: Vec<usize>,
    },

    /// A tensor's dtype cannot stand for the one the model wants.
    #[error("tensor `{name}` in {} has dtype {found}, which does not convert to {wanted:?}", file.display())]
    WrongDtype {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The dtype in the file.
        found: safetensors::Dtype,
        /// The dtype that was asked for.
        wanted: DType,
    },

    /// A tensor was read but could not be converted or moved to its device.
    #[error("cannot place tensor `{name}` of {}", file.display())]
    Place {
        /// The tensor's full name.
        name: String,
        /// The weights file.
        file: PathBuf,
        /// The tensor library's reason.
        source: Box<candle::Error>,
    },

    /// Seeded weights are floats; something else was asked for.
    #[error("seeded tensor `{name}` cannot have dtype {wanted:?}: seeded weights are floats")]
    SeededDtype {
        /// The tensor's full name.
        name: String,
        /// The dtype that was asked for.
        wanted: DType,
    },

    /// Seeded weights know no shapes; the model has to name one.
    #[error("seeded tensor `{name}` was asked for without a shape, which only the model knows")]
    SeededShape {
        /// The tensor's full name.
        name: String,
    },
}

/// Keeps the whole chain of causes, since candle keeps only a message.
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
