//! The tensors of a checkpoint.

use candle::{DType, Device};
use opara_weights::Checkpoint;

/// Requests all tensors of a checkpoint, as a model does.
pub(crate) fn read_weights(checkpoint: &Checkpoint) -> bool {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let Ok(loaded) = checkpoint.load(dtype, &Device::Cpu) else { return false };
        let names = loaded.surplus();
        for pair in names.windows(2) {
            let _ = loaded.is_copy(&pair[0], &pair[1]);
        }
        for name in names {
            let _ = loaded.vb.get_unchecked(&name);
        }
        let _ = loaded.check(|_| false);
    }
    true
}
