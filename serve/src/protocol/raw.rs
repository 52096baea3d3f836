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
    use super::*;

    fn bytes(rng: &mut fastrand::Rng) -> Vec<u8> {
        (0..rng.usize(0..64)).map(|_| rng.u8(..)).collect()
    }

    #[test]
    fn elements_come_back() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let count = rng.usize(0..20);
            let all = [
                (Datatype::Int64, Values::Ints((0..count).map(|_| rng.i64(..)).collect())),
                (Datatype::Int32, Values::Ints((0..count).map(|_| rng.i32(..).into()).collect())),
                (Datatype::Fp32, Values::Floats((0..count).map(|_| rng.f32() - 0.5).collect())),
                (Datatype::Bytes, Values::Bytes((0..count).map(|_| bytes(&mut rng).into()).collect())),
            ];
            for (datatype, values) in all {
                let raw = encode(datatype, &values);
                assert_eq!(decode("x", datatype, values.len(), raw), Ok(values));
            }
        }
    }

    #[test]
    fn any_bytes_are_elements_or_an_error() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (raw, elements) = (bytes(&mut rng), if rng.bool() { rng.usize(0..9) } else { rng.usize(..) });
            for datatype in [Datatype::Int32, Datatype::Int64, Datatype::Fp32, Datatype::Bytes, Datatype::Fp16] {
                if let Ok(values) = decode("x", datatype, elements, raw.clone().into()) {
                    assert_eq!(values.len(), elements);
                }
            }
        }
    }
}
