//! What models of two towers have in common, one for texts and one for pictures.

use std::fmt::Debug;

use opara_weights::{Fields, WeightsError};
use serde_json::Value;

use super::super::Result;

/// Pixels of the longest side of a picture. Published models have up to 896.
const SIDE: usize = 8_192;
/// Patches of the largest picture. Published models have up to 4,096.
const PATCHES: usize = 65_536;

/// Tensors of the tower that sees pictures, and of the comparison of the two.
pub(super) fn is_of_pictures(name: &str) -> bool {
    ["vision_model.", "visual_projection.", "logit_scale", "logit_bias"].iter().any(|part| name.starts_with(part))
}

/// Refuses pictures with more patches than any model has, and those without: modules make tables of them before they have read a tensor.
pub(super) fn check_patches(fields: &Fields<&Value>, side: usize, patch: usize) -> Result<(), WeightsError> {
    if side > SIDE {
        return Err(fields.unsound("image_size", format!("is {side}: no model has more than {SIDE}")));
    }
    if patch > side {
        return Err(fields.unsound("patch_size", format!("is {patch}, and pictures have a side of {side}")));
    }
    match (side / patch).pow(2) {
        patches if patches > PATCHES => {
            Err(fields.unsound("patch_size", format!("is {patch}: no model has {patches} patches")))
        }
        _ => Ok(()),
    }
}

/// Refuses a second description of a tower that says something else than `config`, which was read of the first. transformers takes its
/// fields, and its own defaults for those that it lacks.
pub(super) fn check_second<T: Debug>(
    whole: &Fields<&Value>,
    name: &str,
    config: &T,
    read: impl Fn(&Fields<&Value>) -> Result<T>,
) -> Result<()> {
    let Some(second) = whole.inside(name)? else { return Ok(()) };
    // candle's configurations are not comparable otherwise.
    match format!("{:?}", read(&second)?) == format!("{config:?}") {
        true => Ok(()),
        false => {
            let first = name.trim_end_matches("_dict");
            let reason =
                format!("says something else than `{first}`, be it by a default: leave out the one that is wrong");
            Err(whole.unsound(name, reason).into())
        }
    }
}
