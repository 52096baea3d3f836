//! Parts of a checkpoint that nothing reads.

/// What becomes of a part of a checkpoint that nothing here reads, and that may change the model's answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unread {
    /// The checkpoint is refused, and the error names the part.
    #[default]
    Refuse,
    /// A warning names the part.
    Warn,
}

impl Unread {
    /// Refuses or warns, as a switch such as `--allow-unread` says.
    pub fn allowed(is_allowed: bool) -> Self {
        match is_allowed {
            true => Self::Warn,
            false => Self::Refuse,
        }
    }

    /// Fails with `error`, or warns with its text.
    ///
    /// # Errors
    /// `error` itself.
    pub fn report<E: std::fmt::Display>(self, error: E) -> Result<(), E> {
        match self {
            Self::Refuse => Err(error),
            Self::Warn => {
                tracing::warn!("{error}");
                Ok(())
            }
        }
    }
}

/// Tensors that no model here reads: each model computes them from its configuration, or only training does.
const BUFFERS: [&str; 6] = [
    "position_ids",
    "num_batches_tracked",
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "attn.masked_bias",
    "attention.masked_bias",
];

/// Is this the name of a tensor that no model reads?
pub(crate) fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|buffer| name.strip_suffix(buffer).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}
