//! Draws that are not from the model's logits alone, and how likely tokens are.

use std::collections::BTreeMap;

use super::*;

/// All likelihoods of each token.
const ALL: Option<usize> = Some(96);

fn request(fields: Request) -> Request {
    Request { prompt: vec![5, 6, 7], most: 30, ..fields }
}

/// The token of the largest sum of logit and `added`. Logarithms of probabilities differ from logits by one number alone.
fn best(of: &Likelihoods, added: impl Fn(u32) -> f64) -> u32 {
    let weighed = of.best.iter().map(|(token, logit)| (*token, f64::from(*logit) + added(*token)));
    weighed.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).expect("there are tokens").0
}

#[test]
fn likelihoods_are_of_the_models_own_logits() {
    let model = model();
    for mut engine in [eager(&model, 2), replayed(&model, 2)] {
        let plain = alone(&mut engine, &request(Request::default()));
        let told = alone(&mut engine, &request(Request { alternatives: ALL, ..Request::default() }));
        assert_eq!((&told.tokens, told.likelihoods.len()), (&plain.tokens, plain.tokens.len()));
        for (token, of) in told.tokens.iter().zip(&told.likelihoods) {
            assert_eq!(of.best[0], (*token, of.token));
            let sum: f64 = of.best.iter().map(|(_, of)| f64::from(*of).exp()).sum();
            assert!((sum - 1.).abs() < 1e-5, "{sum}");
        }
        // Whatever changes the draws.
        let sampling = Sampling { temperature: 1.3, seed: 4, ..Sampling::default() };
        let drawn = request(Request { alternatives: Some(1), sampling, bias: vec![(9, 3.)], ..Request::default() });
        let drawn = alone(&mut engine, &drawn);
        assert_eq!(drawn.likelihoods[0].best, told.likelihoods[0].best[..1]);
        let of = told.likelihoods[0].best.iter().find(|(token, _)| *token == drawn.tokens[0]).expect("all are told");
        assert_eq!(drawn.likelihoods[0].token, of.1);
    }
}

#[test]
fn bias_and_penalties_are_added_to_logits() {
    let model = model();
    for mut engine in [eager(&model, 2), replayed(&model, 2)] {
        let plain = alone(&mut engine, &request(Request::default())).tokens;
        for (bias, frequency_penalty, presence_penalty) in [
            (vec![(plain[0], -100.)], 0., 0.),
            (vec![(40, 0.3), (41, 0.2), (plain[3], -0.1)], 0., 0.),
            (Vec::new(), 0.4, 0.),
            (Vec::new(), 0., 0.7),
            (vec![(plain[1], 1.)], 0.2, -0.1),
            (vec![(77, 100.)], 0., 0.),
        ] {
            let of = Request {
                bias: bias.clone(),
                frequency_penalty,
                presence_penalty,
                alternatives: ALL,
                ..Request::default()
            };
            let text = alone(&mut engine, &request(of.clone()));
            let mut counts = BTreeMap::<u32, u32>::new();
            for (at, (token, likelihoods)) in text.tokens.iter().zip(&text.likelihoods).enumerate() {
                let expected = best(likelihoods, |token| {
                    let own: f32 = bias.iter().filter(|(of, _)| *of == token).map(|(_, bias)| *bias).sum();
                    let count = counts.get(&token).copied().unwrap_or(0);
                    let is_there = if count > 0 { presence_penalty } else { 0. };
                    f64::from(own) - f64::from(frequency_penalty) * f64::from(count) - f64::from(is_there)
                });
                assert_eq!(*token, expected, "token {at} of {of:?}");
                *counts.entry(*token).or_default() += 1;
            }
            // The same without being told.
            let untold = alone(&mut engine, &request(Request { alternatives: None, ..of }));
            assert_eq!(untold.tokens, text.tokens);
        }
        // The slot is given to others as it was.
        assert_eq!(alone(&mut engine, &request(Request { least: 1, ..Request::default() })).tokens, plain);
        let marked = Sampling { repetition_penalty: 1.0001, ..Sampling::default() };
        let marked = request(Request { sampling: marked, alternatives: ALL, ..Request::default() });
        assert_eq!(alone(&mut engine, &marked).tokens[..3], plain[..3]);
    }
}

#[test]
fn guided_texts_have_the_tokens_that_may_come() {
    let model = model();
    for mut engine in [eager(&model, 2), replayed(&model, 2)] {
        let drawn = Sampling { temperature: 2., seed: 3, repetition_penalty: 1.2, ..Sampling::default() };
        for sampling in [Sampling::default(), drawn] {
            let of = request(Request { is_guided: true, alternatives: ALL, sampling, ..Request::default() });
            let text = alone(&mut engine, &of);
            assert_eq!((text.tokens.len(), text.end), (23, Some(End::Stop)));
            for (at, (token, likelihoods)) in text.tokens.iter().zip(&text.likelihoods).enumerate() {
                let guidance = guidance(&text.tokens[..at]);
                let may_come = |token: u32| match &guidance {
                    Guidance::Of(allowed) => allowed[token as usize / 32] >> (token % 32) & 1 == 1,
                    _ => true,
                };
                assert!(may_come(*token), "token {at}");
                if sampling == Sampling::default() {
                    let barred = |token| if may_come(token) { 0. } else { f64::NEG_INFINITY };
                    assert_eq!(*token, best(likelihoods, barred), "token {at}");
                }
            }
        }
        // Where all that may come would end the text too early, it ends.
        let ends = (0..96).collect();
        let text = alone(&mut engine, &request(Request { is_guided: true, least: 5, ends, ..Request::default() }));
        assert_eq!((text.tokens.len(), text.end), (0, Some(End::Stop)));
    }
}

#[test]
fn what_cannot_be_added_is_refused() {
    let mut engine = eager(&model(), 1);
    for wrong in [
        Request { bias: vec![(96, 1.)], ..Request::default() },
        Request { bias: vec![(1, f32::NAN)], ..Request::default() },
        Request { frequency_penalty: f32::INFINITY, ..Request::default() },
    ] {
        let (kept, _) = Kept::new(1);
        assert!(engine.add(request(wrong.clone()), kept).is_err(), "{wrong:?}");
    }
}
