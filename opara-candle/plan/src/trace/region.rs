//! Byte regions of a buffer: contiguous, or rows at a fixed stride.

use serde::{Deserialize, Serialize};

/// `rows` runs of `len` bytes, the first at `start`, each `stride` after the one before.
///
/// Rows matter because the copies of one concatenation write interleaved rows of the same buffer: their bounding
/// intervals overlap although no byte is shared, and they must not order each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Rows")]
pub struct Region {
    start: u64,
    len: u64,
    stride: u64,
    rows: u64,
}

impl Region {
    /// The bytes `start..start + len`.
    pub fn contiguous(start: u64, len: u64) -> Self {
        Self { start, len, stride: len, rows: 1 }
    }

    /// `rows` runs of `len` bytes, `stride` bytes apart. Adjacent runs are merged.
    pub fn rows(start: u64, len: u64, stride: u64, rows: u64) -> Self {
        match rows {
            0 => Self::contiguous(start, 0),
            1 => Self::contiguous(start, len),
            _ if stride <= len => Self::contiguous(start, (rows - 1) * stride + len),
            _ => Self { start, len, stride, rows },
        }
    }

    /// First byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// One past the last byte.
    pub fn end(&self) -> u64 {
        if self.is_empty() {
            self.start
        } else {
            self.start + (self.rows - 1) * self.stride + self.len
        }
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.rows * self.len
    }

    /// Does it hold no byte?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// May a byte be in both? Exact for contiguous regions and for rows of one stride; otherwise their
    /// bounding intervals decide, which is on the safe side.
    pub fn overlaps(&self, other: &Region) -> bool {
        if self.is_empty() || other.is_empty() || self.start >= other.end() || other.start >= self.end() {
            return false;
        }
        let stride = match (self.rows, other.rows) {
            (1, 1) => return true,
            (1, _) => other.stride,
            (_, 1) => self.stride,
            _ if self.stride == other.stride => self.stride,
            _ => return true,
        };
        // Both are periodic: compare their phases within one stride.
        let phase = |from: u64, to: u64| (to % stride + stride - from % stride) % stride;
        phase(self.start, other.start) < self.len || phase(other.start, self.start) < other.len
    }

    /// Is every byte of `other` in `self`? If in doubt, the answer is no.
    pub fn covers(&self, other: &Region) -> bool {
        other.is_empty() || self == other || (self.rows == 1 && self.start <= other.start && other.end() <= self.end())
    }
}

/// The serialized form of a region.
#[derive(Deserialize)]
#[serde(rename = "Region")]
struct Rows {
    start: u64,
    len: u64,
    stride: u64,
    rows: u64,
}

impl TryFrom<Rows> for Region {
    type Error = &'static str;

    fn try_from(Rows { start, len, stride, rows }: Rows) -> Result<Self, Self::Error> {
        let reach = rows.saturating_sub(1).checked_mul(stride).and_then(|reach| reach.checked_add(len));
        reach.and_then(|reach| reach.checked_add(start)).ok_or("the region ends beyond 64 bits")?;
        Ok(Region::rows(start, len, stride, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(r: &Region) -> std::collections::BTreeSet<u64> {
        (0..r.rows).flat_map(|i| (0..r.len).map(move |j| r.start + i * r.stride + j)).collect()
    }

    fn regions() -> impl Strategy<Value = Region> {
        (0u64..40, 0u64..9, 1u64..12, 0u64..5).prop_map(|(s, l, d, n)| Region::rows(s, l, d, n))
    }

    proptest! {
        #[test]
        fn disjoint_regions_share_no_byte(a in regions(), b in regions()) {
            let shared = bytes(&a).intersection(&bytes(&b)).count() > 0;
            prop_assert!(a.overlaps(&b) || !shared);
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            if a.rows == 1 && b.rows == 1 {
                prop_assert_eq!(a.overlaps(&b), shared);
            }
        }

        #[test]
        fn a_covered_region_is_a_subset(a in regions(), b in regions()) {
            prop_assert!(!a.covers(&b) || bytes(&b).is_subset(&bytes(&a)));
        }
    }

    #[test]
    fn regions_of_others_are_checked_and_made_regular() {
        let read = |json: &str| serde_json::from_str::<Region>(json).map_err(|error| error.to_string());
        for region in [Region::contiguous(3, 5), Region::rows(8, 16, 24, 4)] {
            assert_eq!(read(&serde_json::to_string(&region).unwrap()), Ok(region));
        }
        let touching = read(r#"{"start": 1, "len": 4, "stride": 4, "rows": 3}"#);
        assert_eq!(touching, Ok(Region::contiguous(1, 12)));
        let endless = read(r#"{"start": 1, "len": 4, "stride": 9223372036854775808, "rows": 3}"#);
        assert!(endless.is_err_and(|error| error.contains("beyond 64 bits")));
    }

    #[test]
    fn interleaved_rows_of_a_concatenation_are_disjoint() {
        let left = Region::rows(0, 8, 24, 4);
        let right = Region::rows(8, 16, 24, 4);
        assert!(!left.overlaps(&right));
        assert!(left.overlaps(&Region::rows(4, 8, 24, 4)));
        assert!(Region::contiguous(0, 96).overlaps(&right));
    }
}
