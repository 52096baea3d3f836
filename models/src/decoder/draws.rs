//! How tokens are drawn, as far as it is said.

use opara_candle::ops::Sampling;
use opara_weights::Fields;
use serde_json::Value;

use super::error::Result;

/// How tokens are drawn, as far as it is said.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Draws {
    /// 0 for the most likely token.
    pub temperature: Option<f32>,
    /// 0 for all tokens.
    pub top_k: Option<u32>,
    /// See [`Sampling`](opara_candle::ops::Sampling), here and below.
    pub top_p: Option<f32>,
    /// A fraction of the most likely token's probability.
    pub min_p: Option<f32>,
    /// 1 changes nothing.
    pub repetition_penalty: Option<f32>,
}

impl Draws {
    /// These settings, and `other`'s for all that are missing.
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
        }
    }

    /// As a checkpoint says it. Where it says that tokens are not drawn, they are the most likely ones.
    pub(super) fn of(fields: &Fields<&Value>) -> Result<Self> {
        let read = Self {
            temperature: fields.take("temperature")?,
            // Below 0 stands for all.
            top_k: fields.take::<i64>("top_k")?.map(|k| u32::try_from(k).unwrap_or(0)),
            top_p: fields.take("top_p")?,
            min_p: fields.take("min_p")?,
            repetition_penalty: fields.take("repetition_penalty")?,
        };
        let draws = fields.take::<bool>("do_sample")?;
        Ok(if draws == Some(false) { Self { temperature: Some(0.), ..read } } else { read })
    }

    /// The parameters of a draw. A missing one changes nothing.
    pub fn sampling(self, seed: u64) -> Sampling {
        // Below a thousandth there is no difference.
        let temperature = self.temperature.filter(|of| *of < 1e-3).map_or(self.temperature.unwrap_or(1.), |_| 0.);
        Sampling {
            temperature,
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.).max(f32::MIN_POSITIVE),
            min_p: self.min_p.unwrap_or(0.),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.),
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_checkpoint_says_is_taken_where_a_request_says_nothing() -> Result<()> {
        let of = |json: Value| Draws::of(&Fields::of(&json)?);
        let said = of(json!({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": true}))?;
        let asked = Draws { top_p: Some(0.5), ..Draws::default() };
        let sampling = asked.or(said).sampling(7);
        assert_eq!(sampling, Sampling { temperature: 0.6, top_k: 20, top_p: 0.5, seed: 7, ..Sampling::default() });
        let nothing = Draws::default().sampling(0);
        assert_eq!(nothing, Sampling { temperature: 1., ..Sampling::default() });
        let greedy = of(json!({"do_sample": false, "temperature": 0.6, "top_k": -1}))?;
        assert_eq!((greedy.temperature, greedy.top_k), (Some(0.), Some(0)));
        Ok(())
    }
}
