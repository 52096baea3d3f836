//! Compares DeepFM with PyTorch's results, which `reference/deepfm.py` wrote.

use candle::{DType, Device, Module, Result, Tensor};
use opara_candle::{Mode, OnUncapturable, OparaExecutor};
use opara_models::deepfm::{Config, DeepFm};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    seed: u64,
    config: Config,
    ids: Vec<Vec<u32>>,
    probabilities: Vec<Vec<f32>>,
}

impl Reference {
    fn read() -> Self {
        serde_json::from_str(include_str!("data/deepfm.json")).expect("sound JSON")
    }

    fn model(&self, dtype: DType) -> Result<DeepFm> {
        DeepFm::load(opara_weights::seeded(self.seed, dtype, &Device::Cpu), &self.config)
    }

    fn ids(&self) -> Result<Tensor> {
        Tensor::new(self.ids.clone(), &Device::Cpu)
    }

    fn assert_close(&self, got: &Tensor, tolerance: f32) -> Result<()> {
        let expected = Tensor::new(self.probabilities.clone(), &Device::Cpu)?;
        let difference = (got.to_dtype(DType::F32)? - expected)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        assert!(difference < tolerance, "{difference}");
        Ok(())
    }
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn probabilities_match_pytorch() -> Result<()> {
    let reference = Reference::read();
    let model = reference.model(DType::F32)?;
    let ids = reference.ids()?;
    reference.assert_close(&model.forward(&ids)?, 1e-6)?;
    reference.assert_close(&model.forward(&ids.to_dtype(DType::I64)?)?, 1e-6)?;
    reference.assert_close(&reference.model(DType::F16)?.forward(&ids)?, 2e-3)?;
    reference.assert_close(&reference.model(DType::BF16)?.forward(&ids)?, 2e-2)
}

#[test]
fn executor_replays_the_same_bits() -> Result<()> {
    let reference = Reference::read();
    let ids = reference.ids()?;
    let expected = reference.model(DType::F32)?.forward(&ids)?;
    let executor =
        OparaExecutor::builder().on_uncapturable(OnUncapturable::Error).build(reference.model(DType::F32)?, &ids)?;
    let report = executor.report();
    assert_eq!((report.mode(), report.reason()), (Mode::Threads, None));
    assert!(report.is_verified() && report.counts().width >= 3, "both orders and the deep part side by side");
    assert_eq!(executor.forward(&ids)?.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);

    let outside = (ids.ones_like()? * 2.)?;
    assert!(message(executor.forward(&outside)).contains("field 2"), "a replay looks at its ids too");
    assert_eq!(executor.forward(&ids)?.to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn ids_outside_their_field_are_named() -> Result<()> {
    let model = Reference::read().model(DType::F32)?;
    for (ids, field) in [([7i64, 0, 0, 0], 0), ([0, 30, 0, 0], 1), ([0, 0, 2, 0], 2), ([0, 0, 0, -1], 3)] {
        let error = message(model.forward(&Tensor::new(&[[0; 4], ids], &Device::Cpu)?));
        let id = ids[field].to_string();
        assert!(error.contains(&format!("id {id} in row 1")) && error.contains(&format!("field {field}")), "{error}");
    }
    assert!(message(model.forward(&Tensor::new(&[[0u32, 0, u32::MAX, 0]], &Device::Cpu)?)).contains("field 2"));
    assert!(message(model.forward(&Tensor::new(&[[0u32; 3]], &Device::Cpu)?)).contains("4 fields"));
    assert!(message(model.forward(&Tensor::new(&[[0f32; 4]], &Device::Cpu)?)).contains("F32"));
    Ok(())
}

#[test]
fn configurations_without_ids_are_refused() {
    for field_sizes in [vec![], vec![3, 0], vec![u32::MAX as usize, 1]] {
        let config = Config { field_sizes, ..Config::criteo() };
        let vb = opara_weights::seeded(0, DType::F32, &Device::Cpu);
        assert!(message(DeepFm::load(vb, &config)).contains("field_sizes"));
    }
}
