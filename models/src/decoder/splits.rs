//! How texts are split before pairs are merged, by the names of GGUF files (`tokenizer.ggml.pre`), with llama.cpp's defaults.

/// A way to split texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// Regular expressions, one after another: each splits what those before it left.
    pub patterns: &'static [&'static str],
    /// Whether a part that is a token stays whole, whatever the merges say.
    pub ignores_merges: bool,
    /// Whether a text begins with a token of its own, unless the file says otherwise.
    pub adds_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

impl Split {
    /// Of this name; `None` if it is not known.
    pub fn of(name: &str) -> Option<Self> {
        let plain = |patterns| Some(Self { patterns, ignores_merges: false, adds_bos: false });
        match name {
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
            | "jina-v5-nano" => Some(Self { patterns: &[LLAMA3], ignores_merges: true, adds_bos: true }),
            "tekken" => Some(Self { patterns: &[TEKKEN], ignores_merges: true, adds_bos: true }),
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => plain(&[LLAMA3]),
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "megrez" | "stablelm2" | "hunyuan" | "solar-open" | "grok-2" => {
                plain(&[QWEN2])
            }
            "qwen35" => plain(&[QWEN35]),
            "seed-coder" => plain(&[SEED_CODER]),
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => plain(&[GPT4O]),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "gigachat" | "a.x-4.0"
            | "mellum" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" => plain(&[GPT2]),
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
                plain(&[r"\p{N}", GPT2])
            }
            "falcon" => plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
            "deepseek-coder" => plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
                plain(&[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3])
            }
            "poro-chat" | "bloom" | "gpt3-finnish" => plain(&[BLOOM]),
            "viking" => plain(&[BLOOM, r"\p{N}"]),
            "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
            _ => None,
        }
    }
}
