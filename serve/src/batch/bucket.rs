//! The shapes that batches may have.

use super::{Error, Result};

/// The shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// Rows.
    pub batch: usize,
    /// Tokens of each row.
    pub length: usize,
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.batch, self.length)
    }
}

/// The shapes that batches may have: some lengths, and for each the numbers of rows that the token budget allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    lengths: Vec<usize>,
    /// For each length, ascending and not empty.
    batches: Vec<Vec<usize>>,
}

impl Buckets {
    /// Every pair of these numbers of rows and these lengths that has at most `tokens` tokens, padding included.
    ///
    /// # Errors
    /// [`Error::Buckets`] for a zero, for none at all, and for a length that exceeds the budget with the smallest batch.
    pub fn new(
        batches: impl IntoIterator<Item = usize>,
        lengths: impl IntoIterator<Item = usize>,
        tokens: usize,
    ) -> Result<Self> {
        let sorted = |numbers: Vec<usize>, what: &str| {
            let mut numbers = numbers;
            numbers.sort_unstable();
            numbers.dedup();
            match numbers.first() {
                None => Err(Error::Buckets(format!("no {what} of a batch are given"))),
                Some(0) => Err(Error::Buckets(format!("the {what} of a batch cannot be 0"))),
                Some(_) => Ok(numbers),
            }
        };
        let (all, lengths) =
            (sorted(batches.into_iter().collect(), "rows")?, sorted(lengths.into_iter().collect(), "tokens of a row")?);
        let within = |&length: &usize| {
            let fitting: Vec<usize> =
                all.iter().copied().filter(|batch| batch.checked_mul(length).is_some_and(|n| n <= tokens)).collect();
            match fitting.is_empty() {
                true => Err(Error::Buckets(format!(
                    "{} rows of {length} tokens exceed the budget of {tokens} tokens a batch: raise it, or leave that \
                     length out",
                    all[0]
                ))),
                false => Ok(fitting),
            }
        };
        let batches = lengths.iter().map(within).collect::<Result<_>>()?;
        Ok(Self { lengths, batches })
    }

    /// For rows without a length, such as images: these numbers of rows, each row one token.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn of_rows(batches: impl IntoIterator<Item = usize>) -> Result<Self> {
        Self::new(batches, [1], usize::MAX)
    }

    /// How many there are: the `max_shapes` of an executor that keeps a plan for each.
    pub fn len(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of them, the largest first, so that an arena gets its size from the first plan.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> + '_ {
        let of_lane = |lane: usize| {
            self.batches[lane].iter().rev().map(move |&batch| Bucket { batch, length: self.lengths[lane] })
        };
        let mut all: Vec<Bucket> = (0..self.lengths.len()).flat_map(of_lane).collect();
        all.sort_by_key(|bucket| std::cmp::Reverse((bucket.batch * bucket.length, bucket.length)));
        all.into_iter()
    }

    /// Tokens of the longest row that fits.
    pub fn longest(&self) -> usize {
        self.lengths[self.lengths.len() - 1]
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lengths.len()
    }

    /// The shortest length that holds a row, by its index.
    pub(crate) fn lane(&self, length: usize) -> Option<usize> {
        self.lengths.iter().position(|&l| length <= l)
    }

    /// Tokens of a row of this lane, padded.
    pub(crate) fn length(&self, lane: usize) -> usize {
        self.lengths[lane]
    }

    /// Rows of the largest batch of a lane.
    pub(crate) fn capacity(&self, lane: usize) -> usize {
        let batches = &self.batches[lane];
        batches[batches.len() - 1]
    }

    /// The smallest bucket of a lane that holds so many rows, which are at most its capacity.
    pub(crate) fn fit(&self, lane: usize, rows: usize) -> Bucket {
        let batch = self.batches[lane].iter().copied().find(|&batch| rows <= batch);
        Bucket { batch: batch.unwrap_or_else(|| self.capacity(lane)), length: self.lengths[lane] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_bounds_every_bucket() -> Result<()> {
        let buckets = Buckets::new([8, 1, 2, 2], [32, 8], 64)?;
        let all: Vec<String> = buckets.iter().map(|bucket| bucket.to_string()).collect();
        assert_eq!(all, ["2x32", "8x8", "1x32", "2x8", "1x8"]);
        assert_eq!(buckets.len(), all.len());
        assert_eq!((buckets.lane(8), buckets.lane(9), buckets.lane(33)), (Some(0), Some(1), None));
        assert_eq!(buckets.fit(0, 3), Bucket { batch: 8, length: 8 });
        Ok(())
    }

    #[test]
    fn contradictions_are_errors() {
        for (batches, lengths) in [(vec![], vec![8]), (vec![1], vec![]), (vec![0, 1], vec![8]), (vec![2], vec![8, 64])]
        {
            assert!(matches!(Buckets::new(batches, lengths, 64), Err(Error::Buckets(_))));
        }
        assert!(Buckets::new([usize::MAX], [usize::MAX], 64).is_err());
    }
}
