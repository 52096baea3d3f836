//! The classes of a classifier, and how logits become scores.

use std::collections::BTreeMap;

use opara_weights::{Fields, WeightsError};
use serde_json::Value;

/// How logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// They are scores.
    Logits,
    /// Each by itself, between 0 and 1.
    Sigmoid,
    /// Together they are 1.
    Softmax,
}

/// The classes of a classifier. One with a single class says how well two texts fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Their names, in the order of the logits.
    pub names: Vec<String>,
    /// How logits become scores.
    pub scores: Scores,
}

impl Labels {
    /// What a configuration says. `activation` is the name of a function in a file beside it, which counts more.
    pub(super) fn read(config: &Value, activation: Option<&str>) -> Result<Self, WeightsError> {
        let fields = Fields::of(config)?;
        let names = match fields.take::<BTreeMap<String, String>>("id2label")? {
            Some(labels) => (0..labels.len())
                .map(|id| labels.get(&id.to_string()).cloned())
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| fields.unsound("id2label", "does not name every class from 0 on"))?,
            None => (0..fields.count("num_labels")?.unwrap_or(2)).map(|id| format!("LABEL_{id}")).collect(),
        };
        if names.is_empty() {
            return Err(fields.unsound("id2label", "names no class"));
        }
        let own = fields.object("sentence_transformers")?;
        let own = own.text("activation_fn")?.or(fields.text("sbert_ce_default_activation_function")?);
        let scores = match (activation.or(own), fields.text("problem_type")?) {
            (Some(name), _) => match name.rsplit('.').next().filter(|_| name.starts_with("torch.nn.")) {
                Some("Sigmoid") => Scores::Sigmoid,
                Some("Identity") => Scores::Logits,
                _ => {
                    return Err(fields
                        .unsound("activation_fn", format!("is {name}: Sigmoid and Identity of torch.nn are known")))
                }
            },
            (None, Some("multi_label_classification")) => Scores::Sigmoid,
            (None, Some("regression")) if names.len() > 1 => Scores::Logits,
            (None, None | Some("single_label_classification" | "regression")) => match names.len() {
                1 => Scores::Sigmoid,
                _ => Scores::Softmax,
            },
            (None, Some(other)) => {
                return Err(fields.unsound("problem_type", format!("is {other:?}, which is not known")))
            }
        };
        Ok(Self { names, scores })
    }

    /// Whether it compares two texts.
    pub fn is_reranker(&self) -> bool {
        self.names.len() == 1
    }

    /// The scores of these logits.
    pub fn scores(&self, logits: &[f32]) -> Vec<f32> {
        match self.scores {
            Scores::Logits => logits.to_vec(),
            Scores::Sigmoid => logits.iter().map(|&x| (1. / (1. + (-f64::from(x)).exp())) as f32).collect(),
            Scores::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f64> = logits.iter().map(|&x| f64::from(x - most).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.iter().map(|power| (power / sum) as f32).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scores_are_those_that_the_configuration_names() -> Result<(), WeightsError> {
        let of = |config: Value| Labels::read(&config, None).map(|labels| labels.scores);
        let three = json!({"0": "a", "1": "b", "2": "c"});
        assert_eq!(of(json!({"id2label": three}))?, Scores::Softmax);
        assert_eq!(of(json!({"id2label": three, "problem_type": "multi_label_classification"}))?, Scores::Sigmoid);
        assert_eq!(of(json!({"id2label": {"0": "LABEL_0"}}))?, Scores::Sigmoid);
        let identity = json!({"id2label": {"0": "x"}, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}});
        assert_eq!(of(identity.clone())?, Scores::Logits);
        assert_eq!(Labels::read(&identity, Some("torch.nn.modules.activation.Sigmoid"))?.scores, Scores::Sigmoid);
        for wrong in [
            json!({"id2label": {"1": "a"}}),
            json!({"id2label": {}}),
            json!({"id2label": three, "problem_type": "other"}),
            json!({"id2label": three, "sbert_ce_default_activation_function": "mine.Sigmoid"}),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn large_logits_have_scores() {
        let labels = |scores| Labels { names: vec!["a".into(), "b".into()], scores };
        assert_eq!(labels(Scores::Softmax).scores(&[1e30, -1e30]), [1., 0.]);
        assert_eq!(labels(Scores::Sigmoid).scores(&[1e30, -1e30]), [1., 0.]);
        assert_eq!(labels(Scores::Logits).scores(&[2., -3.]), [2., -3.]);
    }
}
