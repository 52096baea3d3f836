//! NV-Embed: candle's Mistral without a causal mask, unchanged, and this library's attention over latents. That of candle has
//! another GELU than the checkpoints' code, and one size.

use candle_transformers::models::mistral::Config;
use candle_transformers::models::nvembed_v2::embedding::Model;
use opara_weights::{Fields, Harmless, Unread, TRANSFORMERS};
use serde_json::Value;

use super::super::architecture::{Architecture, Sizes};
use super::super::Result;
use super::latents::{LatentAttention, LatentSizes};
use super::{qwen, rotary};

/// The checkpoints' own code pads texts, ends them, and leaves out prompts by these. Here the tokenizer does the first two, and the
/// module behind the transformer the third, as in sentence-transformers.
const HARMLESS: Harmless = Harmless {
    names: &["add_eos", "add_pad_token", "hidden_size", "is_mask_instruction", "sentence_transformers"],
    neutral: &[("mask_type", "\"b\""), ("padding_side", "\"right\"")],
};

const OF_TEXTS: Harmless = Harmless {
    // Tokens see all others, whatever the window is.
    names: &["sliding_window"],
    neutral: &[("is_decoder", "false"), ("tie_word_embeddings", "true"), ("tie_word_embeddings", "false")],
};

const OF_LATENTS: Harmless = Harmless {
    // Of vectors that the checkpoints' own code pools.
    names: &["output_normalize"],
    neutral: &[
        ("is_decoder", "false"),
        ("mult", "4"),
        ("tie_word_embeddings", "true"),
        ("tie_word_embeddings", "false"),
    ],
};

/// Elements of all heads of the attention over latents. Published models have 32,768.
const INNER: usize = 1 << 20;

pub(super) fn read(json: &Value, unread: Unread) -> Result<Architecture> {
    let whole = Fields::of(json)?;
    let fields = whole.object("text_config")?;
    let (width, heads) = (fields.needed("hidden_size")?, fields.needed("num_attention_heads")?);
    if let Some(dim) = fields.count("head_dim")?.filter(|dim| dim * heads != width) {
        return Err(fields.unsound("head_dim", format!("is {dim}: {heads} heads have {width} elements")).into());
    }
    let groups = fields.count("num_key_value_heads")?.unwrap_or(8);
    if groups >= heads || heads % groups != 0 {
        let reason = format!("is {groups}: candle's module shares each among several of {heads} heads");
        return Err(fields.unsound("num_key_value_heads", reason).into());
    }
    let config = Config {
        vocab_size: fields.needed("vocab_size")?,
        hidden_size: width,
        intermediate_size: fields.needed("intermediate_size")?,
        num_hidden_layers: fields.needed("num_hidden_layers")?,
        num_attention_heads: heads,
        head_dim: None,
        num_key_value_heads: groups,
        hidden_act: qwen::activation(&fields)?,
        max_position_embeddings: fields.needed("max_position_embeddings")?,
        rms_norm_eps: fields.epsilon("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta: rotary::theta(&fields, "rope_theta", 10_000.)?,
        sliding_window: None,
        use_flash_attn: false,
    };
    fields.check(&[TRANSFORMERS, OF_TEXTS], unread)?;
    let latents = latents(&whole.object("latent_attention_config")?, width, unread)?;
    whole.check(&[TRANSFORMERS, HARMLESS], unread)?;
    let sizes = Sizes::without_types(config.vocab_size, width, config.max_position_embeddings);
    let architecture = Architecture::new(sizes, move |vb, limit| {
        let config = Config { max_position_embeddings: limit, ..config.clone() };
        let model = Model::new(&config, vb.pp("embedding_model"))?;
        let latents = LatentAttention::load(latents, &vb.pp("latent_attention_model"))?;
        let dtype = vb.dtype();
        Ok(Box::new(move |tokens| {
            // Its `forward` changes nothing of a clone, which shares the weights.
            latents.forward(&model.clone().forward(tokens.mask, tokens.ids, dtype)?)
        }))
    });
    // The module panics in 16 bits.
    Ok(architecture.in_f32_only())
}

fn latents(fields: &Fields<&Value>, width: usize, unread: Unread) -> Result<LatentSizes> {
    for name in ["hidden_dim", "latent_dim"] {
        let size = fields.count(name)?.unwrap_or(4_096);
        if size != width {
            return Err(fields.unsound(name, format!("is {size}, and hidden states have {width} elements")).into());
        }
    }
    let sizes = LatentSizes {
        width,
        latents: fields.count("num_latents_value")?.unwrap_or(512),
        heads: fields.count("num_cross_heads")?.unwrap_or(8),
        head: fields.count("cross_dim_head")?.unwrap_or(4_096),
    };
    // Keys and values of all heads are one product.
    if sizes.heads.checked_mul(sizes.head).is_none_or(|inner| inner > INNER) {
        let (heads, head) = (sizes.heads, sizes.head);
        let reason = format!("is {head}: no model has {heads} heads that are so wide");
        return Err(fields.unsound("cross_dim_head", reason).into());
    }
    fields.check(&[TRANSFORMERS, OF_LATENTS], unread)?;
    Ok(sizes)
}
