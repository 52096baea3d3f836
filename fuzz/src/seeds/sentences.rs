//! The files of a folder of sentence-transformers, with a BERT whose weights are ones.

use std::collections::HashMap;
use std::sync::LazyLock;

use candle::{DType, Device, Tensor};

const CONFIG: &[u8] = br#"{"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 1,
"num_attention_heads": 2, "intermediate_size": 12, "hidden_act": "gelu", "max_position_embeddings": 16, "type_vocab_size": 2,
"layer_norm_eps": 1e-12}"#;

const MODULES: &[u8] = br#"[
{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
{"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
{"idx": 3, "name": "3", "path": "3_LayerNorm", "type": "sentence_transformers.models.LayerNorm"},
{"idx": 4, "name": "4", "path": "4_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

static FILES: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let text = |name, text: &[u8]| (name, text.to_vec());
    vec![
        text("modules.json", MODULES),
        text("config.json", CONFIG),
        text("tokenizer.json", include_bytes!("../../seeds/wordpiece.json")),
        text("tokenizer_config.json", br#"{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "model_max_length": 12}"#),
        text("sentence_bert_config.json", br#"{"max_seq_length": 12, "do_lower_case": false}"#),
        text(
            "config_sentence_transformers.json",
            br#"{"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query", "truncate_dim": null}"#,
        ),
        text(
            "1_Pooling/config.json",
            br#"{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false,
"pooling_mode_max_tokens": true, "include_prompt": false}"#,
        ),
        text(
            "2_Dense/config.json",
            br#"{"in_features": 16, "out_features": 4, "bias": true, "activation_function": "torch.nn.modules.activation.Tanh"}"#,
        ),
        ("2_Dense/model.safetensors", stored(&[("linear.weight", &[4, 16]), ("linear.bias", &[4])])),
        text("3_LayerNorm/config.json", br#"{"dimension": 4}"#),
        ("3_LayerNorm/model.safetensors", stored(&[("norm.weight", &[4]), ("norm.bias", &[4])])),
        text("4_Normalize/config.json", b"{}"),
        ("model.safetensors", stored(&of_bert())),
    ]
});

/// All of them by name.
pub fn files() -> &'static [(&'static str, Vec<u8>)] {
    &FILES
}

/// Tensors of ones.
fn stored(shapes: &[(&str, &[usize])]) -> Vec<u8> {
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu).expect("memory");
    let tensors: HashMap<_, _> = shapes.iter().map(|(name, shape)| (name.to_string(), ones(shape))).collect();
    safetensors::serialize(&tensors, None).expect("sound tensors")
}

fn of_bert() -> Vec<(&'static str, &'static [usize])> {
    const NORM: &[usize] = &[8];
    let mut shapes: Vec<(&str, &[usize])> = vec![
        ("embeddings.word_embeddings.weight", &[24, 8]),
        ("embeddings.position_embeddings.weight", &[16, 8]),
        ("embeddings.token_type_embeddings.weight", &[2, 8]),
        ("encoder.layer.0.intermediate.dense.weight", &[12, 8]),
        ("encoder.layer.0.intermediate.dense.bias", &[12]),
        ("encoder.layer.0.output.dense.weight", &[8, 12]),
    ];
    for name in ["self.query", "self.key", "self.value", "output.dense"] {
        shapes.push((Box::leak(format!("encoder.layer.0.attention.{name}.weight").into_boxed_str()), &[8, 8]));
        shapes.push((Box::leak(format!("encoder.layer.0.attention.{name}.bias").into_boxed_str()), NORM));
    }
    for name in ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"] {
        shapes.push((Box::leak(format!("{name}.LayerNorm.weight").into_boxed_str()), NORM));
        shapes.push((Box::leak(format!("{name}.LayerNorm.bias").into_boxed_str()), NORM));
    }
    shapes.push(("encoder.layer.0.output.dense.bias", NORM));
    shapes
}
