//! Decoders in candle's style on a cache of fixed size, on the CPU.

use candle::{Device, Result, Tensor};
use opara_candle::Mode;

use super::common::decoder::{TinyDecoder, CONTEXT};

const CPU: &Device = &Device::Cpu;

#[test]
fn a_cache_gives_what_a_pass_over_all_tokens_gives() -> opara_candle::Result<()> {
    super::common::decoder::assert_writes_like_whole_passes(CPU, Mode::Threads)
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let cache = TinyDecoder::new(CPU)?.cache(1)?;
    assert_eq!(cache.context(), CONTEXT);
    let rows = Tensor::zeros((1, 2, CONTEXT + 1, 16), candle::DType::F32, CPU)?;
    assert!(cache.append(0, &rows, &rows).is_err(), "more tokens than places");
    assert!(cache.append(2, &rows, &rows).expect_err("two layers").to_string().contains("layer 2"));
    assert!(cache.mask(CONTEXT + 1, None).is_err());
    cache.advance(CONTEXT)?;
    let row = rows.narrow(2, 0, 1)?.contiguous()?;
    assert!(cache.append(0, &row, &row).is_err(), "the cache is full");
    Ok(())
}
