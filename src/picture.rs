//! Preprocessing of pictures for vision models.

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use candle::{Device, Tensor};
use image::imageops::FilterType;
use image::{DynamicImage, RgbImage};
use serde::Deserialize;

/// Interpolation between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// From two pixels in each direction.
    Bilinear,
    /// From four pixels in each direction.
    Bicubic,
}

/// The preprocessing that a checkpoint expects; in JSON, timm's `pretrained_cfg`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Preprocess {
    /// Channels, height and width.
    pub input_size: [usize; 3],
    /// The fraction of the resized picture's shorter side that is kept.
    pub crop_pct: f64,
    /// The interpolation for resizing.
    pub interpolation: Interpolation,
    /// Mean to subtract from the channels' values, which are from 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation to divide by.
    pub std: [f32; 3],
}

impl Preprocess {
    /// Crops the middle of `picture` to a tensor `(1, 3, height, width)` in f32.
    ///
    /// # Errors
    /// Sizes that give no image.
    pub fn apply(&self, picture: &DynamicImage, device: &Device) -> Result<Tensor> {
        let [channels, height, width] = self.input_size;
        ensure!(channels == 3, "the checkpoint expects {channels} channels; a picture has 3");
        ensure!(height.min(width) > 0 && self.crop_pct > 0. && self.crop_pct <= 1., "{self:?} makes no image");
        let pixels = self.resized(picture, height, width);
        // Halves are rounded to even, as in torchvision.
        let margin = |whole: u32, part: usize| (f64::from(whole - part as u32) / 2.).round_ties_even() as usize;
        let (left, top) = (margin(pixels.width(), width), margin(pixels.height(), height));
        let value = |channel: usize, y: usize, x: usize| {
            let value = f32::from(pixels.get_pixel((left + x) as u32, (top + y) as u32).0[channel]) / 255.;
            (value - self.mean[channel]) / self.std[channel]
        };
        let rows = (0..channels).flat_map(|channel| (0..height).map(move |y| (channel, y)));
        let values: Vec<f32> =
            rows.flat_map(|(c, y)| (0..width).map(move |x| (c, y, x))).map(|(c, y, x)| value(c, y, x)).collect();
        Ok(Tensor::from_vec(values, (1, channels, height, width), device)?)
    }

    /// Resizes the whole picture to the smallest size that contains the crop.
    fn resized(&self, picture: &DynamicImage, height: usize, width: usize) -> RgbImage {
        let scaled = |size: usize| size as f64 / self.crop_pct;
        let (w, h) = (f64::from(picture.width().max(1)), f64::from(picture.height().max(1)));
        let scale = (scaled(width).floor() / w).max(scaled(height).floor() / h);
        let side = |of: f64, least: usize| ((of * scale).round() as u32).max(least as u32);
        let filter = match self.interpolation {
            Interpolation::Bilinear => FilterType::Triangle,
            Interpolation::Bicubic => FilterType::CatmullRom,
        };
        image::imageops::resize(&picture.to_rgb8(), side(w, width), side(h, height), filter)
    }
}

/// Reads a JPEG or PNG file. A truncated JPEG is read as far as possible, with a warning on stderr.
///
/// # Errors
/// A file that does not exist or is neither JPEG nor PNG.
pub fn open(path: &Path) -> Result<DynamicImage> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.starts_with(&[0xff, SOI]) && !has_end(&bytes) {
        eprintln!("warning: {} is truncated: the rest of the picture is missing", path.display());
    }
    image::load_from_memory(&bytes).with_context(|| format!("{} is not a JPEG or PNG picture", path.display()))
}

/// JPEG markers without a segment: start, end, and markers inside compressed data.
const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;
const RESTARTS: RangeInclusive<u8> = 0xd0..=0xd7;

/// Does this JPEG have its end marker? The end marker of a thumbnail inside a segment does not count.
fn has_end(jpeg: &[u8]) -> bool {
    let mut rest = jpeg;
    while let Some(at) = rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff)) {
        let marker = rest[at + 1];
        rest = &rest[at + 2..];
        if marker == EOI {
            return true;
        }
        if marker == SOI || RESTARTS.contains(&marker) {
            continue;
        }
        let Some((&[high, low], _)) = rest.split_first_chunk() else { return false };
        rest = rest.get(usize::from(u16::from_be_bytes([high, low]))..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn truncated_jpegs_are_detected() -> Result<()> {
        let mut jpeg = Cursor::new(Vec::new());
        let picture = RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8 * 4, y as u8 * 4, (x * y) as u8]));
        picture.write_to(&mut jpeg, image::ImageFormat::Jpeg)?;
        let jpeg = jpeg.into_inner();
        assert!(has_end(&jpeg));
        assert!(has_end(&[&jpeg[..], b"\0trailing"].concat()));
        for length in [2, 5, 20, jpeg.len() / 2, jpeg.len() - 2, jpeg.len() - 1] {
            assert!(!has_end(&jpeg[..length]), "{length} of {}", jpeg.len());
        }
        // The end marker of a thumbnail in a segment comes before that of the picture.
        let thumbnail = [&[0xff, 0xe1, 0, 6, 0xff, EOI, 0xff, EOI][..], &jpeg[2..jpeg.len() - 2]].concat();
        assert!(!has_end(&[&jpeg[..2], &thumbnail].concat()));
        Ok(())
    }

    const PREPROCESS: Preprocess = Preprocess {
        input_size: [3, 4, 4],
        crop_pct: 0.5,
        interpolation: Interpolation::Bilinear,
        mean: [0.5; 3],
        std: [0.5; 3],
    };

    #[test]
    fn pictures_are_cropped_to_the_middle_and_normalized() -> Result<()> {
        // Red on the left, green in the middle half, blue on the right.
        let picture = RgbImage::from_fn(32, 8, |x, _| match x {
            0..8 => image::Rgb([255, 0, 0]),
            8..24 => image::Rgb([0, 255, 0]),
            _ => image::Rgb([0, 0, 255]),
        });
        let image = PREPROCESS.apply(&picture.into(), &Device::Cpu)?;
        assert_eq!(image.dims(), [1, 3, 4, 4]);
        for (channel, expected) in [(0, -1.), (1, 1.), (2, -1.)] {
            let values = image.narrow(1, channel, 1)?.flatten_all()?.to_vec1::<f32>()?;
            assert_eq!(values, [expected; 16], "channel {channel}");
        }
        Ok(())
    }

    #[test]
    fn pictures_of_any_size_are_accepted() -> Result<()> {
        for (width, height) in [(1, 1), (1, 100), (333, 5), (8, 8)] {
            let image = PREPROCESS.apply(&DynamicImage::new_rgb8(width, height), &Device::Cpu)?;
            assert_eq!(image.dims(), [1, 3, 4, 4]);
        }
        Ok(())
    }

    #[test]
    fn sizes_that_give_no_image_are_errors() {
        for (input_size, crop_pct) in [([1, 4, 4], 1.), ([3, 0, 4], 1.), ([3, 4, 4], 0.), ([3, 4, 4], f64::NAN)] {
            let preprocess = Preprocess { input_size, crop_pct, ..PREPROCESS };
            assert!(preprocess.apply(&DynamicImage::new_rgb8(8, 8), &Device::Cpu).is_err(), "{preprocess:?}");
        }
    }
}
