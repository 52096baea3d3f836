//! The architectures that are known, and their names.

/// The architectures that [`Config`](super::Config) describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM2, and whatever else says `llama`.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Gemma 3, the text model.
    Gemma3,
    /// Phi-3 and Phi-4-mini.
    Phi3,
}

impl Architecture {
    /// All of them, by the names of `config.json` and of GGUF.
    const NAMES: [(&str, Self); 8] = [
        ("llama", Self::Llama),
        ("mistral", Self::Mistral),
        ("qwen2", Self::Qwen2),
        ("qwen3", Self::Qwen3),
        ("gemma3", Self::Gemma3),
        ("gemma3_text", Self::Gemma3),
        ("phi3", Self::Phi3),
        ("smollm2", Self::Llama),
    ];

    /// The architecture of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, architecture)| *architecture)
    }

    /// Whether files of GGUF use this name, too: Mistral's are of `llama`.
    pub(super) fn is_of_gguf(name: &str) -> bool {
        !matches!(name, "mistral" | "gemma3_text" | "smollm2")
    }

    /// The token that ends a text where no file says so: transformers' default.
    pub(super) fn end(self) -> Option<u32> {
        match self {
            Self::Llama | Self::Mistral => Some(2),
            Self::Gemma3 => Some(1),
            Self::Phi3 => Some(32_000),
            Self::Qwen2 | Self::Qwen3 => None,
        }
    }

    pub(super) fn names() -> String {
        Self::NAMES.map(|(name, _)| name).join(", ")
    }
}
