//! How a request wants tokens to be drawn.

use std::collections::BTreeMap;

use opara_models::decoder::Draws;

use crate::model::{Failure, Result};

use super::super::fields::Fields;
use super::form::Form;

/// Likelihoods of the most likely tokens at most, as OpenAI's.
const MOST_ALTERNATIVES: usize = 20;

/// A number of a field, within bounds.
pub(super) fn within(fields: &Fields, name: &str, min: f32, max: f32) -> Result<Option<f32>> {
    match fields.take::<f32>(name)? {
        Some(value) if !(min..=max).contains(&value) => {
            Err(Failure::invalid(format!("`{name}` is {value}, and must be from {min} to {max}")))
        }
        value => Ok(value),
    }
}

/// What a request says of draws. The rest the checkpoint may say.
pub(super) fn draws(fields: &Fields) -> Result<Draws> {
    let top_k = match fields.take::<i64>("top_k")? {
        Some(-1) => Some(0),
        Some(k) => {
            let wrong = |_| Failure::invalid(format!("`top_k` is {k}, and must be -1, 0 or more"));
            Some(u32::try_from(k).map_err(wrong)?)
        }
        None => None,
    };
    Ok(Draws {
        temperature: within(fields, "temperature", 0., 2.)?,
        top_k,
        top_p: within(fields, "top_p", 0., 1.)?,
        min_p: within(fields, "min_p", 0., 1.)?,
        repetition_penalty: within(fields, "repetition_penalty", 0.01, 100.)?,
    })
}

/// What is added to the logits of tokens, whose ids are the names of the field.
pub(super) fn bias(fields: &Fields) -> Result<Vec<(u32, f32)>> {
    let named: BTreeMap<String, f32> = fields.take("logit_bias")?.unwrap_or_default();
    let read = |(name, bias): (String, f32)| {
        let token = name.parse().map_err(|_| {
            let name: String = name.chars().take(80).collect();
            Failure::invalid(format!("`logit_bias` names {name:?}, which is not the id of a token"))
        })?;
        match (-100. ..=100.).contains(&bias) {
            true => Ok((token, bias)),
            false => Err(Failure::invalid(format!("`logit_bias.{token}` is {bias}, and must be from -100 to 100"))),
        }
    };
    named.into_iter().map(read).collect()
}

/// Whether the likelihoods of tokens are told, and of how many of the most likely ones.
pub(super) fn alternatives(fields: &Fields, form: Form) -> Result<Option<usize>> {
    let (name, asked) = match form {
        Form::Text => ("logprobs", logprobs(fields)?),
        Form::Chat => {
            let top = fields.take::<usize>("top_logprobs")?;
            let is_asked = fields.take::<bool>("logprobs")?.unwrap_or(false);
            if !is_asked && top.is_some_and(|top| top > 0) {
                return Err(Failure::invalid("`top_logprobs` is for requests with `logprobs` alone: set it to true"));
            }
            ("top_logprobs", is_asked.then_some(top.unwrap_or(0)))
        }
    };
    match asked.filter(|asked| *asked > MOST_ALTERNATIVES) {
        Some(asked) => {
            let message = format!("`{name}` is {asked}, and may be at most {MOST_ALTERNATIVES}");
            Err(Failure::invalid(message))
        }
        None => Ok(asked),
    }
}

/// The number of a request for a text. Clients that know conversations alone say false.
fn logprobs(fields: &Fields) -> Result<Option<usize>> {
    #[derive(serde::Deserialize)]
    #[serde(untagged, expecting = "a number of tokens")]
    enum Asked {
        Number(usize),
        No(bool),
    }
    match fields.take("logprobs")? {
        Some(Asked::Number(tokens)) => Ok(Some(tokens)),
        Some(Asked::No(true)) => Err(Failure::invalid("`logprobs` is a number of tokens: true says none")),
        Some(Asked::No(false)) | None => Ok(None),
    }
}
