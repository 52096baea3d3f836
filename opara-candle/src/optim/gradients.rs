//! Whether gradients reach all variables.

use std::collections::HashSet;

use candle::{Tensor, Var};

use crate::error::UnreachedError;

/// Checks that a gradient of `loss` reaches all variables, without computing any: candle leaves those out in silence that are behind an
/// operator without a backward pass.
///
/// ```
/// use candle::{DType, Device::Cpu, Tensor, D};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use opara_candle::optim::check_gradients;
///
/// let weights = VarMap::new();
/// let layer = candle_nn::linear(4, 2, VarBuilder::from_varmap(&weights, DType::F32, &Cpu))?;
/// let x = Tensor::ones((3, 4), DType::F32, &Cpu)?;
/// let variables = || weights.data().lock().unwrap().clone();
/// check_gradients(&candle_nn::ops::softmax(&layer.forward(&x)?, D::Minus1)?.sum_all()?, variables())?;
///
/// // candle's fused softmax has no backward pass.
/// let loss = candle_nn::ops::softmax_last_dim(&layer.forward(&x)?)?.sum_all()?;
/// assert_eq!(check_gradients(&loss, variables()).unwrap_err().names, ["bias", "weight"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The names of the variables that none reaches.
pub fn check_gradients<N: Into<String>>(
    loss: &Tensor,
    variables: impl IntoIterator<Item = (N, Var)>,
) -> Result<(), UnreachedError> {
    let reached: HashSet<_> = loss.sorted_nodes().into_iter().map(Tensor::id).collect();
    let unreached = variables.into_iter().filter(|(_, variable)| !reached.contains(&variable.id()));
    let mut names: Vec<String> = unreached.map(|(name, _)| name.into()).collect();
    names.sort();
    if names.is_empty() {
        Ok(())
    } else {
        Err(UnreachedError { names })
    }
}
