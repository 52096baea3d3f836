//! Gradients: what an executor gives has one or says that it has none, and variables do not disturb inference.

use candle::{DType, Module, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use opara_candle::optim::check_gradients;
use opara_candle::{nn, ops, Mode, OnStateful, OparaExecutor};

use super::common::{assert_same, waves, CPU};

#[track_caller]
fn assert_names_executor(y: &Tensor) {
    let loss = y.sqr().and_then(|y| y.sum_all()).expect("they are floats");
    let error = loss.backward().expect_err("a replay has no gradient").to_string();
    assert!(error.contains("backward") && error.contains("OparaExecutor"), "{error}");
}

#[test]
fn what_a_replay_gave_has_no_gradient_and_says_so() -> anyhow::Result<()> {
    let weight = Var::from_tensor(&waves(1, (6, 6))?)?;
    let of = weight.as_tensor().clone();
    let function = move |t: &[Tensor]| {
        let y = ops::matmul(&t[0], &of)?;
        Ok(vec![ops::tanh(&y)?, ops::argmax(&y, 1)?, ops::transpose(&y, 0, 1)?])
    };
    let x = waves(0, (4, 6))?;
    for builder in [OparaExecutor::builder(), OparaExecutor::builder().recheck(1)] {
        let fast = builder.build_fn(function.clone(), std::slice::from_ref(&x))?;
        assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Threads, None));
        let inputs = [x.clone()];
        for _ in 0..2 {
            let outputs = fast.call(&inputs)?;
            assert_same(&outputs, &function(&inputs)?, "a module with a variable");
            assert_names_executor(&outputs[0]);
            assert_names_executor(&outputs[2]);
            assert_eq!(outputs[1].dtype(), DType::U32);
            fast.call_zero_copy(&inputs, |outputs| {
                assert_names_executor(&outputs[0]);
            })?;
        }
        // A new shape, and a changed weight.
        let inputs = [waves(2, (3, 6))?];
        assert_names_executor(&fast.call(&inputs)?[0]);
        weight.set(&waves(5, (6, 6))?)?;
        assert_same(&fast.call(&inputs)?, &function(&inputs)?, "a weight that was written");
    }
    Ok(())
}

#[test]
fn an_input_that_is_a_variable_gets_no_gradient_in_silence() -> anyhow::Result<()> {
    let function = |t: &[Tensor]| Ok(vec![ops::sqr(&t[0])?, ops::relu(&t[1])?]);
    let plain = [waves(0, (4, 6))?, waves(1, (4, 6))?];
    let fast = OparaExecutor::builder().build_fn(function, &plain)?;
    assert!(fast.call(&plain)?[0].sum_all()?.backward()?.get(&plain[0]).is_none(), "nothing is tracked");
    let variable = Var::from_tensor(&plain[0])?;
    for input in [variable.as_tensor().clone(), (variable.as_tensor() * 2.)?] {
        let inputs = [input, plain[1].clone()];
        let outputs = fast.call(&inputs)?;
        assert_same(&outputs, &function(&inputs)?, "a variable as an input");
        assert_names_executor(&outputs[0]);
        let fast = OparaExecutor::builder().build_fn(function, &inputs)?;
        assert_names_executor(&fast.call(&inputs)?[0]);
        assert!(!fast.call(&plain)?[0].track_op(), "an example that is a variable does not make the module have one");
    }
    Ok(())
}

#[test]
fn a_module_that_runs_eagerly_has_candles_gradient() -> anyhow::Result<()> {
    let weight = Var::from_tensor(&waves(1, (6, 6))?)?;
    let of = weight.as_tensor().clone();
    let function = move |t: &[Tensor]| Ok(vec![ops::matmul(&t[0], &of)?]);
    let x = [waves(0, (4, 6))?];
    let fast = OparaExecutor::builder().on_stateful(OnStateful::Eager).build_fn(function.clone(), &x)?;
    let gradient = |y: &Tensor| -> Result<Tensor> {
        let gradients = y.sqr()?.sum_all()?.backward()?;
        Ok(gradients.get(weight.as_tensor()).expect("the weight has a gradient").clone())
    };
    assert_same(&[gradient(&fast.call(&x)?[0])?], &[gradient(&function(&x)?[0])?], "a gradient");
    Ok(())
}

#[test]
fn layers_of_variables_are_replayed_and_trained() -> anyhow::Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, CPU);
    let (up, down) = (nn::linear(6, 8, vb.pp("up"))?, nn::linear(8, 6, vb.pp("down"))?);
    let norm = nn::rms_norm(6, 1e-5, vb.pp("norm"))?;
    let mlp = {
        let (up, down) = (up.clone(), down.clone());
        move |x: &Tensor| down.forward(&ops::gelu(&up.forward(x)?)?)
    };
    let x = waves(0, (4, 6))?;
    let gradients = mlp(&x)?.sqr()?.sum_all()?.backward()?;
    for variable in [up.weight(), down.weight()] {
        assert!(gradients.get(variable).is_some_and(|gradient| gradient.dims() == variable.dims()));
    }
    check_gradients(&norm.forward(&mlp(&x)?)?.sqr()?.sum_all()?, map.data().lock().unwrap().clone())?;
    let packed = down.clone().packed()?.forward(&up.forward(&x)?)?;
    let error = packed.sum_all()?.backward().expect_err("a packed weight has no backward pass").to_string();
    assert!(error.contains("linear"), "{error}");
    let whole = move |x: &Tensor| norm.forward(&mlp(x)?);
    let fast = OparaExecutor::new(whole.clone(), &x)?;
    assert_eq!((fast.report().mode(), fast.report().reason()), (Mode::Threads, None));
    assert_same(&[fast.forward(&x)?], &[whole(&x)?], "layers of variables");
    assert_names_executor(&fast.forward(&x)?);
    Ok(())
}
