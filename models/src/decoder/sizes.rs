//! Configurations of published models, for random weights: what their `config.json` says.

use serde_json::{json, Value};

use super::config::Config;

/// Names, and the configurations by the fields of transformers.
const NAMES: [&str; 10] = [
    "tiny",
    "small",
    "smollm2-135m",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "gemma3-1b",
    "llama3.2-1b",
    "phi3-mini",
    "mistral-7b",
    "llama3.1-8b",
];

impl Config {
    /// Names that [`Config::named`] knows.
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    /// The configuration of a published model by its name in lower case, or of two of no other use: `tiny` for tests, and
    /// `small`, whose tokens are bytes.
    pub fn named(name: &str) -> Option<Self> {
        let json = described(name)?;
        Config::from_json(&json).ok()
    }

    /// For tests.
    pub fn tiny() -> Self {
        Self::from_json(&tiny()).unwrap_or_else(|error| unreachable!("tests read it: {error}"))
    }
}

fn tiny() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    })
}

fn described(name: &str) -> Option<Value> {
    let llama3 = |factor: f64| {
        json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        })
    };
    Some(match name {
        "tiny" => tiny(),
        "small" => json!({
            "model_type": "qwen3", "vocab_size": 256, "hidden_size": 256, "intermediate_size": 768,
            "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
            "max_position_embeddings": 4096, "rope_theta": 1e6, "tie_word_embeddings": false,
        }),
        "smollm2-135m" => json!({
            "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192, "rope_theta": 1e5, "tie_word_embeddings": true,
        }),
        "qwen2.5-0.5b" => json!({
            "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": true,
        }),
        "qwen3-0.6b" => json!({
            "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": true,
        }),
        "gemma3-1b" => json!({
            "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
            "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
            "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768,
        }),
        "llama3.2-1b" => json!({
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": llama3(32.),
            "tie_word_embeddings": true,
        }),
        "phi3-mini" => json!({
            "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096, "sliding_window": 2047,
        }),
        "mistral-7b" => json!({
            "model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": null,
        }),
        "llama3.1-8b" => json!({
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072, "rope_theta": 5e5, "rope_scaling": llama3(8.),
        }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_sound_configuration() {
        for name in Config::names() {
            let config = Config::named(name).unwrap_or_else(|| panic!("{name} is not sound"));
            assert!(config.check().is_ok(), "{name}");
        }
        let qwen = Config::named("qwen2.5-0.5b").expect("it is known");
        assert_eq!((qwen.head_dim, qwen.qkv_rows(), qwen.parameters() / 1_000_000), (64, 1152, 493));
        assert_eq!(Config::named("gpt5"), None);
    }
}
