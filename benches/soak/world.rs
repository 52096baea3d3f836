//! Data shared by all threads: the device, executors, and inputs with expected outputs.

use anyhow::Result;
use candle::{Device, Module as _, Tensor};
use opara_candle::OparaExecutor;

use crate::modules::{Kind, Module, Weights, WIDTH};

/// The maximal number of rows of an input, and so the number of shapes.
pub const SHAPES: usize = 12;
/// Inputs per shape.
const INPUTS: usize = 2;

/// An input with the expected output, on the host.
pub struct Case {
    pub x: Tensor,
    pub expected: Vec<f32>,
}

/// An executor that many threads call.
pub struct Shared {
    pub kind: Kind,
    pub executor: OparaExecutor,
}

/// Data shared by all threads, which only read its tensors.
pub struct World {
    pub device: Device,
    pub weights: Weights,
    /// By kind of module, in the order of [`Kind::ALL`].
    cases: Vec<Vec<Case>>,
    pub shared: Vec<Shared>,
}

impl World {
    /// Computes all expected outputs with the modules themselves, and then builds the shared executors.
    ///
    /// # Errors
    /// An error of candle or of the builder.
    pub fn new(device: &Device) -> Result<Self> {
        let weights = Weights::new(device)?;
        let mut cases = Vec::new();
        for kind in Kind::ALL {
            let module = Module::new(kind, &weights);
            let case = |i: usize| -> Result<Case> {
                let x = whole_numbers(1 + i % SHAPES, i, device)?;
                let expected = read(&module.forward(&x)?)?;
                Ok(Case { x, expected })
            };
            cases.push((0..SHAPES * INPUTS).map(case).collect::<Result<Vec<_>>>()?);
        }
        let mut world = Self { device: device.clone(), weights, cases, shared: Vec::new() };
        for kind in Kind::ALL {
            world.share(kind, SHAPES)?;
        }
        // These cache fewer shapes than are in use, so shapes are evicted and captured again.
        world.share(Kind::Plain, 3)?;
        world.share(Kind::Branches, 3)?;
        Ok(world)
    }

    fn share(&mut self, kind: Kind, max_shapes: usize) -> Result<()> {
        let module = Module::new(kind, &self.weights);
        let executor = OparaExecutor::builder().max_shapes(max_shapes).build(module, &self.cases(kind)[0].x)?;
        self.shared.push(Shared { kind, executor });
        Ok(())
    }

    /// All inputs for modules of this kind.
    pub fn cases(&self, kind: Kind) -> &[Case] {
        &self.cases[kind as usize]
    }

    /// A random one of them.
    pub fn case(&self, kind: Kind, rng: &mut fastrand::Rng) -> &Case {
        &self.cases(kind)[rng.usize(..SHAPES * INPUTS)]
    }
}

/// Rows of whole numbers from -6 to 6.
fn whole_numbers(rows: usize, seed: usize, device: &Device) -> Result<Tensor> {
    let numbers = (0..rows * WIDTH).map(|j| ((j * 7 + seed * 11) % 13) as f32 - 6.).collect();
    Ok(Tensor::from_vec(numbers, (rows, WIDTH), device)?)
}

/// Reads the values of a tensor.
///
/// # Errors
/// An error of candle.
pub fn read(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}
