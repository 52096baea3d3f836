//! Convolutions and pools.

use candle::{DType, Result, Tensor};
use opara_candle::ops::{self, Activation, ConvConfig, Padding, PoolConfig, ProductPrecision};

use super::{assert_near, both, ACTIVATIONS, DTYPES};
use crate::common::{gpu, waves, CPU};

#[test]
fn convolutions() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let plain = ConvConfig::default();
    let relu = plain.activation(Activation::Relu);
    let uneven = Padding { top: 0, bottom: 1, left: 2, right: 1 };
    let first = plain.input_activation(Activation::Relu);
    let silu = plain.activation(Activation::Silu);
    let cases: [(&str, usize, [usize; 4], ConvConfig); 20] = [
        ("1x1", 16, [24, 16, 1, 1], relu),
        ("3x3", 16, [24, 16, 3, 3], relu.padding(1)),
        ("3x3, no activation", 16, [24, 16, 3, 3], plain.padding(1)),
        ("5x5, stride 2", 3, [10, 3, 5, 5], relu.padding(2).stride(2)),
        ("1x7", 8, [8, 8, 1, 7], relu.padding((0, 3))),
        ("uneven edges", 8, [12, 8, 3, 3], relu.padding(uneven).stride(2)),
        ("groups", 12, [18, 4, 3, 3], plain.padding(1).groups(3)),
        ("depthwise", 24, [24, 1, 5, 5], plain.padding(2).groups(24)),
        ("depthwise, uneven edges", 12, [12, 1, 3, 3], relu.padding(uneven).groups(12)),
        ("depthwise, pairs", 6, [6, 1, 7, 7], plain.padding(3).groups(6)),
        ("depthwise, flat", 8, [8, 1, 1, 7], plain.padding((0, 3)).groups(8)),
        ("depthwise, odd", 7, [7, 1, 3, 3], relu.padding(uneven).groups(7).stride(2)),
        ("depthwise, dilated", 10, [10, 1, 3, 3], plain.padding(2).groups(10).dilation(2)),
        ("behind a ReLU", 8, [12, 8, 3, 3], first.padding(uneven)),
        ("depthwise, behind a ReLU", 8, [8, 1, 3, 3], first.padding(uneven).groups(8)),
        ("depthwise, flat, behind a ReLU", 7, [7, 1, 1, 3], first.groups(7)),
        ("depthwise, behind a GELU", 6, [6, 1, 3, 3], plain.groups(6).input_activation(Activation::Gelu)),
        ("depthwise, SiLU", 24, [24, 1, 3, 3], silu.padding(uneven).groups(24)),
        ("depthwise, flat, SiLU", 7, [7, 1, 1, 3], silu.groups(7)),
        ("two for each", 6, [12, 1, 3, 3], plain.padding(1).groups(6)),
    ];
    for (name, channels, weight, config) in cases {
        for (dtype, tolerance) in DTYPES {
            let (x, x_gpu) = both(&waves(0, (2, channels, 13, 11))?, dtype, &device)?;
            let (w, w_gpu) = both(&(waves(1, weight.to_vec())? * 0.3)?, dtype, &device)?;
            let (b, b_gpu) = both(&waves(2, weight[0])?, dtype, &device)?;
            for bias in [false, true] {
                let expected = ops::conv2d(&x, &w, bias.then_some(&b), &config)?;
                let of = format!("{name} in {dtype:?}, bias {bias}");
                let got = ops::conv2d(&x_gpu, &w_gpu, bias.then_some(&b_gpu), &config)?;
                assert_near(&got, &expected, tolerance, &of);
                // NHWC with a weight in that layout, and a strided slice of a larger tensor.
                let wide = Tensor::cat(&[&x_gpu, &x_gpu], 1)?.narrow(1, 0, channels)?;
                let inside = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
                let laid_out = ops::conv2d_weight(&w_gpu, config.groups)?;
                for x in [&wide, &inside] {
                    let got = ops::conv2d(x, &laid_out, bias.then_some(&b_gpu), &config)?;
                    assert_near(&got, &expected, tolerance, &of);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn convolutions_of_f32_are_as_precise_as_asked() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let plain = ConvConfig::default();
    let relu = plain.activation(Activation::Relu);
    let uneven = Padding { top: 0, bottom: 1, left: 2, right: 1 };
    let cases = [
        ("1 x 1", [1, 64, 7, 7], [96, 64, 1, 1], relu),
        ("1 x 1, stride 2", [2, 32, 9, 8], [48, 32, 1, 1], plain.stride(2)),
        ("3 x 3", [2, 24, 13, 11], [40, 24, 3, 3], relu.padding(1)),
        ("3 x 3 of many channels", [1, 512, 7, 7], [128, 512, 3, 3], plain.padding(1)),
        ("5 x 5, stride 2", [2, 12, 23, 21], [20, 12, 5, 5], relu.padding(2).stride(2)),
        ("1 x 7", [2, 36, 13, 11], [36, 36, 1, 7], plain.padding((0, 3))),
        ("dilated", [2, 16, 13, 11], [16, 16, 3, 3], plain.padding(2).dilation(2)),
        ("uneven edges", [2, 8, 13, 11], [12, 8, 3, 3], relu.padding(uneven)),
        ("three channels", [2, 3, 32, 32], [16, 3, 7, 7], plain.padding(3).stride(2)),
        ("in groups", [2, 12, 13, 11], [18, 4, 3, 3], plain.padding(1).groups(3)),
    ];
    for (name, shape, weight, config) in cases {
        let (x, x_gpu) = both(&waves(0, shape.to_vec())?, DType::F32, &device)?;
        let (w, w_gpu) = both(&waves(1, weight.to_vec())?, DType::F32, &device)?;
        let (b, b_gpu) = both(&waves(2, weight[0])?, DType::F32, &device)?;
        let expected = ops::conv2d(&x, &w, Some(&b), &config)?;
        let (residual, residual_gpu) = both(&waves(3, expected.dims().to_vec())?, DType::F32, &device)?;
        let with_residual = ops::add_conv2d(&x, &w, Some(&b), &residual, &config)?;
        // f32's rounding adds up with the root of the number of terms, which are summed one after the other.
        let terms: usize = weight[1..].iter().product();
        let of_sums = f64::max(3e-6, 3. * (terms as f64).sqrt() * 2f64.powi(-24));
        for (precision, tolerance) in [(ProductPrecision::High, 3e-6), (ProductPrecision::Highest, of_sums)] {
            let config = config.precision(precision);
            let of = format!("{name}, {precision:?}");
            assert_near(&ops::conv2d(&x_gpu, &w_gpu, Some(&b_gpu), &config)?, &expected, tolerance, &of);
            let got = ops::add_conv2d(&x_gpu, &w_gpu, Some(&b_gpu), &residual_gpu, &config)?;
            assert_near(&got, &with_residual, tolerance, format!("{of}, with a residual"));
        }
    }
    Ok(())
}

/// A residual is part of cuDNN's call, and of no other: f64 and depthwise convolutions add it behind.
#[test]
fn a_convolution_adds_a_residual() -> anyhow::Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let plain = ConvConfig::default();
    let relu = plain.activation(Activation::Relu);
    let cases = [
        ("3 x 3", 8, [12, 8, 3, 3], plain.padding(1)),
        ("3 x 3, ReLU", 8, [12, 8, 3, 3], relu.padding(1)),
        ("1 x 1", 16, [24, 16, 1, 1], plain),
        ("1 x 1, ReLU", 16, [24, 16, 1, 1], relu),
        ("of few channels, stride 2", 3, [16, 3, 7, 7], relu.padding(3).stride(2)),
        ("SiLU", 8, [8, 8, 3, 3], plain.activation(Activation::Silu)),
        ("groups", 8, [8, 4, 3, 3], relu.padding(1).groups(2)),
        ("depthwise", 6, [6, 1, 3, 3], relu.padding(1).groups(6)),
    ];
    for (name, channels, weight, config) in cases {
        for (dtype, tolerance) in DTYPES {
            let (x, x_gpu) = both(&waves(0, (2, channels, 14, 14))?, dtype, &device)?;
            let (w, w_gpu) = both(&(waves(1, weight.to_vec())? * 0.3)?, dtype, &device)?;
            let (b, b_gpu) = both(&waves(2, weight[0])?, dtype, &device)?;
            let bare = ops::conv2d(&x, &w, Some(&b), &config.activation(Activation::None))?;
            let (r, r_gpu) = both(&waves(3, bare.dims().to_vec())?, dtype, &device)?;
            let expected = candle::Module::forward(&config.activation, &(bare + &r)?)?;
            assert_near(&ops::add_conv2d(&x, &w, Some(&b), &r, &config)?, &expected, 1e-12, name);
            let channels_last = r_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
            for residual in [&r_gpu, &channels_last] {
                let got = ops::add_conv2d(&x_gpu, &w_gpu, Some(&b_gpu), residual, &config)?;
                assert_near(&got, &expected, tolerance, format!("{name} in {dtype:?}"));
            }
            assert!(ops::add_conv2d(&x_gpu, &w_gpu, None, &x_gpu.narrow(0, 0, 1)?, &config).is_err(), "{name}");
        }
    }
    Ok(())
}

/// Convolutions of few channels use space-to-depth where tensor cores gain from it.
#[test]
fn convolutions_of_few_channels() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let uneven = Padding { top: 0, bottom: 2, left: 3, right: 1 };
    let plain = ConvConfig::default();
    let relu = plain.activation(Activation::Relu);
    let configs = [
        relu.padding(3).stride(2),
        relu.padding(uneven).stride(2),
        plain.padding(uneven),
        plain.stride(3),
        plain.stride(6).padding(1).input_activation(Activation::Relu),
        relu.stride(1 << 40),
        relu.stride(2).dilation(2).padding(4),
    ];
    for (channels, (dtype, tolerance)) in [1, 3, 4, 5, 7, 8, 9].into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        let (x, x_gpu) = both(&waves(0, (2, channels, 33, 30))?, dtype, &device)?;
        let (w, w_gpu) = both(&(waves(1, (16, channels, 7, 5))? * 0.2)?, dtype, &device)?;
        let (b, b_gpu) = both(&waves(2, 16)?, dtype, &device)?;
        // As it is, in NHWC, and slices of larger tensors in both layouts.
        let inside = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        let part = Tensor::cat(&[&x_gpu, &x_gpu, &x_gpu], 1)?.narrow(1, channels, channels)?;
        let cropped = Tensor::cat(&[&x_gpu, &x_gpu], 3)?.narrow(3, 30, 30)?;
        let turned = x_gpu.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
        let laid_out = ops::conv2d_weight(&w_gpu, 1)?;
        for config in &configs {
            let expected = ops::conv2d(&x, &w, Some(&b), config)?;
            let operands =
                [(&x_gpu, &w_gpu), (&inside, &laid_out), (&part, &w_gpu), (&cropped, &laid_out), (&turned, &w_gpu)];
            for (x, w) in operands {
                let of = format!("{channels} channels in {dtype:?}, strides {:?}, {config:?}", x.stride());
                assert_near(&ops::conv2d(x, w, Some(&b_gpu), config)?, &expected, tolerance, of);
            }
        }
    }
    Ok(())
}

/// Large enough that several libraries and algorithms support it.
#[test]
fn convolutions_in_16_bits_keep_nan() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let cases =
        [(1, 192, 28, 64, 1), (1, 512, 14, 160, 1), (8, 832, 7, 256, 1), (16, 64, 56, 64, 1), (2, 96, 28, 128, 3)];
    let mut losing = Vec::new();
    let dtypes = [DType::F16, DType::BF16];
    for ((batch, channels, side, out, kernel), dtype) in cases.into_iter().flat_map(|c| dtypes.map(|d| (c, d))) {
        let config = ConvConfig::default().padding(kernel / 2).activation(Activation::Relu);
        let nan = Tensor::full(f32::NAN, (1, 1, 1, 1), &device)?.to_dtype(dtype)?;
        let x = waves(0, (batch, channels, side, side))?.to_dtype(dtype)?.to_device(&device)?;
        let x = x.slice_assign(&[0..1, 7..8, 3..4, 5..6], &nan)?;
        let w = waves(1, (out, channels, kernel, kernel))?.to_dtype(dtype)?.to_device(&device)?;
        let b = waves(2, out)?.to_dtype(dtype)?.to_device(&device)?;
        let around = ops::conv2d(&x, &w, Some(&b), &config)?.narrow(0, 0, 1)?.narrow(2, 3, 1)?.narrow(3, 5, 1)?;
        let around = around.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
        if around.iter().any(|y| !y.is_nan()) {
            losing.push((channels, side, out, kernel, dtype));
        }
    }
    assert!(losing.is_empty(), "input channels, side, output channels and window: {losing:?}");
    Ok(())
}

/// Enough elements for the kernel variants with several elements per thread.
#[test]
fn large_depthwise_convolutions() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let (x, config) = (waves(0, (4, 96, 56, 53))?, ConvConfig::default().groups(96));
    for (kernel, (dtype, tolerance)) in [3, 5, 7].into_iter().flat_map(|k| DTYPES.map(|d| (k, d))) {
        let (x, x_gpu) = both(&x, dtype, &device)?;
        let (w, w_gpu) = both(&(waves(1, (96, 1, kernel, kernel))? * 0.3)?, dtype, &device)?;
        let (b, b_gpu) = both(&waves(2, 96)?, dtype, &device)?;
        for (stride, input_activation) in
            [(1, Activation::None), (2, Activation::None), (1, Activation::Relu), (2, Activation::Relu)]
        {
            let config = config.padding(kernel / 2).stride(stride).input_activation(input_activation);
            let of = format!("{kernel} by {kernel}, stride {stride}, {input_activation:?} before, in {dtype:?}");
            let expected = ops::conv2d(&x, &w, Some(&b), &config)?;
            assert_near(&ops::conv2d(&x_gpu, &w_gpu, Some(&b_gpu), &config)?, &expected, tolerance, &of);
        }
    }
    Ok(())
}

#[test]
fn convolutions_with_every_activation() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (activation, (dtype, tolerance)) in ACTIVATIONS.into_iter().flat_map(|a| DTYPES.map(|d| (a, d))) {
        let config = ConvConfig::default().padding(1).activation(activation);
        let (x, x_gpu) = both(&waves(0, (2, 8, 9, 7))?, dtype, &device)?;
        let (w, w_gpu) = both(&(waves(1, (16, 8, 3, 3))? * 0.3)?, dtype, &device)?;
        let got = ops::conv2d(&x_gpu, &w_gpu, None, &config)?;
        assert_near(&got, &ops::conv2d(&x, &w, None, &config)?, 2. * tolerance, format!("{activation:?} in {dtype:?}"));
    }
    Ok(())
}

#[test]
fn pools() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let uneven = Padding { top: 0, bottom: 1, left: 1, right: 0 };
    let configs = [
        PoolConfig::new(2, 2),
        PoolConfig::new(3, 2).padding(1),
        PoolConfig::new(3, 2).ceil(true),
        PoolConfig::new(3, 2).padding(1).count_padding(true).ceil(true),
        PoolConfig::new(3, 1).padding(uneven),
        PoolConfig::new(9, 1),
    ];
    for config in configs {
        for (channels, (dtype, tolerance)) in [7, 12, 16].into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
            let (x, x_gpu) = both(&waves(3, (2, channels, 10, 9))?, dtype, &device)?;
            let inside = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
            // Slices of larger tensors in NCHW and NHWC, and one in another layout.
            let outer = Tensor::cat(&[&x_gpu, &x_gpu], 2)?.narrow(2, 10, 10)?;
            let inner = Tensor::cat(&[&inside, &inside], 2)?.permute((0, 2, 3, 1))?.contiguous()?;
            let inner = inner.narrow(1, 10, 10)?.permute((0, 3, 1, 2))?;
            let turned = x_gpu.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
            for x_gpu in [&x_gpu, &inside, &outer, &inner, &turned] {
                let of = format!("{config:?} of {channels} channels in {dtype:?}");
                let (got, expected) = (ops::max_pool2d(x_gpu, &config)?, ops::max_pool2d(&x, &config)?);
                assert_near(&got, &expected, 0., &of);
                let (got, expected) = (ops::avg_pool2d(x_gpu, &config)?, ops::avg_pool2d(&x, &config)?);
                assert_near(&got, &expected, tolerance, &of);
            }
        }
    }
    Ok(())
}

/// Planes that are not square have a kernel of their own.
#[test]
fn means_of_planes() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let shapes = [(2, 7, 10, 9), (1, 12, 1, 2), (3, 16, 7, 8), (1, 36, 111, 112), (1, 1, 3, 300), (2, 260, 14, 15)];
    for (shape, (dtype, tolerance)) in shapes.into_iter().flat_map(|shape| DTYPES.map(|dtype| (shape, dtype))) {
        let (x, x_gpu) = both(&(waves(3, shape)? + 0.5)?, dtype, &device)?;
        let inside = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        let turned = x_gpu.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
        // A view that begins at an address of no vector.
        let behind = Tensor::cat(&[&x_gpu, &x_gpu], 0)?.flatten_all()?.narrow(0, 1, x_gpu.elem_count())?;
        let expected = x.mean((2, 3))?;
        for x_gpu in [&x_gpu, &inside, &turned] {
            assert_near(&ops::global_avg_pool2d(x_gpu)?, &expected, tolerance, format!("{shape:?} in {dtype:?}"));
        }
        let (n, c, h, w) = shape;
        let behind = behind.reshape((n, h, w, c))?.permute((0, 3, 1, 2))?;
        let expected = behind.to_device(CPU)?.to_dtype(DType::F64)?.mean((2, 3))?;
        assert_near(&ops::global_avg_pool2d(&behind)?, &expected, tolerance, format!("{shape:?} in {dtype:?}"));
    }
    Ok(())
}

/// Enough pixels for the kernel variant with three pixels per thread.
#[test]
fn pools_of_large_pictures() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let shape = (4, 96, 47, 50);
    let uneven = Padding { top: 0, bottom: 1, left: 1, right: 2 };
    let configs = [
        PoolConfig::new(3, 1).padding(1),
        PoolConfig::new(3, 1).padding(uneven),
        PoolConfig::new(3, 1).padding(uneven).count_padding(true),
        PoolConfig::new(3, 1),
    ];
    for (dtype, tolerance) in DTYPES {
        let (x, x_gpu) = both(&waves(3, shape)?, dtype, &device)?;
        let inside = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        for config in &configs {
            let of = format!("{config:?} in {dtype:?}");
            assert_near(&ops::max_pool2d(&inside, config)?, &ops::max_pool2d(&x, config)?, 0., &of);
            assert_near(&ops::avg_pool2d(&inside, config)?, &ops::avg_pool2d(&x, config)?, tolerance, &of);
        }
        // In NHWC; the only NaN is in the last image, at row 20, column 30 of channel 40.
        let nan = Tensor::full(f32::NAN, (1, 1, 1, 1), &device)?.to_dtype(dtype)?;
        let x = inside.permute((0, 2, 3, 1))?.contiguous()?.slice_assign(&[3..4, 20..21, 30..31, 40..41], &nan)?;
        let got = ops::max_pool2d(&x.permute((0, 3, 1, 2))?, &configs[0])?.to_dtype(DType::F64)?.to_device(CPU)?;
        let found = |image: usize, channel: usize| -> Result<Vec<usize>> {
            let values = got.get(image)?.get(channel)?.flatten_all()?.to_vec1::<f64>()?;
            Ok((0..values.len()).filter(|&at| values[at].is_nan()).collect())
        };
        let around: Vec<usize> = (19..22).flat_map(|row| (29..32).map(move |column| row * 50 + column)).collect();
        assert_eq!((found(3, 40)?, found(3, 41)?, found(2, 40)?), (around, vec![], vec![]), "{dtype:?}");
    }
    Ok(())
}

#[test]
fn subsampling_agrees_with_the_cpu() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (channels, (dtype, _)) in [1, 7, 12, 16].into_iter().flat_map(|c| DTYPES.map(|d| (c, d))) {
        let (x, x_gpu) = both(&waves(3, (2, channels, 10, 9))?, dtype, &device)?;
        let inside = x_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
        for (start, stride) in [(0, 2), (1, 2), (2, 3), (9, 1), (20, 2), (1 << 40, 2), (1, 1 << 40)] {
            for x_gpu in [&x_gpu, &inside] {
                let (got, expected) = (ops::subsample(x_gpu, start, stride)?, ops::subsample(&x, start, stride)?);
                assert_near(&got, &expected, 0., format!("{start}, {stride} of {channels} channels in {dtype:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_maximum_is_nan_if_an_element_is() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    let mut values = vec![1f32; 16];
    values[5] = f32::NAN;
    let x = Tensor::from_vec(values, (1, 1, 4, 4), &device)?;
    let got = ops::max_pool2d(&x, &PoolConfig::new(2, 2))?.flatten_all()?.to_vec1::<f32>()?;
    assert!(got[0].is_nan() && got[1..] == [1., 1., 1.], "{got:?}");
    Ok(())
}

/// Also sizes that are no multiple, and 49 times, where a product in f64 is just below a whole number.
#[test]
fn upsampling_copies_the_pixels_that_candle_copies() -> Result<()> {
    let Some(device) = gpu() else { return Ok(()) };
    for (dtype, _) in DTYPES {
        for (channels, size) in
            [(64, (14, 22)), (6, (7, 11)), (20, (9, 40)), (5, (343, 539)), (2, (3, 5)), (1, (14, 22))]
        {
            let x = waves(0, (3, channels, 7, 11))?.to_dtype(dtype)?;
            let expected = x.upsample_nearest2d(size.0, size.1)?.to_dtype(DType::F64)?;
            let on_gpu = x.to_device(&device)?;
            let last = on_gpu.permute((0, 2, 3, 1))?.contiguous()?.permute((0, 3, 1, 2))?;
            // An image of several begins inside their memory, and channels in part are no layout of their own.
            let inside = Tensor::cat(&[&last.permute((0, 2, 3, 1))?; 2], 0)?.narrow(0, 3, 3)?.permute((0, 3, 1, 2))?;
            let wide = Tensor::cat(&[&on_gpu; 2], 1)?.narrow(1, 0, channels)?;
            for (x, is_last) in [(&on_gpu, false), (&last, true), (&inside, true), (&wide, false)] {
                let got = ops::upsample_nearest2d(x, size.0, size.1)?;
                let of = format!("{channels} channels to {size:?} in {dtype:?}, strides {:?}", x.stride());
                assert_near(&got, &expected, 0., &of);
                let keeps_layout = is_last && channels > 1 && dtype != DType::F64;
                assert!(!keeps_layout || got.stride()[1] == 1, "{of}: strides {:?}", got.stride());
            }
        }
    }
    Ok(())
}
