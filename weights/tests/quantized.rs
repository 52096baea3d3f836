//! Quantised checkpoints: weights of 8-bit floats are multiplied with their scales, and other methods are refused by name.

use std::error::Error;
use std::fs;

use candle::{DType, Device, Tensor};
use opara_weights::{Checkpoint, Floats, WeightsError};
use safetensors::tensor::{serialize_to_file, Dtype, TensorView};
use serde_json::{json, Value};
use tempfile::TempDir;

type Outcome = Result<(), Box<dyn Error>>;

/// A tensor of a file: name, type, shape, bytes.
type Stored<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

const CPU: Device = Device::Cpu;

fn folder(config: &Value, tensors: &[Stored]) -> Result<(TempDir, Checkpoint), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("config.json"), config.to_string())?;
    let views =
        tensors.iter().map(|(name, dtype, shape, data)| Ok((*name, TensorView::new(*dtype, shape.to_vec(), data)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    serialize_to_file(views, None, &dir.path().join("model.safetensors"))?;
    let checkpoint = Checkpoint::find(dir.path().to_str().ok_or("a UTF-8 path")?)?;
    Ok((dir, checkpoint))
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// 1, -2, 0.5 and 3 in the 8-bit format with 4 bits of exponent, in turns.
const CODES: [(u8, f32); 4] = [(0x38, 1.), (0xC0, -2.), (0x30, 0.5), (0x44, 3.)];

fn codes(count: usize) -> Vec<u8> {
    (0..count).map(|at| CODES[at % 4].0).collect()
}

fn fp8(extra: Value) -> Value {
    let mut quantization = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"});
    quantization.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    json!({ "quantization_config": quantization })
}

/// Loads the weight `p.weight` of `shape` and holds each element against its code times `factor(row, column)`.
fn assert_scaled(checkpoint: &Checkpoint, shape: (usize, usize), factor: impl Fn(usize, usize) -> f32) -> Outcome {
    let loaded = checkpoint.load(DType::F32, &CPU)?;
    let weight = loaded.vb.get(shape, "p.weight")?.to_vec2::<f32>()?;
    for (row, elements) in weight.iter().enumerate() {
        for (column, element) in elements.iter().enumerate() {
            let code = CODES[(row * shape.1 + column) % 4].1;
            assert_eq!(*element, code * factor(row, column), "{row}, {column}");
        }
    }
    loaded.check(|_| false)?;
    let half = checkpoint.weights(DType::BF16, &CPU)?.get(shape, "p.weight")?;
    let rounded = Tensor::new(weight, &CPU)?.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
    assert_eq!(half.to_dtype(DType::F32)?.to_vec2::<f32>()?, rounded.to_vec2::<f32>()?);
    Ok(())
}

/// Products that take 8-bit floats get them as they are, with a scale for each 128 neighbours of a row, whatever scales the file has.
#[test]
fn floats_are_read_as_they_are_with_a_scale_for_each_group() -> Outcome {
    const SHAPE: [usize; 2] = [130, 384];
    let [rows, columns] = SHAPE;
    let weight = || ("p.weight", Dtype::F8_E4M3, &SHAPE[..], codes(rows * columns));
    let numbers = |count: usize| (0..count).map(|at| 0.01 + at as f32).collect::<Vec<_>>();
    let read = |config: &Value, shape: &[usize], expected: &dyn Fn(&[f32], usize, usize) -> f32| -> Outcome {
        let scales = numbers(shape.iter().product());
        let (_dir, checkpoint) = folder(config, &[weight(), ("p.weight_scale", Dtype::F32, shape, floats(&scales))])?;
        assert!(
            Floats::of(&checkpoint.weights(DType::BF16, &CPU)?, "p.weight").is_none(),
            "unless they are to be kept"
        );
        let loaded = checkpoint.keep_floats(true).load(DType::BF16, &CPU)?;
        assert_eq!(loaded.floats(), ((rows * columns / 128 * 132) as u64, (rows * columns) as u64));
        let Floats { bytes, scales: of_groups } = Floats::of(&loaded.vb.pp("p"), "weight").ok_or("floats")?;
        assert_eq!(bytes.flatten_all()?.to_vec1::<u8>()?, codes(rows * columns));
        for (row, groups) in of_groups.to_vec2::<f32>()?.into_iter().enumerate() {
            let expected: Vec<_> = (0..3).map(|group| expected(&scales, row, group)).collect();
            assert_eq!(groups, expected, "row {row} with scales {shape:?}");
        }
        Ok(loaded.check(|_| false)?)
    };
    read(&fp8(json!({})), &[2, 3], &|scales, row, group| scales[row / 128 * 3 + group])?;
    read(&fp8(json!({"weight_block_size": [65, 256]})), &[2, 2], &|scales, row, group| {
        scales[row / 65 * 2 + group / 2]
    })?;
    read(&json!({}), &[rows, 1], &|scales, row, _| scales[row])?;
    read(&json!({}), &[1], &|scales, _, _| scales[0])?;
    // Neighbours with different scales, rows that 128 does not divide, a scale that does not fit, and other types and origins.
    let is_none = |config: Value, tensors: &[Stored]| -> Outcome {
        let (_dir, checkpoint) = folder(&config, tensors)?;
        assert!(Floats::of(&checkpoint.keep_floats(true).weights(DType::BF16, &CPU)?, "p.weight").is_none());
        Ok(())
    };
    let scale =
        |shape: &'static [usize]| ("p.weight_scale", Dtype::F32, shape, floats(&numbers(shape.iter().product())));
    is_none(fp8(json!({"weight_block_size": [65, 96]})), &[weight(), scale(&[2, 4])])?;
    is_none(json!({}), &[("p.weight", Dtype::F8_E4M3, &[2, 100], codes(200)), scale(&[1])])?;
    is_none(json!({}), &[weight(), scale(&[7])])?;
    is_none(fp8(json!({})), &[weight()])?;
    is_none(json!({}), &[("p.weight", Dtype::F32, &[1, 128], floats(&numbers(128)))])?;
    assert!(Floats::of(&opara_weights::seeded(3, DType::BF16, &CPU), "p.weight").is_none());
    // Rounded and not scaled.
    let (_dir, checkpoint) = folder(&json!({}), &[weight()])?;
    let all = Floats::of(&checkpoint.keep_floats(true).weights(DType::BF16, &CPU)?, "p.weight").ok_or("floats")?;
    assert_eq!(all.scales.flatten_all()?.to_vec1::<f32>()?, vec![1.; rows * 3]);
    Ok(())
}

#[test]
fn blocks_have_scales_of_their_own() -> Outcome {
    let scales: Vec<f32> = (0..6).map(|at| 0.01 + at as f32).collect();
    let weight = || ("p.weight", Dtype::F8_E4M3, &[130, 300][..], codes(130 * 300));
    let scale = || ("p.weight_scale_inv", Dtype::F32, &[2, 3][..], floats(&scales));
    // Without `weight_block_size`, blocks are 128 x 128; the last ones are smaller.
    for config in [fp8(json!({})), fp8(json!({"weight_block_size": [128, 128]})), json!({})] {
        let (_dir, checkpoint) = folder(&config, &[weight(), scale()])?;
        assert_scaled(&checkpoint, (130, 300), |row, column| scales[row / 128 * 3 + column / 128])?;
    }
    let config =
        fp8(json!({"weight_block_size": [65, 100], "modules_to_not_convert": ["lm_head"], "scale_fmt": "ue8m0"}));
    let (_dir, checkpoint) = folder(&config, &[weight(), scale()])?;
    assert_scaled(&checkpoint, (130, 300), |row, column| scales[row / 65 * 3 + column / 100])?;
    // Nested, as in models that see pictures.
    let nested = json!({ "text_config": fp8(json!({"weight_block_size": [65, 100]})) });
    let (_dir, checkpoint) = folder(&nested, &[weight(), scale()])?;
    assert_scaled(&checkpoint, (130, 300), |row, column| scales[row / 65 * 3 + column / 100])?;
    // Scales that are powers of two, by their exponents.
    let powers = ("p.weight_scale_inv", Dtype::F8_E8M0, &[2, 3][..], vec![127, 128, 126, 130, 120, 127]);
    let (_dir, checkpoint) = folder(&fp8(json!({})), &[weight(), powers])?;
    let powers = [1., 2., 0.5, 8., 0.0078125, 1.];
    assert_scaled(&checkpoint, (130, 300), |row, column| powers[row / 128 * 3 + column / 128])
}

#[test]
fn a_tensor_or_a_row_has_one_scale() -> Outcome {
    let compressed = |strategy: &str| {
        let weights = json!({"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true, "dynamic": false,
            "observer": "minmax", "observer_kwargs": {}, "actorder": null, "block_structure": null, "group_size": null});
        let group = json!({"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}, "output_activations": null});
        json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}, "quantization_status": "compressed", "kv_cache_scheme": null,
            "global_compression_ratio": 1.5}})
    };
    let weight = || ("p.weight", Dtype::F8_E4M3, &[3, 8][..], codes(24));
    let activations = || ("p.input_scale", Dtype::F32, &[1][..], floats(&[0.5]));
    for shape in [&[][..], &[1], &[1, 1]] {
        let scale = ("p.weight_scale", Dtype::BF16, shape, vec![0x40, 0x40]);
        let (_dir, checkpoint) = folder(&compressed("tensor"), &[weight(), scale, activations()])?;
        assert_scaled(&checkpoint, (3, 8), |_, _| 3.)?;
    }
    let rows = [0.25, 3., 1e-3];
    for shape in [&[3][..], &[3, 1]] {
        let scale = ("p.weight_scale", Dtype::F32, shape, floats(&rows));
        let (_dir, checkpoint) = folder(&compressed("channel"), &[weight(), scale])?;
        assert_scaled(&checkpoint, (3, 8), |row, _| rows[row])?;
    }
    let old = json!({"compression_config": {"format": "naive-quantized"}});
    let (_dir, checkpoint) = folder(&old, &[weight(), ("p.weight_scale", Dtype::F32, &[1], floats(&[2.]))])?;
    assert_scaled(&checkpoint, (3, 8), |_, _| 2.)
}

#[test]
fn scales_that_do_not_fit_are_refused() -> Outcome {
    let weight = || ("p.weight", Dtype::F8_E4M3, &[4, 4][..], codes(16));
    for (scale, told) in [
        (("p.weight_scale_inv", Dtype::F32, &[2, 3][..], floats(&[1.; 6])), "[2, 3]"),
        (("p.weight_scale", Dtype::F32, &[2][..], floats(&[1.; 2])), "p.weight_scale"),
        (("p.weight_scale", Dtype::F32, &[1][..], floats(&[f32::NAN])), "NaN"),
        (("p.weight_scale", Dtype::F32, &[0][..], Vec::new()), "[0]"),
        (("p.scale_weight", Dtype::F32, &[1][..], floats(&[1.])), "neither `p.weight_scale_inv` nor `p.weight_scale`"),
    ] {
        let (_dir, checkpoint) = folder(&fp8(json!({})), &[weight(), scale])?;
        let error = checkpoint.weights(DType::F32, &CPU)?.get((4, 4), "p.weight").err().ok_or("refused")?.to_string();
        assert!(error.contains(told) && error.contains("p.weight"), "{error}");
    }
    // A second scale is not left out in silence.
    let scales = ["p.weight_scale", "p.weight_scale_2"].map(|name| (name, Dtype::F32, &[1][..], floats(&[1.])));
    let [one, two] = scales;
    let (_dir, checkpoint) = folder(&json!({}), &[weight(), one, two])?;
    let loaded = checkpoint.load(DType::F32, &CPU)?;
    loaded.vb.get((4, 4), "p.weight")?;
    let error = loaded.check(|_| false).expect_err("a tensor that was not read");
    assert!(matches!(&error, WeightsError::UnreadTensors { names, .. } if names == &["p.weight_scale_2"]), "{error}");
    checkpoint.allow_unread(true).load(DType::F32, &CPU)?.check(|_| false)?;
    Ok(())
}

#[test]
fn other_methods_are_refused_by_name() -> Outcome {
    let weights = |bits: u32, kind: &str, strategy: &str| {
        json!({"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind, "strategy": strategy}}}})
    };
    for (quantization, told) in [
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 128}), "gptq"),
        (json!({"quant_method": "awq", "bits": 4}), "awq"),
        (json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), "bitsandbytes"),
        (json!({"load_in_4bit": true}), "no quant_method"),
        (json!({"quant_method": "eetq"}), "eetq"),
        (json!({"quant_method": "hqq"}), "hqq"),
        (json!({"quant_method": "mxfp4"}), "mxfp4"),
        (json!({"quant_method": "torchao", "quant_type": "int4_weight_only"}), "torchao"),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "modelopt"),
        (json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}), "pack-quantized"),
        (json!({"quant_method": "compressed-tensors", "format": "int-quantized"}), "int-quantized"),
        (weights(8, "int", "channel"), "int weights of 8 bits"),
        (weights(4, "float", "tensor_group"), "float weights of 4 bits"),
        (weights(8, "float", "group"), "strategy group"),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "e5m2"),
        (json!({"quant_method": "fp8", "weight_block_size": [0, 128]}), "weight_block_size"),
        (json!({"bits": 4, "group_size": 64}), "no quant_method"),
        (json!("int4"), "int4"),
    ] {
        for name in ["quantization_config", "compression_config", "quantization"] {
            for config in [json!({name: quantization}), json!({"text_config": {name: quantization}})] {
                let (_dir, checkpoint) = folder(&config, &[])?;
                let error = checkpoint.weights(DType::F32, &CPU).err().ok_or("refused")?;
                assert!(matches!(error, WeightsError::Quantization { .. }), "{error}");
                let error = error.to_string();
                assert!(error.contains(told) && error.contains(&format!("`{name}`")), "{error}");
                checkpoint.allow_unread(true).weights(DType::F32, &CPU)?;
            }
        }
    }
    // Parts of a known method that are not.
    for (part, value) in
        [("sparsity_config", json!({"format": "sparse-24-bitmask"})), ("transform_config", json!({"a": 1}))]
    {
        let config = json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", part: value}});
        let error = folder(&config, &[])?.1.weights(DType::F32, &CPU).err().ok_or("refused")?.to_string();
        assert!(error.contains(part), "{error}");
    }
    for nothing in [json!(null), json!({"quant_method": "fp8"})] {
        folder(&json!({ "quantization_config": nothing }), &[])?.1.weights(DType::F32, &CPU)?;
    }
    Ok(())
}

#[test]
fn copies_are_told_from_tensors_of_other_values() -> Outcome {
    let tensor = |name, values: &[f32]| (name, Dtype::F32, &[2, 2][..], floats(values));
    let tensors = [tensor("a", &[1., 2., 3., 4.]), tensor("b", &[1., 2., 3., 4.]), tensor("c", &[1., 2., 3., 5.])];
    let loaded = folder(&json!({}), &tensors)?.1;
    let loaded = loaded.load(DType::F32, &CPU);
    // The folder is gone.
    assert!(loaded.is_err());
    let (_dir, checkpoint) = folder(&json!({}), &tensors)?;
    let loaded = checkpoint.load(DType::F32, &CPU)?;
    assert_eq!((loaded.is_copy("a", "b")?, loaded.is_copy("a", "c")?, loaded.is_copy("a", "d")?), (true, false, false));
    Ok(())
}

#[test]
fn packed_weights_are_named_where_no_configuration_names_them() -> Outcome {
    let config = json!({});
    for (beside, dtype, weight) in [
        ("qweight", Dtype::I32, None),
        ("weight_packed", Dtype::I32, None),
        ("W_q", Dtype::U8, None),
        ("weight_scale", Dtype::F32, Some((Dtype::I8, [4, 4]))),
        ("SCB", Dtype::F32, Some((Dtype::I8, [4, 4]))),
        // Two of 4 bits in one of 8: another shape.
        ("weight.absmax", Dtype::F32, Some((Dtype::U8, [8, 1]))),
        ("scales", Dtype::F32, Some((Dtype::U32, [4, 1]))),
    ] {
        let other = format!("p.{beside}");
        let mut tensors: Vec<Stored> = vec![(&other, dtype, &[4], vec![0; 4 * dtype.bitsize() / 8])];
        if let Some((dtype, shape)) = &weight {
            tensors.push(("p.weight", *dtype, shape, vec![0; shape[0] * shape[1] * dtype.bitsize() / 8]));
        }
        let (_dir, checkpoint) = folder(&config, &tensors)?;
        let told =
            checkpoint.weights(DType::F32, &CPU)?.get((4, 4), "p.weight").expect_err("it is refused").to_string();
        assert!(told.contains("`p.weight` is quantised") && told.contains(&format!("`{other}`")), "{told}");
    }
    // Integers with nothing beside them are what they are.
    let (_dir, checkpoint) = folder(&config, &[("p.weight", Dtype::I8, &[4, 4], vec![0; 16])])?;
    let told = checkpoint.weights(DType::F32, &CPU)?.get((4, 4), "p.weight").expect_err("it is refused").to_string();
    assert!(told.contains("dtype I8"), "{told}");
    Ok(())
}
