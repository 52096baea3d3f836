//! Sound inputs that each target begins with.

use anyhow::{Context, Result};
use candle::quantized::gguf_file::{write as write_gguf, Value};
use candle::quantized::{GgmlDType, QTensor};
use candle::{DType, Device, Tensor};

/// Writes a target's sound inputs into the folder `FUZZ_SEEDS`, if it is set.
pub fn write(target: &str) {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS") else { return };
    let seeds = of(target).expect("sound inputs can be made");
    for (number, seed) in seeds.into_iter().enumerate() {
        let path = std::path::Path::new(&folder).join(number.to_string());
        std::fs::write(path, seed).expect("the folder of seeds takes files");
    }
}

fn of(target: &str) -> Result<Vec<Vec<u8>>> {
    Ok(match target {
        "config" => CONFIGS.iter().map(|json| json.as_bytes().to_vec()).collect(),
        "gguf" => vec![tiny_gguf()?],
        "pickle" => vec![behind(0, include_bytes!("../../weights/tests/data/zip.pth")), behind(1, PICKLE)],
        "request" => REQUESTS.iter().map(|(route, body)| behind(*route, body.as_bytes())).collect(),
        "safetensors" => vec![include_bytes!("../../weights/tests/data/same.safetensors").to_vec()],
        "template" => TEMPLATES.iter().map(|text| text.as_bytes().to_vec()).collect(),
        "tokenizer" => vec![behind(0, include_bytes!("../tokenizer.json")), behind(1, SETTINGS.as_bytes())],
        "trace" => vec![include_bytes!("../../opara-candle/plan/tests/data/version-1.trace").to_vec()],
        other => anyhow::bail!("no target is named {other}"),
    })
}

/// An input whose first byte is a choice.
fn behind(first: u8, rest: &[u8]) -> Vec<u8> {
    [&[first], rest].concat()
}

const CONFIGS: [&str; 3] = [
    r#"{"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":2,"intermediate_size":96,"vocab_size":270,"max_position_embeddings":128,"rms_norm_eps":1e-5,"rope_theta":1e4,"tie_word_embeddings":false,"eos_token_id":[1,2],"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}}"#,
    r#"{"model_type":"gemma3_text","hidden_size":64,"num_hidden_layers":6,"intermediate_size":96,"head_dim":16,"sliding_window":16,"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention"],"final_logit_softcapping":30.0}"#,
    r#"{"model_type":"phi3","hidden_size":64,"num_attention_heads":4,"num_hidden_layers":1,"intermediate_size":96,"vocab_size":270,"max_position_embeddings":128,"rope_scaling":{"type":"longrope","short_factor":[1,1,1,1,1,1,1,1],"long_factor":[2,2,2,2,2,2,2,2]},"partial_rotary_factor":1.0,"quantization_config":null}"#,
];

/// Routes are those of the target `request`, by number.
const REQUESTS: [(u8, &str); 8] = [
    (0, r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"temperature":0.5,"stream":true}"#),
    (
        1,
        r#"{"model":"m","prompt":"ab","max_tokens":3,"stop":["x"],"seed":1,"top_p":0.9,"min_tokens":1,"ignore_eos":true}"#,
    ),
    (2, r#"{"model":"bert","input":["a b","c"],"encoding_format":"base64"}"#),
    (
        3,
        r#"{"id":"1","inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a b"]}],"outputs":[{"name":"embedding"}]}"#,
    ),
    (
        3,
        r#"{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,2],"data":[[3,4]]},{"name":"attention_mask","datatype":"INT64","shape":[1,2],"data":[1,0]}],"parameters":null}"#,
    ),
    (1, r#"{"model":"m","prompt":[1,2,3],"max_tokens":null,"n":1,"echo":false,"logprobs":null}"#),
    (
        0,
        r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"x"}]}],"chat_template_kwargs":{"enable_thinking":false}}"#,
    ),
    (2, r#"{"model":"bert","input":[[1,2],[3]],"dimensions":null,"user":"u"}"#),
];

const SETTINGS: &str = r#"{"bos_token":"<|begin|>","eos_token":{"content":"<|end|>"},"chat_template":[{"name":"default","template":"{{ messages[0].content }}"}],"add_bos_token":true}"#;

const TEMPLATES: [&str; 3] = [
    "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}{% set ns.n = ns.n + 1 %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content.split('e')[-1] ~ ns.n }}{%- endfor -%}{{ strftime_now('%Y') }}",
    "{% macro f(x, y=2) %}{{ x | tojson(indent=y) }}{% endmacro %}{{ f(messages) }}{% if tools is defined %}{{ raise_exception('no') }}{% endif %}{{ '%s' % bos_token }}{{ messages[1:] | length }}",
];

/// A dict of one tensor, `{"w": torch.FloatTensor of 4 by 4 in storage 0}`, in protocol 2.
const PICKLE: &[u8] = b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03ctorch\nFloatStorage\nq\x04X\x01\x00\x00\x000q\x05X\x03\x00\x00\x00cpuq\x06K\x10tq\x07QK\x00K\x04K\x04\x86q\x08K\x04K\x01\x86q\t\x89ccollections\nOrderedDict\nq\n)Rq\x0btq\x0cRq\rs.";

/// The smallest decoder, as a GGUF file.
fn tiny_gguf() -> Result<Vec<u8>> {
    let (vocab, hidden, inner) = (7, 8, 8);
    let tensor = |rows: usize, columns: usize| -> candle::Result<QTensor> {
        let values = Tensor::arange(0f32, (rows * columns) as f32, &Device::Cpu)?.reshape((rows, columns))?;
        QTensor::quantize(&(values / 100.)?, GgmlDType::F32)
    };
    let row = || -> candle::Result<QTensor> {
        QTensor::quantize(&Tensor::ones(hidden, DType::F32, &Device::Cpu)?, GgmlDType::F32)
    };
    let mut tensors = vec![("token_embd.weight", tensor(vocab, hidden)?), ("output.weight", tensor(vocab, hidden)?)];
    for name in ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"] {
        tensors.push((name, row()?));
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"].map(|name| format!("blk.0.{name}.weight")) {
        tensors.push((Box::leak(name.into_boxed_str()), tensor(hidden, hidden)?));
    }
    tensors.push(("blk.0.ffn_gate.weight", tensor(inner, hidden)?));
    tensors.push(("blk.0.ffn_up.weight", tensor(inner, hidden)?));
    tensors.push(("blk.0.ffn_down.weight", tensor(hidden, inner)?));
    let number = |n: usize| Value::U32(n as u32);
    let texts = |texts: &[&str]| Value::Array(texts.iter().map(|text| Value::String(text.to_string())).collect());
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", number(hidden)),
        ("llama.feed_forward_length", number(inner)),
        ("llama.block_count", number(1)),
        ("llama.attention.head_count", number(2)),
        ("llama.attention.head_count_kv", number(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.context_length", number(16)),
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("llama-bpe".into())),
        ("tokenizer.ggml.tokens", texts(&["a", "b", "c", "ab", "Ġ", "Ġab", "<end>"])),
        ("tokenizer.ggml.merges", texts(&["a b", "Ġ ab"])),
        ("tokenizer.ggml.token_type", Value::Array([1, 1, 1, 1, 1, 1, 3].map(Value::I32).to_vec())),
        ("tokenizer.ggml.bos_token_id", number(6)),
        ("tokenizer.ggml.eos_token_id", number(6)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut bytes = std::io::Cursor::new(Vec::new());
    write_gguf(&mut bytes, &metadata, &tensors).context("a GGUF file")?;
    Ok(bytes.into_inner())
}
