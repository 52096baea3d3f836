//! Files with the result of each stage.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle::Tensor;

use crate::report::Report;
use crate::stage::Stage;
use crate::trace::Trace;
use opara_plan::memory::Layout;
use opara_plan::optimize::Optimized;
use opara_plan::prepared::Analysed;
use opara_plan::schedule::Schedule;

/// The result of a stage.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Trace(&'a Arc<Trace>),
    Ops(&'a Optimized),
    Graph(&'a Analysed),
    Layouts(&'a [Layout; 2]),
    Schedule(&'a Schedule),
    Report(&'a Report),
}

/// A folder for the stages of one set of input shapes.
pub(super) struct Dump(PathBuf);

impl Dump {
    /// The one for inputs like these, inside `folder`: `f32-1x3x224x224`, with `_` between inputs.
    pub fn new(folder: &Path, inputs: &[Tensor]) -> Self {
        /// Names of files are limited to 255 bytes.
        const LONGEST: usize = 200;
        let name = |t: &Tensor| {
            let dims: Vec<String> = t.dims().iter().map(usize::to_string).collect();
            format!("{}-{}", t.dtype().as_str(), dims.join("x"))
        };
        let mut names = inputs.iter().map(name).collect::<Vec<_>>().join("_");
        names.truncate(LONGEST);
        Self(folder.join(names))
    }

    /// A folder of this name inside it, for the stages of another plan.
    pub fn inside(&self, name: &str) -> Self {
        Self(self.0.join(name))
    }

    /// Writes a stage's result to its own file. An error of writing is only a warning, since the plan does not need the
    /// file.
    pub fn write(&self, stage: Stage, value: Value) {
        let at = Stage::ALL.iter().position(|other| *other == stage).map_or(0, |at| at + 1);
        let file = self.0.join(format!("{at}-{stage}.{}", value.extension()));
        let written = value.bytes().and_then(|bytes| {
            fs::create_dir_all(&self.0)?;
            fs::write(&file, bytes)
        });
        if let Err(error) = written {
            tracing::warn!(file = %file.display(), %error, "the result of a stage cannot be written");
        }
    }
}

impl Value<'_> {
    fn extension(self) -> &'static str {
        match self {
            Value::Trace(_) | Value::Ops(_) => "trace",
            Value::Graph(_) => "dot",
            Value::Layouts(_) | Value::Schedule(_) | Value::Report(_) => "json",
        }
    }

    fn bytes(self) -> std::io::Result<Vec<u8>> {
        let of = |trace: &Trace| -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            trace.write_to(&mut bytes).map_err(std::io::Error::other)?;
            Ok(bytes)
        };
        Ok(match self {
            Value::Trace(trace) => of(trace)?,
            Value::Ops(ops) => of(&ops.trace)?,
            Value::Graph(Analysed { ops, graph, .. }) => {
                graph.to_dot(|op| format!("{op}: {}", ops.trace.ops[op].name)).into_bytes()
            }
            Value::Layouts(layouts) => serde_json::to_vec_pretty(layouts)?,
            Value::Schedule(schedule) => serde_json::to_vec_pretty(schedule)?,
            Value::Report(report) => serde_json::to_vec_pretty(report)?,
        })
    }
}
