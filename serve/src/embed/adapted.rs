//! The tensors of a checkpoint under the names that a module asks for.

use candle::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

/// What becomes of a name.
pub(super) enum Source {
    /// The tensor of this name.
    Named(String),
    /// The rows of the table of this name behind its first ones.
    RowsFrom(String, usize),
    /// Zeros: the checkpoint has no such table, and its model adds nothing.
    Zeros,
}

/// Where the tensor of a name is.
pub(super) trait Names: Send + Sync + 'static {
    fn source(&self, name: &str) -> Source;
}

impl<F: Fn(&str) -> Source + Send + Sync + 'static> Names for F {
    fn source(&self, name: &str) -> Source {
        self(name)
    }
}

struct Adapted<N> {
    tensors: VarBuilder<'static>,
    names: N,
}

/// The tensors of `tensors`, under the names for which `names` finds them.
pub(super) fn adapted(tensors: &VarBuilder<'static>, names: impl Names) -> VarBuilder<'static> {
    let adapted = Adapted { tensors: tensors.clone(), names };
    VarBuilder::from_backend(Box::new(adapted), tensors.dtype(), tensors.device().clone())
}

/// The tensors whose names begin with one of these prefixes, without it: files of a whole model have it, and those of its encoder alone
/// do not. `anchor` is the name of a tensor that every file has.
pub(super) fn unprefixed(tensors: &VarBuilder<'static>, prefixes: &[&str], anchor: &str) -> VarBuilder<'static> {
    let has = |prefix: &&&str| tensors.contains_tensor(&format!("{prefix}.{anchor}"));
    prefixes.iter().find(has).map_or_else(|| tensors.clone(), |prefix| tensors.pp(prefix))
}

/// The tensors of a file under names that begin with `prefix`, whether the file's names do or not.
pub(super) fn prefixed(tensors: &VarBuilder<'static>, prefix: &'static str, anchor: &str) -> VarBuilder<'static> {
    match tensors.contains_tensor(&format!("{prefix}.{anchor}")) {
        true => tensors.clone(),
        false => adapted(tensors, move |name: &str| {
            let bare = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
            Source::Named(bare.unwrap_or(name).to_owned())
        }),
    }
}

impl<N: Names> SimpleBackend for Adapted<N> {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> candle::Result<Tensor> {
        let tensor = |shape: Shape, name: &str| self.tensors.get_with_hints_dtype(shape, name, init, dtype);
        match self.names.source(name) {
            Source::Named(name) => tensor(shape, &name),
            Source::Zeros => Tensor::zeros(shape, dtype, device),
            Source::RowsFrom(name, start) => {
                let mut whole = shape.dims().to_vec();
                whole[0] += start;
                tensor(whole.into(), &name)?.narrow(0, start, shape.dims()[0])?.copy()
            }
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> candle::Result<Tensor> {
        match self.names.source(name) {
            Source::Named(name) => self.tensors.get_unchecked_dtype(&name, dtype),
            _ => candle::bail!("`{name}` has no shape of its own"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        match self.names.source(name) {
            Source::Named(name) | Source::RowsFrom(name, _) => self.tensors.contains_tensor(&name),
            Source::Zeros => true,
        }
    }
}
