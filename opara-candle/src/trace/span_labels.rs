//! `tracing` spans as scopes: the names that modules of other crates give their layers.

use tracing::span;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::Layer;

use super::scope::change;

/// A `tracing` layer that turns entered spans into scopes. With the feature `span-labels` alone.
///
/// candle-transformers creates its spans while a model is loaded, so install the layer before loading:
///
/// ```
/// use tracing_subscriber::prelude::*;
/// tracing_subscriber::registry().with(opara_candle::SpanLabels).init();
/// ```
pub struct SpanLabels;

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLabels {
    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            change(|path| path.push(span.name().to_string()));
        }
    }

    fn on_exit(&self, _: &span::Id, _: Context<'_, S>) {
        change(|path| drop(path.pop()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::scope::{path, record};

    #[test]
    fn spans_of_a_module_become_scopes() {
        use tracing_subscriber::prelude::*;
        let subscriber = tracing_subscriber::registry().with(SpanLabels);
        tracing::subscriber::with_default(subscriber, || {
            let (label, _) = record(None, || tracing::trace_span!("attention").in_scope(path));
            assert_eq!(label, "attention");
        });
    }
}
