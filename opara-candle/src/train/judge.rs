//! Gradients of a loss that is a graph, held against double precision.

use candle::{DType, Tensor};
use opara_plan::rewrite::{Graph, Node, Segments};

use super::gradient_error::GradientError;
use super::lifted::{with_factor, Lifted, Trained};
use crate::rewrite::accuracy::{unit, EXPLAINED};
use crate::rewrite::evaluate::{evaluate, Arithmetic, Numbers};
use crate::rewrite::gradient::differentiate;
use crate::{Error, Result, TrainError};

impl Lifted {
    /// Holds the gradients of a batch against those of the recorded launches in double precision, and these against differences of the loss.
    /// Where one is too far away, products become more precise: of convolutions first. `scale` is the factor of the loss.
    ///
    /// # Errors
    /// The first gradient that is less accurate than the recorded launches' own.
    pub fn judge(&mut self, batch: &[Tensor], loss: &Tensor, mut scale: f64) -> Result<Vec<GradientError>> {
        const IN_F64: Arithmetic = Arithmetic::In(DType::F64);
        let inputs = self.inputs(batch)?;
        let double = self.gradients(&self.recorded, &inputs, IN_F64)?;
        self.differ(&inputs, &double)?;
        self.compare(&self.recorded, &inputs, IN_F64, loss)?;
        self.compare(&self.recorded, &inputs, Arithmetic::Typed, loss)?;
        let candles = self.typed_gradients(&self.recorded, &inputs, &mut scale)?;
        loop {
            let judged = self.compare(&self.graph, &inputs, Arithmetic::Typed, loss).and_then(|()| {
                let ours = self.typed_gradients(&self.graph, &inputs, &mut scale)?;
                self.errors(&double, &candles, &ours)
            });
            match judged {
                Err(Error::Training(TrainError::Inaccurate { .. })) if self.make_precise()? => {}
                judged => return judged,
            }
        }
    }

    /// Whether products became more precise.
    fn make_precise(&mut self) -> Result<bool> {
        let Some(next) = self.graph.nodes.iter().filter_map(Node::more_precise).min() else { return Ok(false) };
        let nodes = self.graph.nodes.iter_mut().filter(|node| node.more_precise() == Some(next));
        nodes.for_each(|node| node.precision = next);
        if let Some(scaled) = &mut self.scaled {
            *scaled = with_factor(&self.graph)?;
        }
        Ok(true)
    }

    /// Gradients as steps compute them: by the factor of the loss, which is halved while they are infinite.
    fn typed_gradients(&self, graph: &Graph, inputs: &[Tensor], scale: &mut f64) -> Result<Vec<Tensor>> {
        let Some(device) = inputs.first().map(Tensor::device).filter(|_| self.scaled.is_some()) else {
            return self.gradients(graph, inputs, Arithmetic::Typed);
        };
        let graph = with_factor(graph)?;
        loop {
            let mut inputs = inputs.to_vec();
            inputs.push(Tensor::new(&[*scale as f32], device)?);
            let found = self.gradients(&graph, &inputs, Arithmetic::Typed)?;
            let found = found.iter().map(|of| of.to_dtype(DType::F64)? / *scale).collect::<candle::Result<Vec<_>>>()?;
            let sizes = found.iter().map(root_mean_square).collect::<candle::Result<Vec<_>>>()?;
            if *scale <= 1. || sizes.iter().all(|size| size.is_finite()) {
                return Ok(found);
            }
            *scale /= 2.;
        }
    }

    /// Gradients of the variables, zeros for those that get none.
    fn gradients(&self, graph: &Graph, inputs: &[Tensor], arithmetic: Arithmetic) -> Result<Vec<Tensor>> {
        let segments = Segments::of(graph, self.segments());
        let found = differentiate(graph, inputs, arithmetic, &self.wanted(), &segments)?;
        let gradient = |(gradient, trained): (Option<Tensor>, &Trained)| match gradient {
            Some(gradient) => gradient.flatten_all(),
            None => trained
                .leaf
                .zeros_like()?
                .flatten_all()?
                .to_dtype(arithmetic.dtype(graph.inputs[trained.input].element)),
        };
        Ok(found.gradients.into_iter().zip(&self.trained).map(gradient).collect::<candle::Result<_>>()?)
    }

    /// How far gradients are from double precision, beside those of the recorded launches.
    ///
    /// # Errors
    /// The first one that is too far away.
    fn errors(&self, double: &[Tensor], candles: &[Tensor], ours: &[Tensor]) -> Result<Vec<GradientError>> {
        /// A gradient counts as large as this part of all variables' on average at least.
        const LEAST: f64 = 1e-3;
        /// Gradients may be `FACTOR` times as far away as those of the recorded launches, and `ROOM` roundings farther. Gradients of
        /// rounding alone may be `OF_ROUNDING` times as far away, and `ROOM_OF_ROUNDING` roundings of the average farther.
        const FACTOR: f64 = 2.;
        const ROOM: f64 = 16.;
        const OF_ROUNDING: f64 = 16.;
        const ROOM_OF_ROUNDING: f64 = 64.;
        /// They are as near as this, relative to the root of the mean square, however far those of the recorded launches are. Deep nets
        /// amplify roundings of 11 bits to a tenth and more.
        const NEAR: f64 = 0.5;
        let scales = double.iter().map(root_mean_square).collect::<candle::Result<Vec<_>>>()?;
        // Of a gradient that is zero but for rounding, such as that of a bias of keys, nothing is accurate.
        let least = LEAST * scales.iter().sum::<f64>() / scales.len().max(1) as f64;
        let mut errors = Vec::new();
        for (at, trained) in self.trained.iter().enumerate() {
            let scale = scales[at].max(least).max(f64::MIN_POSITIVE);
            let far =
                |of: &Tensor| Ok::<_, Error>(root_mean_square(&(of.to_dtype(DType::F64)? - &double[at])?)? / scale);
            let (ours, candles) = (far(&ours[at])?, far(&candles[at])?);
            // Roundings of the two go other ways.
            let (factor, room) = match scales[at] < least {
                true => (OF_ROUNDING, ROOM_OF_ROUNDING / LEAST),
                false => (FACTOR, ROOM),
            };
            let limit = factor * candles + room * unit(trained.leaf.dtype());
            // Not where one of them is NaN. Those of 16 bits may be of rounding for the most part, if the loss is small.
            let is_of_16_bits = unit(trained.leaf.dtype()) > unit(DType::F32);
            let is_near = ours <= limit && (ours <= NEAR || is_of_16_bits || scales[at] < least);
            if !is_near {
                let name = format!("the gradient of {}", trained.name);
                return Err(TrainError::Inaccurate { name, ours, candles }.into());
            }
            errors.push(GradientError { name: trained.name.clone(), ours, candles });
        }
        Ok(errors)
    }

    /// Compares a graph's loss with the closure's.
    fn compare(&self, graph: &Graph, inputs: &[Tensor], arithmetic: Arithmetic, loss: &Tensor) -> Result<()> {
        /// Roundings that losses above 1 may be apart. Smaller ones may be as far apart as 1.
        const ROUNDINGS: f64 = 4096.;
        let number = |t: &Tensor| Ok::<_, Error>(t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?[0]);
        // A loss in f32 may be of values of 16 bits.
        let dtypes = self.trained.iter().map(|trained| trained.leaf.dtype()).chain([loss.dtype()]);
        let dtype = dtypes.max_by(|a, b| unit(*a).total_cmp(&unit(*b))).unwrap_or(DType::F32);
        let loss = number(loss)?;
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { loss }.into());
        }
        let found = number(&evaluate(graph, inputs, arithmetic, Numbers::All)?[0])?;
        let apart = (found - loss).abs() / loss.abs().max(1.);
        if apart > (ROUNDINGS * unit(dtype)).min(EXPLAINED) {
            let name = format!("the loss ({arithmetic:?})");
            return Err(TrainError::Inaccurate { name, ours: apart, candles: 0. }.into());
        }
        Ok(())
    }

    /// Compares gradients in double precision with the difference of losses a short way apart, which no derivative is part of. Each
    /// variable moves along its gradient by the same length.
    fn differ(&self, inputs: &[Tensor], gradients: &[Tensor]) -> Result<()> {
        /// The first one is enough unless the loss is very uneven.
        const STEPS: [f64; 3] = [1e-5, 1e-7, 1e-8];
        const ROOM: f64 = 1e-3;
        let mut directions = Vec::new();
        let mut slope = 0.;
        for gradient in gradients {
            let norm = gradient.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()?;
            slope += norm;
            directions.push((gradient * (1. / norm.max(f64::MIN_POSITIVE)))?);
        }
        let loss = |by: f64| -> Result<f64> {
            let mut moved = inputs.to_vec();
            for (trained, direction) in self.trained.iter().zip(&directions) {
                let at = moved[trained.input].to_dtype(DType::F64)?.flatten_all()?;
                moved[trained.input] = (at + (direction * by)?)?;
            }
            let outputs = evaluate(&self.recorded, &moved, Arithmetic::In(DType::F64), Numbers::All)?;
            Ok(outputs[0].flatten_all()?.to_vec1::<f64>()?[0])
        };
        let mut least = f64::INFINITY;
        for step in STEPS {
            let apart = ((loss(step)? - loss(-step)?) / (2. * step) - slope).abs() / slope.max(f64::MIN_POSITIVE);
            // Of a loss that is flat, rounding is all that there is.
            if apart <= ROOM || slope <= 1e-9 {
                return Ok(());
            }
            least = least.min(apart);
        }
        Err(TrainError::Inaccurate { name: "the slope of the loss".into(), ours: least, candles: 0. }.into())
    }
}

fn root_mean_square(of: &Tensor) -> candle::Result<f64> {
    of.sqr()?.mean_all()?.sqrt()?.to_scalar()
}
