//! Linear layers that stay, with a change of low rank.

use candle::{DType, Device::Cpu, Module, Result, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW, VarBuilder, VarMap};
use opara_candle::nn::lora;
use opara_candle::optim::AdamW;

use crate::common::{same_bits, waves};

/// It begins as the layer is, only the change trains, no gradient of the layer is computed, and the merged layer gives the same.
#[test]
fn only_the_change_trains() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        let of = |at, shape: &[usize]| Var::from_tensor(&waves(at, shape)?.to_dtype(dtype)?);
        let (weight, bias, below) = (of(1, &[5, 6])?, of(2, &[5])?, of(3, &[6, 6])?);
        let adapters = VarMap::new();
        let vb = VarBuilder::from_varmap(&adapters, dtype, &Cpu);
        let layer = lora(&weight, Some(&bias), 2, 8., vb.pp("q"))?;
        let x = waves(4, (3, 6))?.to_dtype(dtype)?.matmul(&below)?;
        let base = x.matmul(&weight.t()?)?.broadcast_add(&bias)?;
        let near = |a: &Tensor, b: &Tensor| (a - b)?.abs()?.max_all()?.to_dtype(DType::F64)?.to_scalar::<f64>();
        assert!(near(&layer.forward(&x)?, &base)? < 1e-6, "a change of zeros");
        let mut adam = AdamW::of(&adapters, ParamsAdamW { lr: 0.05, ..Default::default() })?;
        let names: Vec<_> =
            adam.variables().map(|(name, variable)| (name.to_string(), variable.dims().to_vec())).collect();
        assert_eq!(names, [("q.lora_A.weight".into(), vec![2, 6]), ("q.lora_B.weight".into(), vec![5, 2])]);
        let (before, loss) = (weight.copy()?, |layer: &opara_candle::nn::LoraLinear| {
            (layer.forward(&x)? - waves(9, (3, 5))?.to_dtype(dtype)?)?.sqr()?.mean_all()
        });
        let number = |loss: Tensor| loss.to_dtype(DType::F64)?.to_scalar::<f64>();
        let first = number(loss(&layer)?)?;
        for _ in 0..60 {
            adam.backward_step(&loss(&layer)?)?;
        }
        assert!(number(loss(&layer)?)? < first / 2., "{first} to {}", number(loss(&layer)?)?);
        assert!(same_bits(&before, &weight)?);
        let gradients = loss(&layer)?.backward()?;
        assert!(gradients.get(&weight).is_none() && gradients.get(&bias).is_none());
        assert!(gradients.get(&below).is_some(), "what lies below a layer trains");
        assert!(near(&layer.merged()?.forward(&x)?, &layer.forward(&x)?)? < 1e-5);
    }
    let vb = || VarBuilder::zeros(DType::F32, &Cpu);
    assert!(lora(&Tensor::zeros((2, 2), DType::F32, &Cpu)?, None, 0, 1., vb()).is_err());
    assert!(lora(&Tensor::zeros(2, DType::F32, &Cpu)?, None, 1, 1., vb()).is_err());
    Ok(())
}
