//! Why a decoder is not loaded, or a text not written.

use std::path::PathBuf;

use opara_models::decoder::DecoderError;
use opara_models::engine::TextError;

use crate::batch::Error;

/// Result of this module's functions.
pub type Result<T, E = GenerateError> = std::result::Result<T, E>;

/// Why a decoder is not loaded, or a text not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The checkpoint, the tokenizer or the template.
    #[error(transparent)]
    Decoder(#[from] DecoderError),

    /// The request, or the model.
    #[error(transparent)]
    Text(#[from] TextError),

    /// The queue and the devices.
    #[error(transparent)]
    Queue(#[from] Error),

    /// A folder that is none.
    #[error("{}: there is no such folder or file", path.display())]
    NoSuchPath {
        /// What was named.
        path: PathBuf,
    },
}
