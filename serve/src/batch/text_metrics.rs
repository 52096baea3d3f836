//! Counters and histograms of models that write texts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{exponential_buckets, Histogram};
use prometheus_client::registry::Registry;

use super::labels::{OfKind, OfModel};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    model: String,
    state: &'static str,
}

/// Those of all models.
#[derive(Debug)]
pub(super) struct TextFamilies {
    tokens: Family<OfKind, Counter>,
    sequences: Family<OfState, Gauge>,
    slots: Family<OfModel, Gauge>,
    pages: Family<OfState, Gauge>,
    first: Family<OfModel, Histogram>,
    between: Family<OfModel, Histogram>,
}

impl TextFamilies {
    pub fn register(registry: &mut Registry) -> Self {
        // From 100 microseconds to 52 seconds.
        let seconds = || Histogram::new(exponential_buckets(100e-6, 2., 20));
        let families = Self {
            tokens: Family::default(),
            sequences: Family::default(),
            slots: Family::default(),
            pages: Family::default(),
            first: Family::new_with_constructor(seconds as fn() -> _),
            between: Family::new_with_constructor(seconds as fn() -> _),
        };
        registry.register("text_tokens", "Tokens of prompts, of these cached, and written", families.tokens.clone());
        registry.register("text_sequences", "Texts that are written, and that wait", families.sequences.clone());
        registry.register("text_slots", "Texts that may be written at once", families.slots.clone());
        let help = "Pages of 64 tokens of keys and values that texts have, and all of them";
        registry.register("text_pages", help, families.pages.clone());
        let help = "Seconds from a request to its first token";
        registry.register("text_first_token_seconds", help, families.first.clone());
        registry.register("text_between_tokens_seconds", "Seconds between two tokens", families.between.clone());
        families
    }

    pub fn of(&self, name: &str) -> TextMetrics {
        let model = OfModel { model: name.to_owned() };
        let tokens = |kind| self.tokens.get_or_create_owned(&OfKind { model: name.to_owned(), kind });
        let state = |state| self.sequences.get_or_create_owned(&OfState { model: name.to_owned(), state });
        let pages = |state| self.pages.get_or_create_owned(&OfState { model: name.to_owned(), state });
        TextMetrics {
            prompt: tokens("prompt"),
            cached: tokens("cached"),
            written: tokens("written"),
            running: state("running"),
            waiting: state("waiting"),
            slots: self.slots.get_or_create_owned(&model),
            held_pages: pages("held"),
            pages: pages("all"),
            first: self.first.get_or_create_owned(&model),
            between: self.between.get_or_create_owned(&model),
        }
    }
}

/// The metrics of one model that writes texts. Those of [`Default`] are counted and shown nowhere.
#[derive(Debug, Clone)]
pub struct TextMetrics {
    pub(crate) prompt: Counter,
    pub(crate) cached: Counter,
    pub(crate) written: Counter,
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) slots: Gauge,
    pub(crate) held_pages: Gauge,
    pub(crate) pages: Gauge,
    pub(crate) first: Histogram,
    pub(crate) between: Histogram,
}

impl Default for TextMetrics {
    fn default() -> Self {
        TextFamilies::register(&mut Registry::default()).of("")
    }
}
