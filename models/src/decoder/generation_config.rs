//! A checkpoint's `generation_config.json`: the tokens that end a text, and how tokens are drawn unless a request says otherwise.

use candle::Device;
use opara_candle::ops::Sampler;
use opara_weights::{Fields, Harmless, Unread, WeightsError, TRANSFORMERS};
use serde_json::Value;

use super::config::Config;
use super::draws::Draws;
use super::error::{DecoderError, Result};

/// Fields that a request takes the place of, or that are about how fast a text is written.
const HARMLESS: Harmless = Harmless {
    names: &[
        "_from_model_config",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "assistant_token_id",
        "cache_config",
        "chat_format",
        "compile_config",
        "disable_compile",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "is_assistant",
        "low_memory",
        "max_matching_ngram_size",
        "max_time",
        "max_window_size",
        "min_new_tokens",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "output_logits",
        "penalty_alpha",
        "prefill_chunk_size",
        "prompt_lookup_num_tokens",
        "renormalize_logits",
        "return_legacy_cache",
        "target_lookbehind",
        "top_h",
        "trust_remote_code",
        "use_model_defaults",
        "user_token_id",
    ],
    neutral: &[
        ("bad_words_ids", "[]"),
        ("begin_suppress_tokens", "[]"),
        ("constraints", "[]"),
        ("force_words_ids", "[]"),
        ("forced_decoder_ids", "[]"),
        ("generation_kwargs", "{}"),
        ("guidance_scale", "1"),
        ("sequence_bias", "{}"),
        ("stop_strings", "[]"),
        ("suppress_tokens", "[]"),
        ("token_healing", "false"),
    ],
};

impl Config {
    /// Takes the tokens that end a text from `generation_config.json`, if it names any, and how others are drawn. Fields that are not known are refused, such as
    /// those of tokens that it forbids or forces.
    pub(super) fn end_as(&mut self, generation: &Value, unread: Unread) -> Result<()> {
        let fields = Fields::of(generation)?;
        let named = fields.tokens("eos_token_id")?;
        self.draws = Draws::of(&fields)?;
        // It would fail each request that does not say otherwise.
        Sampler::new(&[self.draws.sampling(0)], &Device::Cpu)
            .map_err(|error| DecoderError::config(error.to_string()))?;
        fields.check(&[TRANSFORMERS, HARMLESS], unread)?;
        if !named.is_empty() {
            self.eos = named;
        }
        Ok(())
    }

    /// Refuses tokens that end a text and that the model does not have: it would write on.
    pub(super) fn check_ends(&self, unread: Unread) -> Result<()> {
        let vocab = self.vocab;
        match self.eos.iter().find(|end| **end as usize >= vocab) {
            Some(end) => {
                let reason = format!("`eos_token_id` names token {end}, and the vocabulary has {vocab}");
                Ok(unread.report(WeightsError::Config { reason })?)
            }
            None => Ok(()),
        }
    }
}
