//! The safetensors format: a JSON header, then the tensors' bytes.

use std::fs::File;
use std::io::Read;

use candle::Layout;
use safetensors::tensor::Metadata;

use super::entry::{extent, Entries, Entry};
use super::flaw::Flaw;

/// The file starts with the header's length in bytes, as a 64-bit number.
const PREFIX: u64 = 8;

/// The format's limit on the size of a header.
const MAX_HEADER: u64 = 100_000_000;

/// Reads the header of a file of `size` bytes and validates it against the size.
pub(super) fn entries(mut file: File, size: u64) -> Result<Entries, Flaw> {
    if size < PREFIX {
        return Err(format!("it has only {size} bytes").into());
    }
    let mut prefix = [0; PREFIX as usize];
    file.read_exact(&mut prefix)?;
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER.min(size - PREFIX) {
        return Err(format!("a header of {length} bytes in a file of {size} bytes").into());
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| format!("header: {error}"))?;

    let start = PREFIX + length;
    let (declared, held) = (metadata.data_len() as u64, size - start);
    if declared != held {
        return Err(format!("its header declares {declared} bytes of tensors, it holds {held}").into());
    }
    let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        if extent(&info.shape).is_none() {
            return Err(format!("the shape of `{name}` overflows").into());
        }
        let (begin, end) = info.data_offsets;
        let bytes = start + begin as u64..start + end as u64;
        Ok((name, Entry { dtype: info.dtype, layout: Layout::contiguous(info.shape.as_slice()), bytes }))
    };
    metadata.tensors().into_iter().map(entry).collect()
}
