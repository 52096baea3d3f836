//! Sequences that join a batch on a GPU and leave it.

use std::sync::{mpsc, Arc};

use anyhow::Result;
use candle::DType;
use fastrand::Rng;
use opara_candle::ops::Sampling;
use opara_candle::OparaExecutor;
use opara_models::decoder::{Decoder, End, Listener, Request, Scheduler};

use super::common::gpu;
use super::generation::configs;

struct Sent(mpsc::Sender<u32>, usize);

impl Listener for Sent {
    fn token(&mut self, token: u32) -> bool {
        self.1 -= 1;
        self.0.send(token).is_ok() && self.1 > 0
    }

    fn end(&mut self, end: End) {
        assert!(!matches!(end, End::Failed(_)), "{end:?}");
    }
}

fn request(rng: &mut Rng) -> Request {
    // Some begin alike, for more than a part.
    let same = (0..rng.usize(0..3) * 130 + 1).map(|at| at as u32 % 96);
    let prompt = same.chain((0..rng.usize(0..40)).map(|_| rng.u32(0..96)).collect::<Vec<_>>()).collect();
    let drawn = Sampling { temperature: 0.9, top_k: 40, seed: rng.u64(0..3), ..Sampling::default() };
    let sampling = [Sampling::default(), drawn, Sampling { repetition_penalty: 1.3, ..drawn }][rng.usize(0..3)];
    Request { prompt, most: rng.usize(1..60), ends: vec![rng.u32(0..96)], sampling }
}

#[test]
fn each_sequence_writes_what_it_writes_alone() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    // The heads of the last one are none that kernels take.
    for (name, config) in [configs().swap_remove(2), configs().swap_remove(3), configs().swap_remove(6)] {
        let config = opara_models::decoder::Config { max_positions: 512, ..config };
        let weights = opara_weights::seeded(5, DType::F16, &device);
        let model = Arc::new(Decoder::load(weights, &config, 400)?);
        // Of as many slots: one slot has kernels of its own.
        let mut alone = Scheduler::new(model.clone(), 8, None)?;
        let mut scheduler = Scheduler::new(model, 8, Some(&OparaExecutor::builder()))?;
        assert_eq!(scheduler.eager(), [""; 0], "{name}");
        let mut rng = Rng::with_seed(1);
        let (mut waiting, mut texts) = (40, Vec::new());
        while waiting > 0 || scheduler.live() > 0 {
            while waiting > 0 && scheduler.free() > 0 && rng.bool() {
                let wanted = if rng.u32(0..4) == 0 { rng.usize(1..30) } else { usize::MAX };
                let (request, (told, text)) = (request(&mut rng), mpsc::channel());
                scheduler.join(request.clone(), Box::new(Sent(told, wanted)))?;
                texts.push((request, wanted, text));
                waiting -= 1;
            }
            scheduler.turn(|| rng.u32(0..4) == 0)?;
        }
        for (request, wanted, text) in texts {
            let (told, expected) = mpsc::channel();
            alone.join(request.clone(), Box::new(Sent(told, wanted)))?;
            while alone.live() > 0 {
                alone.turn(|| false)?;
            }
            let (text, expected): (Vec<u32>, Vec<u32>) = (text.into_iter().collect(), expected.into_iter().collect());
            assert_eq!(text, expected, "{name}: {request:?}");
        }
    }
    Ok(())
}
