//! Configurations of published models, for random weights: what their `config.json` says.

use serde_json::Value;

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
        // Random weights have no token that would mean an end.
        Config::from_json(&json).ok().map(|config| Self { eos: Vec::new(), ..config })
    }

    /// For tests.
    pub fn tiny() -> Self {
        Self::named("tiny").unwrap_or_else(|| unreachable!("tests read it"))
    }
}

/// The fields of `config.json`, which the scripts of the peers read, too.
fn described(name: &str) -> Option<Value> {
    serde_json::from_str::<Value>(include_str!("sizes.json")).ok()?.get_mut(name).map(Value::take)
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
        let all: Value = serde_json::from_str(include_str!("sizes.json")).expect("JSON");
        assert_eq!(all.as_object().expect("names").len(), Config::names().len(), "every one has its name in the list");
    }
}
