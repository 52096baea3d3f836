//! How many bytes of text a token can stand for: a text that is much too long is refused before its tokens are made.

use serde_json::Value;
use tokenizers::ModelWrapper;

use super::byte_letters::letter;
use super::text::Text;

/// A normalizer makes of so many bytes one at most: of decomposed characters composed ones (Unicode, annex 15).
const SHRINKS: usize = 3;

impl Text {
    /// The most bytes that one token of a prompt stands for. None where there is no bound: some tokenizers drop spaces, or have one
    /// token for whatever they do not know.
    pub fn bytes_of_a_token(&self) -> Option<usize> {
        let of = &self.tokenizer;
        let steps = serde_json::to_value(of.get_pre_tokenizer()).ok()?;
        let normalizer = serde_json::to_value(of.get_normalizer()).ok()?;
        let ModelWrapper::BPE(model) = of.get_model() else { return None };
        let vocab = of.get_vocab(true);
        let strips = of.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip);
        if strips || !keeps_all(&steps) {
            return None;
        }
        let has_all_bytes = if has(&steps, "ByteLevel") {
            (0..=255).all(|byte| vocab.contains_key(&letter(byte).to_string()))
        } else {
            model.byte_fallback && (0..=255).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")))
        };
        let longest = vocab.keys().map(String::len).max()?;
        has_all_bytes.then_some(longest * shrinks(&normalizer)?)
    }
}

/// Is this one of the steps, or among them?
fn has(steps: &Value, kind: &str) -> bool {
    steps["type"] == kind || inner(steps, "pretokenizers").iter().any(|step| has(step, kind))
}

/// Do these steps cut texts without dropping anything?
fn keeps_all(steps: &Value) -> bool {
    match steps["type"].as_str() {
        None => steps.is_null(),
        Some("Sequence") => inner(steps, "pretokenizers").iter().all(keeps_all),
        Some("Split" | "Punctuation") => steps["behavior"] != "Removed",
        Some(kind) => matches!(kind, "ByteLevel" | "Digits" | "Metaspace"),
    }
}

/// Of how many bytes a normalizer makes one, if that has a bound.
fn shrinks(normalizer: &Value) -> Option<usize> {
    match normalizer["type"].as_str() {
        None => normalizer.is_null().then_some(1),
        Some("Sequence") => {
            inner(normalizer, "normalizers").iter().map(shrinks).try_fold(1, |product, of| Some(product * of?))
        }
        Some("Prepend") => Some(1),
        Some("NFC") => Some(SHRINKS),
        Some("Replace") => {
            let (from, to) = (normalizer["pattern"]["String"].as_str()?, normalizer["content"].as_str()?);
            (to.len() >= from.len()).then_some(1)
        }
        Some(_) => None,
    }
}

fn inner<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_stand_for_themselves() {
        let text = Text::of_bytes().expect("a tokenizer");
        // The letters of some bytes have two.
        assert_eq!(text.bytes_of_a_token(), Some(2));
    }

    #[test]
    fn steps_that_drop_or_shrink_have_no_bound_or_a_larger_one() {
        let split = |behavior| json!({"type": "Split", "behavior": behavior});
        let both = |a, b| json!({"type": "Sequence", "pretokenizers": [a, b]});
        assert!(keeps_all(&both(split("Isolated"), json!({"type": "ByteLevel"}))));
        assert!(!keeps_all(&both(split("Removed"), json!({"type": "ByteLevel"}))));
        assert!(!keeps_all(&json!({"type": "WhitespaceSplit"})));
        let replace = |from, to| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        assert_eq!(shrinks(&Value::Null), Some(1));
        assert_eq!(shrinks(&replace(" ", "▁")), Some(1));
        assert_eq!(shrinks(&replace("  ", " ")), None);
        assert_eq!(
            shrinks(&json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend"}]})),
            Some(3)
        );
        assert_eq!(shrinks(&json!({"type": "NFKC"})), None);
    }
}
