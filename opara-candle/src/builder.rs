//! How executors are built: settings, and functions and modules of every kind.

use std::path::PathBuf;
use std::sync::Arc;

use candle::{Module, Tensor};

use crate::backend::{Function, Fusing};
use crate::error::caught;
use crate::executor::OparaExecutor;
use crate::prepared::Settings;
use crate::schedule::{Policy, Scheduler};
use crate::tune::Tuning;
use crate::{home, kept, Result};

/// What to do with a module that cannot be captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUncapturable {
    /// Run it as it is, with the reason in a `tracing` warning and in the report.
    #[default]
    Eager,
    /// Return the reason as an error.
    Error,
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub scheduler: Arc<dyn Scheduler>,
    /// Whether its schedules are proven before they are used.
    pub check: bool,
    /// How to search for the schedule, where one is searched for.
    pub tuning: Option<Tuning>,
    pub settings: Settings,
    pub verify: bool,
    pub stress: u64,
    pub on_uncapturable: OnUncapturable,
    pub max_shapes: usize,
    pub recheck: u64,
    pub race: bool,
    pub fuse: bool,
    /// Folder that keeps compiled kernels.
    pub kernels: Option<PathBuf>,
}

impl Options {
    /// How to fuse launches, if that is asked for.
    pub fn fusing(&self) -> Option<Fusing> {
        self.fuse.then(|| Fusing { folder: self.kernels.clone() })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: Arc::new(Policy::default()),
            check: false,
            tuning: None,
            settings: Settings::default(),
            verify: true,
            stress: 0,
            on_uncapturable: OnUncapturable::default(),
            max_shapes: 8,
            recheck: 0,
            race: true,
            fuse: true,
            kernels: kept::folder(),
        }
    }
}

/// Settings of an executor; made by [`OparaExecutor::builder`].
#[derive(Debug, Clone)]
pub struct Builder(pub(crate) Options);

impl Builder {
    /// How launches are assigned to streams and ordered. Default: [`Policy::Opara`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.0.tuning = (policy == Policy::Tuned).then(|| self.0.tuning.unwrap_or_default());
        (self.0.scheduler, self.0.check) = (Arc::new(policy), false);
        self
    }

    /// Searches for the schedule ([`Policy::Tuned`]) in this way.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.0.tuning = Some(tuning);
        self.policy(Policy::Tuned)
    }

    /// Assigns and orders launches in a way of the user's own. Each schedule is proven against the trace: one that lets
    /// an op overtake another that it depends on is [`Error::InvalidSchedule`](crate::Error::InvalidSchedule).
    pub fn scheduler(mut self, scheduler: impl Scheduler + 'static) -> Self {
        (self.0.scheduler, self.0.check, self.0.tuning) = (Arc::new(scheduler), true, None);
        self
    }

    /// Whether replay is compared with eager, bit for bit, on the example and on a second input. Default: yes.
    pub fn verify(mut self, verify: bool) -> Self {
        self.0.verify = verify;
        self
    }

    /// Whether launches that depend on no input run once, while the executor is built. Then a weight that changes in
    /// place may not be seen by later calls. Default: yes.
    pub fn fold_constants(mut self, fold: bool) -> Self {
        self.0.settings.fold_constants = fold;
        self
    }

    /// How many times a GPU's schedule is put under stress while the executor is built: the arena is filled with NaN
    /// before each replay and random launches are held up, so that an edge that is missing shows as other bits than
    /// eager's. For tests. Default: 0.
    pub fn stress(mut self, rounds: u64) -> Self {
        self.0.stress = rounds;
        self
    }

    /// What to do with a module that cannot be captured. Default: [`OnUncapturable::Eager`].
    pub fn on_uncapturable(mut self, action: OnUncapturable) -> Self {
        self.0.on_uncapturable = action;
        self
    }

    /// For how many sets of input shapes and dtypes a plan is kept, at least one; the least recently used goes first, with
    /// all memory that is its own. Device memory for tensors inside a pass is shared by all plans and stays as large as the
    /// largest has needed. Default: 8.
    ///
    /// A build takes as long as some hundred eager calls. So shapes that come back after they had to go are built again
    /// sixteen times only; then they run eagerly, with a warning, until one of them has been called 1,000 times. The
    /// [report](crate::Report::reason) says so.
    pub fn max_shapes(mut self, shapes: usize) -> Self {
        self.0.max_shapes = shapes.max(1);
        self
    }

    /// Compares replays with eager execution in production: of the calls of each set of shapes, one in so many also runs
    /// the module, on copies of the inputs, and both answers must have the same bits. If they do not, that is an error in
    /// `tracing`, it is counted in the [report](crate::Report::mismatches), the call's answer is the module's, and these
    /// shapes run eagerly from then on. 0 never does so, which is the default.
    ///
    /// This finds what no check while building can: host code of the module that changes its mind later, a setting or a
    /// weight that was changed ([`OparaExecutor::invalidate`]). It costs an eager pass, a copy of the inputs and a
    /// comparison on the device every so many calls, and a wait for that. A module that keeps state is moved on by the
    /// additional pass; an error of that pass is the call's.
    pub fn recheck(mut self, every: u64) -> Self {
        self.0.recheck = every;
        self
    }

    /// How much device memory a plan may take beside weights, inputs and outputs, as a multiple of what the module's own
    /// forward pass holds at its peak. More lets more branches run at the same time and keeps more constants; 1 or less
    /// makes do with the least. Default: 1.15.
    pub fn memory_factor(mut self, factor: f64) -> Self {
        self.0.settings.memory_factor = factor;
        self
    }

    /// Whether a GPU's schedule of up to 4,096 launches that measures slower than the sequential one, than the graph's own edges
    /// in recorded order ([`Policy::Dag`](crate::schedule::Policy::Dag), if that makes no more than 1,024 branches), or, if it
    /// has more than 32 streams, than itself on 32, gives way to that. Default: yes.
    pub fn race(mut self, race: bool) -> Self {
        self.0.race = race;
        self
    }

    /// Whether chains of candle's kernels that go through the same elements become one launch each on a GPU: casts, sums,
    /// products, activations of f32, f16 and bf16, and what is made of rows of up to 4,096 elements: sums, maxima, minima,
    /// softmax, and norms. Alone, norms, softmax, what is not contiguous and what has many elements are replaced by a faster
    /// launch. Each is a kernel of its own, compiled by NVRTC while the executor is built, which takes tenths of a second on
    /// several cores, and is [kept](Self::kernel_cache). The bits stay the same, since all is rounded and added up as candle does it;
    /// should a replay differ from eager execution all the same, or the compiler refuse a kernel, the plan is built once more
    /// without. Default: yes.
    pub fn fuse(mut self, fuse: bool) -> Self {
        self.0.fuse = fuse;
        self
    }

    /// Folder that keeps kernels which were compiled for [fused](Self::fuse) launches from one start of the program to the next;
    /// `None` keeps none. A file a module, some 10 KB a kernel, named by a hash of source, architecture and compiler, so that
    /// none is ever stale; what is damaged is compiled anew. Nothing is ever deleted there. Default: `opara-candle` in the user's
    /// folder for caches.
    pub fn kernel_cache(mut self, folder: Option<PathBuf>) -> Self {
        self.0.kernels = folder;
        self
    }

    /// Wraps a module of one tensor to one tensor.
    ///
    /// # Errors
    /// See [`OparaExecutor::new`].
    pub fn build(self, module: impl Module + Send + Sync + 'static, input: &Tensor) -> Result<OparaExecutor> {
        self.build_fn(move |inputs| Ok(vec![module.forward(&inputs[0])?]), std::slice::from_ref(input))
    }

    /// Wraps a function of several tensors to several tensors. `inputs` are an example, all on one device.
    ///
    /// # Errors
    /// See [`OparaExecutor::new`].
    pub fn build_fn<F>(self, function: F, inputs: &[Tensor]) -> Result<OparaExecutor>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        OparaExecutor::wrap(self.0, guarded(function), inputs)
    }

    /// Wraps a module that is made where it then lives.
    ///
    /// # Errors
    /// See [`OparaExecutor::load`].
    pub fn load<M: Module + 'static>(
        self,
        make: impl FnOnce() -> candle::Result<M> + Send + 'static,
        input: &Tensor,
    ) -> Result<OparaExecutor> {
        let make = move || {
            let module = make()?;
            Ok(move |inputs: &[Tensor]| Ok(vec![module.forward(&inputs[0])?]))
        };
        self.load_fn(make, std::slice::from_ref(input))
    }

    /// Wraps a function of several tensors to several tensors that is made where it then lives. `inputs` are an
    /// example, all on one device.
    ///
    /// # Errors
    /// See [`OparaExecutor::load`].
    pub fn load_fn<F>(
        self,
        make: impl FnOnce() -> candle::Result<F> + Send + 'static,
        inputs: &[Tensor],
    ) -> Result<OparaExecutor>
    where
        F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + 'static,
    {
        OparaExecutor::wrap(self.0, home::load(make, inputs)?, inputs)
    }
}

/// The function with panics turned into errors.
fn guarded<F>(function: F) -> Function
where
    F: Fn(&[Tensor]) -> candle::Result<Vec<Tensor>> + Send + Sync + 'static,
{
    Arc::new(move |inputs| Ok(caught(|| Ok(function(inputs)?))?))
}
