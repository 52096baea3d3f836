//! Executors with the default settings.

use candle::{Module, Tensor};

use crate::builder::Builder;
use crate::executor::OparaExecutor;
use crate::options::Options;
use crate::Result;

impl OparaExecutor {
    /// Wraps `module` and builds for inputs like `input`.
    ///
    /// A module that is not [`Send`] and [`Sync`], such as one that holds a [`candle_nn::Sequential`], does not compile here.
    /// Give a function that makes it to [`load`](Self::load): `OparaExecutor::load(move || make(vb), &input)`.
    ///
    /// ```compile_fail,E0277
    /// # use candle::{Device, Tensor};
    /// # use opara_candle::OparaExecutor;
    /// let x = Tensor::new(&[1f32], &Device::Cpu)?;
    /// OparaExecutor::new(candle_nn::seq(), &x)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # How often building calls the module
    /// For each set of input shapes and dtypes:
    ///
    /// | calls | on the CPU | on a GPU |
    /// |---|---|---|
    /// | on the example | 1 | 1 |
    /// | on each [further example](Builder::example), for its shapes | 1 | 1 |
    /// | on copies of the example with other floats, if it holds floats and is [verified](Builder::verify) | 2 | 1 |
    /// | on the example again, which must give the same bits | 1 | 1 |
    /// | while it is captured | | 2 |
    ///
    /// So usually 4 on the CPU and 5 on a GPU; 2 and 4 for integers alone. More only for a reason: a capture is repeated for
    /// an output that is an input, a weight or a view, where the driver breaks it off, or where two captures differ in a
    /// library's kernels. Where something speaks against a recording, the example is called again, once on the CPU and twice
    /// on a GPU, to tell whether that is state. If a capture shows state and the answers show none, another thread may have
    /// replaced a table meanwhile: example and captures are repeated, up to 12 times. All is done twice if kernels that were fused prove wrong. A module of plain
    /// candle operators on the CPU is called twice. [`OnStateful::Eager`](crate::OnStateful::Eager) calls it 0 times.
    ///
    /// # Errors
    /// The module's own errors, [`Error::Panicked`] if it panics, [`Error::Driver`] if the driver refuses something
    /// that it should not, [`Error::OutOfMemory`] if the device has no memory for a forward pass (without memory for a replay the
    /// module runs eagerly), [`Error::DeviceLost`] if every call on the device fails. [`Error::Stateful`] if it keeps state on
    /// the host, or draws random numbers in a way that cannot be told from state; tables that the first call makes, and later ones find, are none. A module that cannot be captured is no
    /// error: it runs eagerly.
    // The compiler shows the line of the bound that a module does not meet, and with it the way out.
    pub fn new(
        module: impl Module + Send + Sync + 'static, // Not `Send`? Use `OparaExecutor::load(move || make(), &input)`.
        input: &Tensor,
    ) -> Result<Self> {
        Self::builder().build(module, input)
    }

    /// Wraps a module that is not [`Send`] or not [`Sync`], such as one that holds a [`candle_nn::Sequential`]: `make`
    /// makes it on a thread of this library, where it lives, and is dropped some time after the executor.
    ///
    /// The executor itself may go to any thread, and replays run on the caller's. Calls that run the module (of a new
    /// shape, or in eager mode) take turns on that one thread with all other modules that live there, and with captures.
    /// So `make` and the module must not wait for a thread that uses an executor; an executor that they call themselves
    /// runs its own module as it is.
    ///
    /// ```
    /// use candle::{DType, Device, Module, Tensor};
    /// use candle_nn::VarBuilder;
    /// use opara_candle::{nn, ops, OparaExecutor};
    ///
    /// let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// let make = move || {
    ///     let up = nn::linear(4, 16, vb.pp("up"))?;
    ///     let down = nn::linear(16, 4, vb.pp("down"))?;
    ///     Ok(candle_nn::seq().add(up).add(ops::gelu).add(down))
    /// };
    /// let x = Tensor::randn(0f32, 1., (2, 4), &Device::Cpu)?;
    /// let fast = OparaExecutor::load(make, &x)?;
    /// std::thread::spawn(move || fast.forward(&x)).join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `make`, [`Error::Panicked`] if it panics, and those of [`new`](Self::new).
    pub fn load<M: Module + 'static>(
        make: impl FnOnce() -> candle::Result<M> + Send + 'static,
        input: &Tensor,
    ) -> Result<Self> {
        Self::builder().load(make, input)
    }

    /// Settings other than the defaults, and functions of several tensors.
    pub fn builder() -> Builder {
        Builder(Options::default())
    }
}
