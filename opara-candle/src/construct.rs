//! Executors with the default settings.

use candle::{Module, Tensor};

use crate::builder::Builder;
use crate::executor::OparaExecutor;
use crate::options::Options;
use crate::report::Report;
use crate::Result;

impl OparaExecutor {
    /// Wraps `module` and builds for inputs like `input`.
    ///
    /// A module that is not [`Send`] and [`Sync`], such as one that holds a [`candle_nn::Sequential`], does not compile here.
    /// Give a function that makes it to [`new_local`](Self::new_local): `OparaExecutor::new_local(move || make(vb), &input)`.
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
    /// | on tensors without values, where operators compute nothing, unless it is [promised](Builder::assume_pure) to be pure | 8 | |
    ///
    /// So usually 12 on the CPU and 5 on a GPU; 10 and 4 if all inputs are integers. There are more calls in these cases:
    ///
    /// - A capture is repeated if an output is an input, a weight or a view, if the driver aborts it, or if two captures differ in a
    ///   library's kernels.
    /// - If two passes differ, the example is called again, once on the CPU and twice on a GPU, to find out whether the module keeps
    ///   state.
    /// - If captures show state and the results do not, another thread may have replaced a table: example and captures are repeated,
    ///   up to 12 times.
    /// - If fused kernels give wrong results, everything is done again without fusion.
    ///
    /// A module of plain candle operators on the CPU is called twice. With [`OnStateful::Eager`](crate::OnStateful::Eager) it is not
    /// called.
    ///
    /// # Errors
    /// The module's own errors; [`Error::Panicked`] if it panics; [`Error::Driver`] if the driver fails unexpectedly;
    /// [`Error::OutOfMemory`] if the device has no memory for a forward pass (without memory for a replay the module runs eagerly);
    /// [`Error::DeviceLost`] if every call on the device fails; [`Error::Stateful`] if the module keeps state on the host, or draws
    /// random numbers in a way that looks like state. A table that the first call creates and later calls reuse is not state. A module
    /// that cannot be captured is not an error: it runs eagerly.
    ///
    /// [`Error::Panicked`]: crate::Error::Panicked
    /// [`Error::Driver`]: crate::Error::Driver
    /// [`Error::OutOfMemory`]: crate::Error::OutOfMemory
    /// [`Error::DeviceLost`]: crate::Error::DeviceLost
    /// [`Error::Stateful`]: crate::Error::Stateful
    // The compiler shows the line of the bound that a module does not meet, and with it the way out.
    pub fn new(
        module: impl Module + Send + Sync + 'static, // Not `Send`? Use `OparaExecutor::new_local(move || make(), &input)`.
        input: &Tensor,
    ) -> Result<Self> {
        Self::builder().build(module, input)
    }

    /// Wraps a module that is not [`Send`] or not [`Sync`], such as one that contains a [`candle_nn::Sequential`]. `make` constructs
    /// it on a thread of this library. The module stays on that thread, and is dropped there some time after the executor.
    ///
    /// The executor itself may move to any thread, and replays run on the caller's thread. Calls that run the module (a new shape,
    /// eager mode) run on the module's thread, one at a time. So `make` and the module must not wait for a thread that calls this
    /// executor. An executor that the module itself calls runs its own module eagerly.
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
    /// let fast = OparaExecutor::new_local(make, &x)?;
    /// std::thread::spawn(move || fast.forward(&x)).join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of `make`, [`Error::Panicked`](crate::Error::Panicked) if it panics, and errors of [`new`](Self::new).
    pub fn new_local<M: Module + 'static>(
        make: impl FnOnce() -> candle::Result<M> + Send + 'static,
        input: &Tensor,
    ) -> Result<Self> {
        let make = move || {
            let module = make()?;
            Ok(move |inputs: &[Tensor]| Ok(vec![module.forward(&inputs[0])?]))
        };
        Self::builder().build_local(make, std::slice::from_ref(input))
    }

    /// A builder: for other settings, functions of several tensors, and steps with a state.
    pub fn builder() -> Builder {
        Builder(Options::default())
    }

    /// Warns about inputs whose values verification could not change.
    pub(crate) fn warned(self) -> Self {
        let Report { unvaried_inputs, verified_inputs, .. } = self.report();
        // On a CPU a module whose host code depends on values is not replayed, unless that is ruled out by promise.
        if !unvaried_inputs.is_empty() && self.depends_on_promise() {
            tracing::warn!(
                inputs = ?unvaried_inputs,
                verified_inputs,
                "verification does not change integers: pass other values of these inputs to `Builder::example`, to detect \
                 host code of the module that depends on them"
            );
        }
        self
    }
}
