//! The base of rotary embeddings, as transformers writes it before and since version 5.

use opara_weights::{Fields, WeightsError};
use serde_json::Value;

/// The base in `rope_parameters`, or else in the field `name`, or else `default`. Scaled positions are refused.
pub(super) fn theta(fields: &Fields<&Value>, name: &str, default: f64) -> Result<f64, WeightsError> {
    let range = 1.0..=1e12;
    let mut found = fields.number_in(name, range.clone())?;
    for field in ["rope_parameters", "rope_scaling"] {
        let Some(inner) = fields.inside(field)? else { continue };
        found = inner.number_in("rope_theta", range.clone())?.or(found);
        for kind in ["rope_type", "type"] {
            if let Some(kind) = inner.text(kind)?.filter(|&kind| kind != "default") {
                return Err(fields
                    .unsound(field, format!("has positions of kind {kind:?}, which candle's module does not scale")));
            }
        }
    }
    Ok(found.unwrap_or(default))
}
