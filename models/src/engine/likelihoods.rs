//! How likely tokens are.

use candle::{Result, Tensor};
use opara_candle::ops;

/// How likely a token was, and which ones were the most likely there: natural logarithms of the probabilities that the model gave,
/// before temperature, penalties and whatever else changes a draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Likelihoods {
    /// That of the token.
    pub token: f32,
    /// The most likely tokens, the first one first, and of equal ones the lower one.
    pub best: Vec<(u32, f32)>,
}

impl Likelihoods {
    /// The likelihood of a token by its logits, and the likelihoods of the `best` most likely tokens.
    ///
    /// # Panics
    /// If the token is none of them.
    pub fn of(logits: &[f32], token: u32, best: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let of = |logit: f32| (f64::from(logit - largest) - sum.ln()) as f32;
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let before = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if best > 0 && best < order.len() {
            order.select_nth_unstable_by(best - 1, before);
        }
        order.truncate(best);
        order.sort_unstable_by(before);
        let best = order.into_iter().map(|token| (token, of(logits[token as usize]))).collect();
        Self { token: of(logits[token as usize]), best }
    }
}

/// The likelihoods of the first tokens of a list, each by a row of logits, `(rows, vocab)` of f32, and of the `best` most likely tokens.
pub(super) fn of_rows(logits: &Tensor, tokens: &[u32], best: usize) -> Result<Vec<Likelihoods>> {
    let rows = tokens.len().min(logits.dim(0)?);
    if rows == 0 {
        return Ok(Vec::new());
    }
    let logits = logits.narrow(0, 0, rows)?;
    if best > 1 {
        let row = |(row, token): (Vec<f32>, &u32)| Likelihoods::of(&row, *token, best);
        return Ok(logits.to_vec2()?.into_iter().zip(tokens).map(row).collect());
    }
    // On the device, since a row is long.
    let sums = logits.log_sum_exp(1)?.to_vec1::<f32>()?;
    let chosen = |ids: &Tensor| logits.gather(&ids.unsqueeze(1)?, 1)?.flatten_all()?.to_vec1::<f32>();
    let own = chosen(&Tensor::new(&tokens[..rows], logits.device())?)?;
    let largest = match best {
        0 => Vec::new(),
        _ => {
            let largest = ops::argmax(&logits, 1)?;
            largest.to_vec1::<u32>()?.into_iter().zip(chosen(&largest)?).collect()
        }
    };
    let row = |row: usize| {
        let of = |logit: f32| logit - sums[row];
        let best = largest.get(row).map(|(token, logit)| (*token, of(*logit)));
        Likelihoods { token: of(own[row]), best: best.into_iter().collect() }
    };
    Ok((0..rows).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_the_best_come_first() {
        let logits = [0.5, 2., -1., 2., f32::NEG_INFINITY, 0.25];
        let all = Likelihoods::of(&logits, 0, 9);
        let tokens: Vec<u32> = all.best.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 3, 0, 5, 2, 4]);
        let sum: f64 = all.best.iter().map(|(_, of)| f64::from(*of).exp()).sum();
        assert!((sum - 1.).abs() < 1e-6, "{sum}");
        assert_eq!(all.token, all.best[2].1);
        let two = Likelihoods::of(&logits, 4, 2);
        assert_eq!((two.token, &two.best[..]), (f32::NEG_INFINITY, &all.best[..2]));
        assert!(Likelihoods::of(&logits, 1, 0).best.is_empty());
    }

    #[test]
    fn rows_have_what_each_has_alone() -> Result<()> {
        let rows: Vec<Vec<f32>> =
            (0..3).map(|row| (0..7).map(|at| ((row * 5 + at * 3) % 7) as f32 / 2.).collect()).collect();
        let logits = Tensor::new(rows.clone(), &candle::Device::Cpu)?;
        for best in [0, 1, 4] {
            let of = of_rows(&logits, &[6, 0], best)?;
            assert_eq!(of.len(), 2);
            for (at, token) in [6, 0].into_iter().enumerate() {
                let alone = Likelihoods::of(&rows[at], token, best);
                assert!((of[at].token - alone.token).abs() < 1e-5);
                let tokens = |of: &Likelihoods| of.best.iter().map(|(token, _)| *token).collect::<Vec<_>>();
                assert_eq!(tokens(&of[at]), tokens(&alone));
            }
        }
        Ok(())
    }
}
