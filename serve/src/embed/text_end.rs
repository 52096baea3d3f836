//! The token that code of a checkpoint's own puts behind each text, where `tokenizer.json` has none.

use serde_json::Value;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{PostProcessor, Tokenizer};

use super::file_fields::FileFields;
use super::Result;

/// The code of `gte-Qwen2` and of Stella of 1.5B.
const KNOWN: [&str; 2] = ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"];

/// What `tokenizer_config.json` says of it. Code that is not known is refused: nobody runs it here.
pub(super) fn read(fields: &FileFields) -> Result<Option<String>> {
    let classes = classes(fields.take("auto_map")?.unwrap_or_default());
    if let Some(other) = classes.iter().find(|class| !is_known(class)) {
        let advice = "code of a checkpoint is not run; pass over it if tokenizer.json says the same";
        // Where it is passed over, nobody knows whether it reads the fields below.
        return fields.report(&format!("`auto_map` {other:?}"), advice).map(|()| None);
    }
    let ends = fields.take("add_eos_token")?.unwrap_or(false);
    // Without code of its own transformers 5 reads `tokenizer.json` alone.
    if classes.is_empty() || !ends {
        return Ok(None);
    }
    let token = fields.take::<Value>("eos_token")?.unwrap_or_default();
    match token.as_str().or(token["content"].as_str()) {
        Some(token) => Ok(Some(token.to_owned())),
        None => Err(fields.wrong("`add_eos_token` is true, and there is no `eos_token`".into())),
    }
}

/// Whether a class is known, behind the repository that has its code.
fn is_known(class: &str) -> bool {
    KNOWN.contains(&class.split_once("--").map_or(class, |(_, class)| class))
}

/// The classes of tokenizers in an `auto_map`: an object, or of earlier versions their list alone.
fn classes(map: Value) -> Vec<String> {
    let found = match &map {
        Value::Object(map) => map.get("AutoTokenizer").unwrap_or(&Value::Null),
        other => other,
    };
    let list = found.as_array().cloned().unwrap_or_else(|| vec![found.clone()]);
    list.iter().filter_map(|class| Some(class.as_str()?.to_owned())).collect()
}

/// Puts this token behind each text, unless `tokenizer.json` adds tokens of its own.
pub(super) fn put(tokenizer: &mut Tokenizer, token: &str) -> tokenizers::Result<()> {
    if tokenizer.get_post_processor().is_some_and(|own| own.added_tokens(false) > 0) {
        return Ok(());
    }
    let id = tokenizer.token_to_id(token).ok_or_else(|| format!("`eos_token` {token:?} is no token"))?;
    // All of type 0: the models of such tokenizers have no other.
    let ended = |text: &str| [format!("{text}:0"), format!("{token}:0")];
    let template = TemplateProcessing::builder()
        .try_single(ended("$A").to_vec())?
        .try_pair([ended("$A"), ended("$B")].concat())?
        .special_tokens(vec![(token.to_owned(), id)])
        .build()?;
    tokenizer.with_post_processor(Some(template));
    Ok(())
}
