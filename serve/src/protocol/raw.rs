//! Elements as bytes: little-endian, in row-major order. Each element of BYTES has its length, four bytes, before it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::model::{Datatype, Failure, Result, Values};

/// Elements of this type from all of `raw`.
///
/// # Errors
/// Bytes that are too few or too many; a type that no model takes.
pub(super) fn decode(name: &str, datatype: Datatype, elements: usize, mut raw: Bytes) -> Result<Values> {
    let has = raw.len();
    let exactly = |width: usize| match elements.checked_mul(width) {
        Some(expected) if expected == has => Ok(()),
        _ => Err(Failure::invalid(format!(
            "input {name:?} has {has} bytes, and {elements} elements of {datatype} have {width} each"
        ))),
    };
    match datatype {
        Datatype::Int64 => exactly(8).map(|()| Values::Ints((0..elements).map(|_| raw.get_i64_le()).collect())),
        Datatype::Int32 => exactly(4).map(|()| Values::Ints((0..elements).map(|_| raw.get_i32_le().into()).collect())),
        Datatype::Fp32 => exactly(4).map(|()| Values::Floats((0..elements).map(|_| raw.get_f32_le()).collect())),
        Datatype::Bytes => strings(name, elements, raw),
        other => Err(unsupported(name, other)),
    }
}

fn strings(name: &str, elements: usize, mut raw: Bytes) -> Result<Values> {
    let truncated = || Failure::invalid(format!("input {name:?} ends within one of its {elements} elements"));
    // No more than the bytes can hold, whatever the shape says.
    let mut values = Vec::with_capacity(elements.min(raw.len() / 4));
    for _ in 0..elements {
        let length = raw.try_get_u32_le().map_err(|_| truncated())? as usize;
        if raw.len() < length {
            return Err(truncated());
        }
        values.push(raw.split_to(length));
    }
    match raw.is_empty() {
        true => Ok(Values::Bytes(values)),
        false => Err(Failure::invalid(format!("input {name:?} has bytes after its {elements} elements"))),
    }
}

pub(super) fn unsupported(name: &str, datatype: Datatype) -> Failure {
    Failure::invalid(format!("input {name:?} is {datatype}: models of this server take INT32, INT64, FP32 and BYTES"))
}

/// The bytes of elements. Integers have the width of `datatype`.
pub(super) fn encode(datatype: Datatype, values: &Values) -> Bytes {
    let mut raw = BytesMut::with_capacity(values.len() * 8);
    match values {
        Values::Ints(values) if datatype == Datatype::Int32 => values.iter().for_each(|&v| raw.put_i32_le(v as i32)),
        Values::Ints(values) => values.iter().for_each(|&v| raw.put_i64_le(v)),
        Values::Floats(values) => values.iter().for_each(|&v| raw.put_f32_le(v)),
        Values::Bytes(values) => {
            for value in values {
                raw.put_u32_le(value.len() as u32);
                raw.put_slice(value);
            }
        }
    }
    raw.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn elements_come_back(ints: Vec<i64>, floats: Vec<i32>, strings: Vec<Vec<u8>>) {
            let floats = floats.into_iter().map(|n| n as f32 / 7.).collect();
            let strings = strings.into_iter().map(Bytes::from).collect();
            let all = [(Datatype::Int64, Values::Ints(ints)), (Datatype::Fp32, Values::Floats(floats)), (Datatype::Bytes, Values::Bytes(strings))];
            for (datatype, values) in all {
                let raw = encode(datatype, &values);
                prop_assert_eq!(decode("x", datatype, values.len(), raw), Ok(values));
            }
        }

        #[test]
        fn any_bytes_are_elements_or_an_error(raw: Vec<u8>, elements in 0usize..1 << 40) {
            for datatype in [Datatype::Int32, Datatype::Int64, Datatype::Fp32, Datatype::Bytes, Datatype::Fp16] {
                if let Ok(values) = decode("x", datatype, elements, raw.clone().into()) {
                    prop_assert_eq!(values.len(), elements);
                }
            }
        }
    }
}
