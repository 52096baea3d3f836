//! Sound inputs that are texts.

use serde_json::Value;

use crate::parts::join;

pub const CONFIGS: [&[u8]; 16] = [
    include_bytes!("../../../models/tests/data/decoder/gemma3-caps.json"),
    include_bytes!("../../../models/tests/data/decoder/gemma3.json"),
    include_bytes!("../../../models/tests/data/decoder/llama3.json"),
    include_bytes!("../../../models/tests/data/decoder/mistral.json"),
    include_bytes!("../../../models/tests/data/decoder/phi3-long.json"),
    include_bytes!("../../../models/tests/data/decoder/phi3.json"),
    include_bytes!("../../../models/tests/data/decoder/qwen2-windows.json"),
    include_bytes!("../../../models/tests/data/decoder/qwen3.json"),
    br#"{"model_type":"llama","hidden_size":16,"num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":1,"intermediate_size":24,"vocab_size":30,"max_position_embeddings":16,"rms_norm_eps":1e-5,"rope_theta":1e4,"tie_word_embeddings":false,"eos_token_id":[1,2],"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64},"mlp_bias":true,"attention_bias":true}"#,
    br#"{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":16,"num_hidden_layers":2,"intermediate_size":24,"head_dim":8,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":30,"sliding_window":16,"sliding_window_pattern":2,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"final_logit_softcapping":30.0},"quantization_config":null}"#,
    br#"{"model_type":"phi3","hidden_size":16,"num_attention_heads":4,"num_hidden_layers":1,"intermediate_size":24,"vocab_size":30,"max_position_embeddings":32,"original_max_position_embeddings":16,"rope_scaling":{"type":"longrope","short_factor":[1,1],"long_factor":[2,2]},"partial_rotary_factor":1.0,"sliding_window":null}"#,
    br#"{"model_type":"qwen2","hidden_size":16,"num_attention_heads":2,"num_hidden_layers":2,"intermediate_size":24,"vocab_size":30,"max_position_embeddings":32,"use_sliding_window":true,"sliding_window":4,"max_window_layers":1,"tie_word_embeddings":true}"#,
    br#"{"model_type":"bert","architectures":["BertModel"],"vocab_size":24,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":12,"hidden_act":"gelu_new","max_position_embeddings":16,"type_vocab_size":2,"layer_norm_eps":1e-12,"position_embedding_type":"absolute","is_decoder":false}"#,
    br#"{"vocab_size":24,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":12,"max_position_embeddings":16}"#,
    br#"{"model_type":"t5","vocab_size":24,"d_model":8,"d_kv":4,"d_ff":12,"num_layers":1,"num_decoder_layers":2,"num_heads":2,"relative_attention_num_buckets":8,"relative_attention_max_distance":20,"layer_norm_epsilon":1e-6,"feed_forward_proj":"gated-gelu","dense_act_fn":"gelu_new","is_gated_act":true,"tie_word_embeddings":false,"n_positions":16,"pad_token_id":0,"eos_token_id":1,"decoder_start_token_id":0,"is_encoder_decoder":true}"#,
    br#"{"model_type":"mt5","vocab_size":24,"d_model":8,"d_kv":4,"d_ff":12,"num_layers":1,"num_heads":2,"relative_attention_num_buckets":4,"feed_forward_proj":"relu","n_positions":8,"tie_word_embeddings":true}"#,
];

pub const GENERATION: &[u8] = br#"{"bos_token_id":1,"eos_token_id":[2,7],"suppress_tokens":[],"temperature":0.5}"#;

/// Tensors of 8-bit floats and of others, as a line of header.
pub const FLOATS: &[u8] = br#"{"__metadata__":{"format":"pt"},"a.weight":{"dtype":"F8_E4M3","shape":[4,4],"data_offsets":[0,16]},"b.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[16,24]}}
8899"#;

pub const SCALES: &[u8] = br#"{"a.weight_scale_inv":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"c.weight":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[16,19]},"c.weight_scale":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[19,20]},"c.input_scale":{"dtype":"F32","shape":[],"data_offsets":[20,24]}}
?8=9"#;

pub const INDEX: &[u8] = br#"{"metadata":{"total_size":48},"weight_map":{"a.weight":"one.safetensors","b.weight":"one.safetensors","a.weight_scale_inv":"two.safetensors","c.weight":"two.safetensors","c.weight_scale":"two.safetensors","c.input_scale":"two.safetensors"}}"#;

pub const ALL_TYPES: &[u8] = br#"{"f64":{"dtype":"F64","shape":[1,2],"data_offsets":[0,16]},"f16":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},"i64":{"dtype":"I64","shape":[],"data_offsets":[20,28]},"u32":{"dtype":"U32","shape":[0,3],"data_offsets":[28,28]},"u8":{"dtype":"U8","shape":[3],"data_offsets":[28,31]},"e5":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[31,32]},"f4":{"dtype":"F4","shape":[2],"data_offsets":[32,33]},"bool":{"dtype":"BOOL","shape":[1],"data_offsets":[33,34]}}
01"#;

pub const QUANTIZATIONS: [&[u8]; 3] = [
    br#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[2,2],"fmt":"e4m3","activation_scheme":"dynamic"}}"#,
    br#"{"text_config":{"compression_config":{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":[2,2],"dynamic":false,"symmetric":true}}},"ignore":["lm_head"],"sparsity_config":{}}}}"#,
    br#"{"quantization_config":{"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0,"modules_to_not_convert":["lm_head"]}}"#,
];

pub const POOLINGS: [&[u8]; 3] = [
    br#"{"word_embedding_dimension":8,"pooling_mode":["lasttoken","mean"],"include_prompt":true}"#,
    br#"{"word_embedding_dimension":8,"pooling_mode":["cls","max"],"include_prompt":true}"#,
    br#"{"word_embedding_dimension":8,"pooling_mode_cls_token":true,"pooling_mode_weightedmean_tokens":true,"pooling_mode_mean_sqrt_len_tokens":false,"pooling_mode_lasttoken":false}"#,
];

/// Templates with the conversations that they are tested with.
pub fn templates() -> Vec<Vec<u8>> {
    let all: Value = serde_json::from_str(include_str!("../../../models/tests/data/templates.json")).expect("JSON");
    let cases = all["cases"].as_array().map(Vec::as_slice).unwrap_or_default();
    let input = |case: &Value| {
        let template = case["template"].as_str()?;
        let messages = all["names"][case["names"].as_str()?]["messages"].to_string();
        Some(join(&[
            (b'a', template.as_bytes()),
            (b't', b"{{ tools | tojson(indent=1) }}"),
            (b'm', messages.as_bytes()),
        ]))
    };
    cases.iter().filter_map(input).collect()
}

pub fn tokenizers() -> Vec<Vec<u8>> {
    let files: [&[u8]; 5] = [
        include_bytes!("../../seeds/tokenizer.json"),
        include_bytes!("../../seeds/wordpiece.json"),
        include_bytes!("../../seeds/unigram.json"),
        include_bytes!("../../seeds/wordlevel.json"),
        include_bytes!("../../seeds/bpe.json"),
    ];
    let text = "a cat \u{2581}ab hello12345".as_bytes();
    let mut inputs: Vec<_> = files.iter().map(|file| join(&[(b'a', file), (b'x', text)])).collect();
    inputs.push(join(&[(b'b', SETTINGS), (b'c', br#"{"unk_token":{"content":"?"},"bos_token":"<s>"}"#)]));
    inputs.push(join(&[(b'b', br#"{"add_eos_token":true,"eos_token":"<|end|>","chat_template":"{{ messages }}"}"#)]));
    inputs
}

const SETTINGS: &[u8] = br#"{"bos_token":"<|begin|>","eos_token":{"content":"<|end|>"},"chat_template":[{"name":"default","template":"{{ messages[0].content }}"},{"name":"tool_use","template":"{{ tools }}"}],"add_bos_token":true}"#;
