//! Fields that change no answer.

use serde_json::Value;

/// Fields of an object of JSON that its reader does not read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Harmless {
    /// Fields that change no answer, whatever they say.
    pub names: &'static [&'static str],
    /// Fields that change no answer where they have this value, in JSON.
    pub neutral: &'static [(&'static str, &'static str)],
}

/// Fields of every configuration that transformers writes. They concern training, files, and how texts are generated, which a
/// request says.
pub const TRANSFORMERS: Harmless = Harmless {
    names: &[
        // Of the files.
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_attn_implementation_internal",
        "_commit_hash",
        "_flash_attn_2_enabled",
        "_name_or_path",
        "_pre_quantization_dtype",
        "architectures",
        "attn_implementation",
        "auto_map",
        "dtype",
        "model_type",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        // Of training.
        "attention_dropout",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "dropout_rate",
        "embd_pdrop",
        "gradient_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "initializer_factor",
        "initializer_range",
        "resid_pdrop",
        // Of how it is computed.
        "chunk_size_feed_forward",
        "pretraining_tp",
        "tf_legacy_loss",
        "torchscript",
        "use_bfloat16",
        "use_cache",
        // Of what is returned, and of heads that are refused by the names of their tensors.
        "finetuning_task",
        "id2label",
        "label2id",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "use_return_dict",
        // Of generation.
        "bos_token_id",
        "cache_implementation",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "pad_token_id",
        "prefix",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "sep_token_id",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ],
    neutral: &[
        ("add_cross_attention", "false"),
        ("cross_attention_hidden_size", "null"),
        ("is_encoder_decoder", "false"),
        ("pruned_heads", "{}"),
        ("pruned_heads", "[]"),
        ("tie_encoder_decoder", "false"),
    ],
};

impl Harmless {
    /// Whether a field changes no answer with this value.
    pub(crate) fn is_neutral(&self, name: &str, value: &Value) -> bool {
        self.neutral.iter().any(|(neutral, json)| *neutral == name && is_same(value, json))
    }
}

/// Do these stand for the same value? Numbers are compared as numbers.
fn is_same(value: &Value, json: &str) -> bool {
    match (value, serde_json::from_str::<Value>(json)) {
        (Value::Number(a), Ok(Value::Number(b))) => a.as_f64() == b.as_f64(),
        (value, other) => other.is_ok_and(|other| other == *value),
    }
}
