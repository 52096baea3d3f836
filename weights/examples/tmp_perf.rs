//! tmp
use candle::{DType, Device};
use std::io::Write;
use std::time::Instant;
fn main() {
    let vb = opara_weights::seeded(42, DType::F32, &Device::Cpu);
    for _ in 0..3 {
        let t = Instant::now();
        let mut keep = vec![];
        for i in 0..144 {
            keep.push(vb.get((1024, 768), &format!("l{i}.weight")).unwrap());
        }
        println!("{:?}", t.elapsed());
    }
    for (i, (n, s)) in [
        ("a.weight", vec![37usize, 5, 3, 3]),
        ("b.weight", vec![1000]),
        ("c.running_var", vec![999]),
        ("d.bias", vec![1001]),
        ("конв.gamma", vec![77]),
        ("x", vec![7, 11, 13]),
    ]
    .into_iter()
    .enumerate()
    {
        let v = vb.get(s, n).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mut f = std::fs::File::create(format!("/tmp/npvenv/t{i}.bin")).unwrap();
        for x in v {
            f.write_all(&x.to_le_bytes()).unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let m: std::collections::HashMap<String, _> = (0..144)
        .map(|i| {
            let n = format!("l{i}.weight");
            let t = vb.get((1024, 768), &n).unwrap();
            (n, t)
        })
        .collect();
    candle::safetensors::save(&m, dir.path().join("model.safetensors")).unwrap();
    let t = Instant::now();
    let w = opara_weights::Checkpoint::find(dir.path().to_str().unwrap())
        .unwrap()
        .weights(DType::F32, &Device::Cpu)
        .unwrap();
    let keep: Vec<_> = (0..144).map(|i| w.get((1024, 768), &format!("l{i}.weight")).unwrap()).collect();
    println!("load {} in {:?}", keep.len(), t.elapsed());
}
