use candle::{Device, Tensor};
use std::time::Instant;
fn main() {
    let n: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1000);
    for shape in [[1usize, 12, 128, 128], [1, 12, 32, 32], [1, 12, 512, 512]] {
        let x = Tensor::rand(-1f32, 1., &shape, &Device::Cpu).unwrap();
        let mut t = [vec![], vec![]];
        for _ in 0..n {
            for which in 0..2 {
                let s = Instant::now();
                let y = if which == 0 {
                    candle_nn::ops::softmax_last_dim(&x)
                } else {
                    opara_candle::ops::softmax_last_dim(&x)
                };
                t[which].push(s.elapsed().as_nanos());
                drop(y.unwrap());
            }
        }
        for t in &mut t {
            t.sort();
        }
        let q = |t: &Vec<u128>, p: usize| t[t.len() * p / 100] as f64 / 1e3;
        println!(
            "{shape:?} candle min {:.0} p10 {:.0} median {:.0}; ours min {:.0} p10 {:.0} median {:.0}",
            q(&t[0], 0),
            q(&t[0], 10),
            q(&t[0], 50),
            q(&t[1], 0),
            q(&t[1], 10),
            q(&t[1], 50)
        );
    }
}
