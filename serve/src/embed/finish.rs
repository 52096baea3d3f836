//! The end of a vector: its length and its number of elements, which a request may choose.

/// What a request says of the vectors that it wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VectorOptions {
    /// Whether vectors have length 1; `None` leaves it to the model.
    pub normalize: Option<bool>,
    /// To how many elements vectors are cut.
    pub dimensions: Option<usize>,
}

/// What the model says of the end of its vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Finish {
    /// Whether they have length 1 before they are cut.
    pub normalizes: bool,
    /// To how many elements they are cut.
    pub width: Option<usize>,
}

impl Finish {
    /// The vector that a request wants, of the one that comes from the device.
    pub fn apply(self, mut vector: Vec<f32>, options: VectorOptions) -> Vec<f32> {
        if options == VectorOptions::default() {
            if self.normalizes {
                normalize(&mut vector);
            }
            vector.truncate(self.width.unwrap_or(usize::MAX));
            return vector;
        }
        vector.truncate(options.dimensions.or(self.width).unwrap_or(usize::MAX));
        if options.normalize.unwrap_or(self.normalizes) {
            normalize(&mut vector);
        }
        vector
    }
}

/// Gives a vector length 1. One of zeros stays so.
fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
    let norm = (norm + 1e-24).sqrt();
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_before_they_are_normalised_where_a_request_says_so() {
        let vector = || vec![3., 4., 12.];
        let finish = Finish { normalizes: true, width: Some(2) };
        let options = |normalize, dimensions| VectorOptions { normalize, dimensions };
        assert_eq!(finish.apply(vector(), options(None, None)), [3. / 13., 4. / 13.]);
        assert_eq!(finish.apply(vector(), options(None, Some(2))), [0.6, 0.8]);
        assert_eq!(finish.apply(vector(), options(Some(false), None)), [3., 4.]);
        assert_eq!(finish.apply(vector(), options(Some(true), Some(1))), [1.]);
        assert_eq!(Finish::default().apply(vector(), options(None, None)), vector());
        assert_eq!(Finish::default().apply(vec![0., 0.], options(Some(true), None)), [0., 0.]);
        assert!(finish.apply(vec![f32::NAN, 1.], options(None, None))[1].is_nan());
    }
}
