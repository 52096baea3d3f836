//! Sequences that join and leave at random.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use candle::Device;
use fastrand::Rng;
use opara_models::decoder::Decoder;
use opara_models::engine::{End, Engine, Listener, Request};

/// What came of them.
pub struct Churn {
    pub tokens: usize,
    pub sequences: usize,
    pub cancelled: usize,
    pub time: Duration,
    /// Steps after which sequences waited on the host.
    pub waited: usize,
    /// Bytes of the host and of the GPU that came on top after a tenth of the tokens.
    pub grown: [usize; 2],
}

#[derive(Default)]
struct Tally {
    tokens: AtomicUsize,
    cancelled: AtomicUsize,
    ended: AtomicUsize,
    wrong: AtomicUsize,
}

/// Holds tokens against those that the sequence wrote alone.
struct Checked {
    alone: Arc<Vec<u32>>,
    at: usize,
    /// Cancels after so many.
    wanted: usize,
    tally: Arc<Tally>,
}

fn count(of: &AtomicUsize) {
    of.fetch_add(1, Ordering::Relaxed);
}

impl Listener for Checked {
    fn token(&mut self, token: u32) -> bool {
        if self.alone.get(self.at) != Some(&token) {
            count(&self.tally.wrong);
        }
        self.at += 1;
        count(&self.tally.tokens);
        if self.at == self.wanted {
            count(&self.tally.cancelled);
        }
        self.at < self.wanted
    }

    fn end(&mut self, end: End) {
        if self.at != self.alone.len() || matches!(end, End::Failed(_)) {
            count(&self.tally.wrong);
        }
        count(&self.tally.ended);
    }
}

impl Churn {
    /// Writes `tokens` tokens, of requests chosen at random, in at most so many seconds. One sequence in four is cancelled.
    pub fn run(
        engine: &mut Engine<Decoder>,
        requests: &[(Request, Arc<Vec<u32>>)],
        (tokens, seconds): (usize, f64),
        rng: &mut Rng,
        device: &Device,
    ) -> Result<Self> {
        let (start, tally, mut level) = (Instant::now(), Arc::new(Tally::default()), None);
        let (mut sequences, mut waited) = (0, 0);
        let of = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        loop {
            let is_over = of(&tally.tokens) >= tokens || start.elapsed().as_secs_f64() > seconds;
            while !is_over && engine.free() > 0 && rng.u32(0..3) > 0 {
                let (request, alone) = &requests[rng.usize(0..requests.len())];
                let wanted = if rng.u32(0..4) == 0 { rng.usize(1..=request.most) } else { usize::MAX };
                let checked = Checked { alone: alone.clone(), at: 0, wanted, tally: tally.clone() };
                // Half of them share what others with the same prompt have read.
                let tenant = if rng.bool() { 0 } else { 1 + sequences as u64 };
                engine.add(Request { tenant, ..request.clone() }, Box::new(checked))?;
                sequences += 1;
            }
            if is_over && engine.live() == 0 {
                break;
            }
            engine.step(|_| rng.u32(0..8) == 0)?;
            waited += usize::from(engine.aside() > 0);
            if of(&tally.tokens) * 10 >= tokens && level.is_none() {
                level = Some(used(device)?);
            }
        }
        let time = start.elapsed();
        let (now, level) = (used(device)?, level.unwrap_or_default());
        let (cancelled, ended, wrong) = (of(&tally.cancelled), of(&tally.ended), of(&tally.wrong));
        ensure!(wrong == 0, "{wrong} tokens or ends of {sequences} sequences are not those that each has alone");
        ensure!(
            cancelled + ended == sequences,
            "of {sequences} sequences {cancelled} were cancelled and {ended} ended"
        );
        ensure!(engine.pages().is_none_or(|(held, _)| held == 0), "pages are lost: {:?}", engine.pages());
        let grown = [0, 1].map(|at| now[at].saturating_sub(level[at]));
        Ok(Self { tokens: of(&tally.tokens), sequences, cancelled, time, waited, grown })
    }
}

/// Bytes of the host, and of the GPU if there is one, that are in use.
fn used(device: &Device) -> Result<[usize; 2]> {
    let told = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = told.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0);
    // What is free falls as what is used rises.
    let gpu = if device.is_cuda() { usize::MAX - opara_candle::free_memory(device)? as usize } else { 0 };
    Ok([pages * 4_096, gpu])
}
