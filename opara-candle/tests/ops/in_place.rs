//! Operators that write in place, and argmax, compared with plain loops.

use candle::{DType, Device::Cpu, Result, Tensor};
use opara_candle::ops;

use super::{doubles, values};

#[test]
fn rows_go_where_their_positions_say() -> Result<()> {
    const NONE: u32 = u32::MAX;
    let (outer, len, width) = ([2, 3], 5, 4);
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::U8, DType::U32, DType::I64] {
        let new_rows = |n: usize| -> Result<Tensor> {
            (values(1, &[3, 2, n, width], DType::F32)? * 100.)?.abs()?.to_dtype(dtype)?.transpose(0, 1)
        };
        for (n, at_shape, at) in [
            (1, vec![1], vec![3]),
            (2, vec![3], vec![0, 3, NONE]),
            (1, vec![2, 1], vec![4, 0]),
            (1, vec![2, 3], vec![0, 1, 2, 3, 4, NONE]),
            (5, vec![1, 1], vec![0]),
        ] {
            let buffer = (values(2, &[2, 3, len, width], DType::F32)? * 100.)?.abs()?.to_dtype(dtype)?;
            let new = new_rows(n)?;
            let mut expected = doubles(&buffer)?;
            let at = Tensor::from_vec(at, at_shape, &Cpu)?;
            let wide = if at.elem_count() == 1 { at.reshape((1, 1))? } else { at.clone() };
            let positions = wide.broadcast_as((2, 3))?.contiguous()?.flatten_all()?.to_vec1::<u32>()?;
            let fresh = doubles(&new.contiguous()?)?;
            for (o, position) in positions.iter().enumerate().filter(|(_, position)| **position != NONE) {
                for row in 0..n {
                    for i in 0..width {
                        let to = (o * len + *position as usize + row) * width + i;
                        expected[to] = fresh[(o * n + row) * width + i];
                    }
                }
            }
            ops::write_rows(&buffer, &new, &at)?;
            assert_eq!(doubles(&buffer)?, expected, "{dtype:?}, {n} rows for {outer:?} at {at}");
        }
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_is_written() -> Result<()> {
    let buffer = Tensor::zeros((2, 4, 3), DType::F32, &Cpu)?;
    let (one, two) = (Tensor::ones((2, 1, 3), DType::F32, &Cpu)?, Tensor::ones((2, 2, 3), DType::F32, &Cpu)?);
    let at = |at: &[u32]| Tensor::new(at, &Cpu);
    let errors = [
        (ops::write_rows(&buffer, &one, &at(&[0, 4])?), "position 4 of a buffer of 4"),
        (ops::write_rows(&buffer, &two, &at(&[3])?), "2 rows at position 3"),
        (ops::write_rows(&buffer, &one, &at(&[0, 0, 0])?), "(outer .., len, width)"),
        (ops::write_rows(&buffer, &one.narrow(2, 0, 2)?, &at(&[0])?), "(outer .., len, width)"),
        (ops::write_rows(&buffer, &one.to_dtype(DType::F64)?, &at(&[0])?), "same dtype"),
        (ops::write_rows(&buffer, &one, &Tensor::new(&[0i64], &Cpu)?), "positions are of u32"),
        (ops::write_rows(&buffer.transpose(0, 1)?, &one, &at(&[0])?), "contiguous"),
        (ops::write_rows(&buffer, &buffer.narrow(1, 0, 1)?, &at(&[1])?), "shares storage"),
        (ops::assign(&buffer.t()?, &buffer.t()?), "not contiguous"),
        (ops::assign(&buffer, &one), "shape"),
        (ops::assign(&buffer, &buffer), "share"),
        (ops::advance(&buffer, 1), "u32 or i64"),
    ];
    for (result, part) in errors {
        let error = result.expect_err(part).to_string();
        assert!(error.contains(part), "{error}: {part}");
    }
    assert_eq!(doubles(&buffer)?, [0.; 24]);
    Ok(())
}

#[test]
fn counters_go_round() -> Result<()> {
    let counter = Tensor::new(&[0u32, 7, u32::MAX], &Cpu)?;
    ops::advance(&counter.narrow(0, 1, 2)?, 2)?;
    assert_eq!(counter.to_vec1::<u32>()?, [0, 9, 1], "a part of a tensor, too");
    let counter = Tensor::new(&[-3i64, i64::MAX], &Cpu)?;
    ops::advance(&counter, 1)?;
    assert_eq!(counter.to_vec1::<i64>()?, [-2, i64::MIN]);
    Ok(())
}

#[test]
fn the_first_of_equals_and_the_first_nan_are_largest() -> Result<()> {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (row, expected) in [
        (vec![1., 3., 3., 2.], 1),
        (vec![-0., 0., -1.], 0),
        (vec![inf, nan, nan, inf], 1),
        (vec![-inf, -inf], 0),
        (vec![nan, 1.], 0),
        (vec![-inf, -5., nan], 2),
        (vec![7.], 0),
    ] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let x = Tensor::new(row.as_slice(), &Cpu)?.to_dtype(dtype)?.unsqueeze(0)?;
            assert_eq!(ops::argmax(&x, 1)?.to_vec1::<u32>()?, [expected], "{row:?} of {dtype:?}");
        }
    }
    let x = values(3, &[2, 5, 7], DType::F32)?;
    let naive: Vec<u32> = doubles(&x)?
        .chunks_exact(7)
        .map(|row| (0..7).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32)
        .collect();
    assert_eq!(ops::argmax(&x, 2)?.flatten_all()?.to_vec1::<u32>()?, naive);
    assert_eq!(ops::argmax(&x, 2)?.dims(), [2, 5]);
    assert_eq!(ops::argmax(&x, 0)?.dims(), [5, 7]);
    Ok(())
}
