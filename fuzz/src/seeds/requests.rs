//! Sound requests.

use opara_serve::pb::infer_parameter::ParameterChoice;
use opara_serve::pb::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use opara_serve::pb::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelMetadataRequest, RepositoryModelLoadRequest,
};
use prost::Message;

/// By the number of their route in the target.
const BODIES: [(u8, &str); 30] = [
    (0, r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"temperature":0.5,"stream":true,"stream_options":{"include_usage":true}}"#),
    (0, r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"x"}]}],"chat_template_kwargs":{"enable_thinking":false},"max_tokens":2}"#),
    (0, r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto","continue_final_message":true,"add_generation_prompt":false,"max_completion_tokens":2,"response_format":{"type":"text"},"logit_bias":{}}"#),
    (1, r#"{"model":"m","prompt":"ab","max_tokens":3,"stop":["x"],"seed":1,"top_p":0.9,"min_p":0.1,"top_k":-1,"min_tokens":1,"ignore_eos":true,"repetition_penalty":1.5,"stop_token_ids":[3]}"#),
    (1, r#"{"model":"m","prompt":[1,2,3],"max_tokens":null,"n":1,"echo":false,"logprobs":null,"stream":true}"#),
    (1, r#"{"model":"m","prompt":["hello"],"max_tokens":1,"stop":"l","user":"u"}"#),
    (1, r#"{"model":"m","prompt":[[5,6]],"max_tokens":2,"best_of":1,"suffix":""}"#),
    (0, r##"{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer","maximum":9},"b":{"$ref":"#/$defs/c"}},"$defs":{"c":{"enum":["x"]}}}}}],"tool_choice":"required","parallel_tool_calls":false,"max_tokens":40,"seed":1,"stream":true}"##),
    (0, r#"{"model":"m","messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"array","items":{"type":"boolean"},"maxItems":2}},"required":["a"]}}},"max_tokens":30,"seed":2,"logprobs":true,"top_logprobs":2}"#),
    (1, r#"{"model":"m","prompt":["ab",""],"n":2,"logprobs":3,"echo":true,"max_tokens":3,"logit_bias":{"7":-3.5},"frequency_penalty":0.5,"presence_penalty":-0.5,"return_token_ids":true,"return_tokens_as_token_ids":true}"#),
    (1, r#"{"model":"m","prompt":"a","structured_outputs":{"regex":"[a-c]{2}x?"},"skip_special_tokens":false,"add_special_tokens":false,"max_tokens":5,"stream":true}"#),
    (1, r#"{"model":"m","prompt":"a","structured_outputs":{"choice":["ab","b"]},"repetition_penalty":1.2,"max_tokens":5,"min_tokens":1}"#),
    (2, r#"{"model":"bert","input":["a cat","dog"],"encoding_format":"base64","prompt_name":"query","truncate":true}"#),
    (2, r#"{"model":"bert","input":[[1,2],[3]],"dimensions":4,"user":"u"}"#),
    (2, r#"{"model":"bert","input":"the cat sat on the mat and the dog slept under the sun by the river","truncate":true}"#),
    (3, r#"{"id":"1","inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a b"]}],"outputs":[{"name":"embedding","parameters":{"binary_data":true}}],"parameters":{"timeout":100000000,"prompt_name":"query","truncate":true}}"#),
    (3, r#"{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1,2],"data":[[3,4]]},{"name":"attention_mask","datatype":"INT64","shape":[1,2],"data":[1,0]},{"name":"token_type_ids","datatype":"INT32","shape":[1,2],"data":[1,0]}],"parameters":null}"#),
    (4, "{\"inputs\":[{\"name\":\"input_ids\",\"datatype\":\"INT32\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":4}},{\"name\":\"attention_mask\",\"datatype\":\"INT64\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":8}}],\"parameters\":{\"binary_data_output\":true}}\n\u{3}\0\0\0\u{1}\0\0\0\0\0\0\0"),
    (4, "{\"inputs\":[{\"name\":\"text\",\"datatype\":\"BYTES\",\"shape\":[1,1],\"parameters\":{\"binary_data_size\":7}}]}\n\u{3}\0\0\0cat"),
    (5, r#"{"ready":true}"#),
    (6, r#"{"parameters":{"unload_dependents":false}}"#),
    (8, r#"{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a b"]}]}"#),
    (18, r#"{"inputs":["a cat","dog"],"normalize":false,"dimensions":2,"prompt_name":"query","truncate":true,"truncation_direction":"Left"}"#),
    (18, r#"{"inputs":[[1,2],[3]],"model":"bert"}"#),
    (19, r#"{"inputs":"a cat","truncate":true}"#),
    (20, r#"{"inputs":{"source_sentence":"a cat","sentences":["dog","cat"]},"parameters":{"truncate":true,"prompt_name":"query"}}"#),
    (21, r#"{"inputs":["a cat","dog"],"add_special_tokens":false,"prompt_name":"query"}"#),
    (21, r#"{"model":"m","messages":[{"role":"user","content":"a"}],"return_token_strs":true}"#),
    (26, r#"{"model":"m","tokens":[5,6,104]}"#),
    (22, r#"{"ids":[[1,2],[3]],"skip_special_tokens":false}"#),
];

pub fn all() -> Vec<Vec<u8>> {
    let input = |route: u8, body: &[u8]| [&[route, 0], body].concat();
    let mut inputs: Vec<_> = BODIES.iter().map(|(route, body)| input(*route, body.as_bytes())).collect();
    for message in messages() {
        let message = message.encode_to_vec();
        inputs.extend([9, 10].map(|call| input(call, &message)));
        let frame = [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat();
        inputs.push(input(17, &frame.repeat(2)));
    }
    let named = ModelMetadataRequest { name: "bert".into(), version: "1".into() };
    inputs.extend([11, 12, 15].map(|call| input(call, &named.encode_to_vec())));
    let load = RepositoryModelLoadRequest { model_name: "bert".into(), ..Default::default() };
    inputs.push(input(14, &load.encode_to_vec()));
    inputs.push(input(13, &[]));
    // List services.
    inputs.push(input(16, b"\x3a\x00"));
    inputs
}

fn parameter(name: &str, choice: ParameterChoice) -> (String, InferParameter) {
    (name.into(), InferParameter { parameter_choice: Some(choice) })
}

fn messages() -> [ModelInferRequest; 3] {
    let tensor = |name: &str, datatype: &str, shape: &[i64]| InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.to_vec(),
        ..Default::default()
    };
    let bert = || ModelInferRequest { model_name: "bert".into(), id: "8".into(), ..Default::default() };
    let texts =
        InferTensorContents { bytes_contents: vec![b"a cat"[..].into(), b"dog"[..].into()], ..Default::default() };
    let ids = InferTensorContents { int64_contents: vec![5, 6], ..Default::default() };
    let mask = InferTensorContents { int_contents: vec![1, 0], ..Default::default() };
    [
        ModelInferRequest {
            inputs: vec![InferInputTensor { contents: Some(texts), ..tensor("text", "BYTES", &[2]) }],
            parameters: [
                parameter("timeout", ParameterChoice::Int64Param(100_000_000)),
                parameter("prompt_name", ParameterChoice::StringParam("query".into())),
                parameter("truncate", ParameterChoice::BoolParam(true)),
            ]
            .into(),
            outputs: vec![InferRequestedOutputTensor { name: "embedding".into(), ..Default::default() }],
            ..bert()
        },
        ModelInferRequest {
            inputs: vec![
                InferInputTensor { contents: Some(ids), ..tensor("input_ids", "INT64", &[1, 2]) },
                InferInputTensor { contents: Some(mask), ..tensor("attention_mask", "INT32", &[1, 2]) },
            ],
            ..bert()
        },
        ModelInferRequest {
            inputs: vec![tensor("input_ids", "INT32", &[1, 1]), tensor("attention_mask", "INT32", &[1, 1])],
            raw_input_contents: vec![b"\x05\0\0\0"[..].into(), b"\x01\0\0\0"[..].into()],
            ..bert()
        },
    ]
}
