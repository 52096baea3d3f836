//! Quantised decoders of candle-transformers, from weights of a file that is made of those of the others.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use candle::quantized::{gguf_file, GgmlDType, QTensor};
use candle::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{
    llama2_c, mistral, mixformer, quantized_llama2_c, quantized_mistral, quantized_mixformer,
    quantized_recurrent_gemma, quantized_rwkv_v5, quantized_rwkv_v6, quantized_stable_lm, recurrent_gemma, rwkv_v5,
    rwkv_v6, stable_lm,
};
use candle_transformers::quantized_var_builder::VarBuilder as Quantised;
use serde_json::json;

use super::models::{
    config, llama2_c_config, mixformer_config, of, recurrent_gemma_config, rwkv_config, rwkv_text, usual, Model, F32,
};
use super::texts::{cloned, made, Beside};

/// Notes which weights a model asks for.
struct Noted {
    of: VarBuilder<'static>,
    weights: Arc<Mutex<Vec<(String, Tensor)>>>,
}

impl SimpleBackend for Noted {
    fn get(&self, shape: Shape, name: &str, _: Init, _: DType, _: &Device) -> Result<Tensor> {
        let tensor = self.of.get(shape, name)?;
        self.weights.lock().expect("no panic holds this lock").push((name.into(), tensor.clone()));
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        self.get((super::models::HIDDEN, 32).into(), name, Init::Const(0.), dtype, device)
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// The weights that a model asks for, of 8 bits where they are matrices.
pub fn quantised<M>(
    weights: &VarBuilder<'static>,
    model: impl FnOnce(VarBuilder<'static>) -> Result<M>,
) -> Result<Quantised> {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let backend = Noted { of: weights.clone(), weights: noted.clone() };
    model(VarBuilder::from_backend(Box::new(backend), weights.dtype(), weights.device().clone()))?;
    let mut tensors: Vec<(String, QTensor)> = Vec::new();
    for (name, tensor) in noted.lock().expect("no panic holds this lock").iter() {
        if tensors.iter().any(|(known, _)| known == name) {
            continue;
        }
        let is_matrix = tensor.rank() == 2 && tensor.dims()[1] % 32 == 0;
        let dtype = if is_matrix { GgmlDType::Q8_0 } else { GgmlDType::F32 };
        let on_host = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        tensors.push((name.clone(), QTensor::quantize(&on_host, dtype)?));
    }
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = Cursor::new(Vec::new());
    gguf_file::write(&mut file, &[], &tensors)?;
    Quantised::from_gguf_buffer(&file.into_inner(), weights.device())
}

/// Activations are rounded to 8 bits, in other groups than candle's.
const fn of_f32(model: Model) -> Model {
    Model { dtypes: F32, tolerance: 6e-2, ..model }
}

/// Decoders.
pub const MODELS: &[Model] = &[
    of_f32(of("quantized_mistral", |w| {
        let of: mistral::Config = usual(json!({"sliding_window": 4096, "head_dim": null}))?;
        let weights = quantised(w, |w| mistral::Model::new(&of, w))?;
        cloned(quantized_mistral::Model::new(&of, weights)?, |m, x, at| m.forward(x, at))
    })),
    of_f32(of("quantized_mixformer", |w| {
        let of = config(mixformer_config())?;
        let weights = quantised(w, |w| mixformer::MixFormerSequentialForCausalLM::new_v2(&of, w))?;
        let model = quantized_mixformer::MixFormerSequentialForCausalLM::new_v2(&of, weights)?;
        cloned(model, |m, x, _| m.forward(x))
    })),
    of_f32(of("quantized_stable_lm", |w| {
        let of = usual(json!({"partial_rotary_factor": 0.25, "use_cache": true, "use_qkv_bias": true}))?;
        let weights = quantised(w, |w| stable_lm::Model::new(&of, w))?;
        made(quantized_stable_lm::Model::new(&of, weights)?, |m, x, at| m.forward(x, at))
    })),
    of_f32(of("quantized_recurrent_gemma", |w| {
        let of = usual(recurrent_gemma_config())?;
        let weights = quantised(w, |w| recurrent_gemma::Model::new(&of, w))?;
        cloned(quantized_recurrent_gemma::Model::new(&of, weights)?, |m, x, at| m.forward(x, at))
    })),
    of_f32(of("quantized_llama2_c", |w| {
        let of = llama2_c_config();
        let weights = quantised(w, |w| llama2_c::Llama::load(w, of.clone()))?;
        let cache = llama2_c::Cache::new(true, &of, w.pp("rot"))?;
        let model = Arc::new(quantized_llama2_c::QLlama::load(weights, of)?);
        cloned(Beside { model, cache }, |text, tokens, at| text.model.forward(tokens, at, &mut text.cache))
    })),
    of_f32(of("quantized_rwkv_v5", |w| {
        let of = config(rwkv_config())?;
        let weights = quantised(w, |w| rwkv_v5::Model::new(&of, w))?;
        rwkv_text(w, quantized_rwkv_v5::Model::new(&of, weights)?, |model, x, state| model.forward(x, state))
    })),
    of_f32(of("quantized_rwkv_v6", |w| {
        let of = config(rwkv_config())?;
        let weights = quantised(w, |w| rwkv_v6::Model::new(&of, w))?;
        rwkv_text(w, quantized_rwkv_v6::Model::new(&of, weights)?, |model, x, state| model.forward(x, state))
    })),
];
