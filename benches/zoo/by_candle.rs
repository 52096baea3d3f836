//! This library's own models, kept to candle's operators: what a user's module of plain operators is, beside the same model on the
//! library's operators.

use anyhow::Result;
use opara_candle::ops::use_candle_only;
use opara_examples::Native;

use crate::entry::{Entry, Model, Target};

/// The models.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "bert-by-candle", build: |at| by_candle(Native::Bert, at) },
    Entry { name: "t5-by-candle", build: |at| by_candle(Native::T5, at) },
    Entry { name: "deepfm-by-candle", build: |at| by_candle(Native::Deepfm, at) },
    Entry { name: "googlenet-by-candle", build: |at| by_candle(Native::Googlenet, at) },
    Entry { name: "inception-by-candle", build: |at| by_candle(Native::Inception, at) },
    Entry { name: "nasnet-by-candle", build: |at| by_candle(Native::Nasnet, at) },
];

fn by_candle(model: Native, at: &Target) -> Result<Model> {
    let inputs = [model.example(at.batch, at.dtype, &at.device)?];
    // The weights lie otherwise for each.
    let native = model.load_seeded(0, at.dtype, &at.device)?;
    use_candle_only(true);
    let loaded = model.load_seeded(0, at.dtype, &at.device);
    use_candle_only(false);
    // Rewriting uses the library's operators between the calls.
    let loaded = loaded?.by_candle();
    let mut kept = Model::new(inputs.clone(), move |x| loaded.call(x))?;
    kept.native = Some(Box::new(Model::new(inputs, move |x| native.call(x))?));
    Ok(kept)
}
