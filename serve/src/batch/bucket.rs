//! The shapes that batches may have.

use super::{Error, Result};

/// The shape of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// Rows; 1 where rows lie side by side in it.
    pub batch: usize,
    /// Tokens of each row, or of all that lie side by side.
    pub length: usize,
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.batch, self.length)
    }
}

/// The shapes that batches may have.
///
/// Rows are padded: to some lengths, and for each to the numbers of rows that the token budget allows. Or they are packed: rows of any lengths
/// lie side by side, in one of some numbers of tokens, where a short row takes 16 tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets(Shapes);

#[derive(Debug, Clone, PartialEq)]
enum Shapes {
    Padded {
        lengths: Vec<usize>,
        /// For each length, ascending and not empty.
        batches: Vec<Vec<usize>>,
    },
    Packed {
        /// Ascending.
        tokens: Vec<usize>,
        /// Tokens of the longest row.
        longest: usize,
    },
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
        let all = sorted(batches, "rows of a batch")?;
        let lengths = sorted(lengths, "tokens of a row")?;
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
        Ok(Self(Shapes::Padded { lengths, batches }))
    }

    /// For rows without a length, such as images: these numbers of rows, each row one token.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn of_rows(batches: impl IntoIterator<Item = usize>) -> Result<Self> {
        Self::new(batches, [1], usize::MAX)
    }

    /// For rows of at most `longest` tokens that lie side by side, in these numbers of tokens. A row of fewer than 16 tokens takes 16, so that
    /// the number of rows is bounded, too.
    ///
    /// # Errors
    /// [`Error::Buckets`] for a zero, for none at all, and for rows that are longer than the largest batch.
    pub fn packed(tokens: impl IntoIterator<Item = usize>, longest: usize) -> Result<Self> {
        let tokens = sorted(tokens, "tokens of a batch")?;
        match tokens.last() {
            Some(&most) if longest > 0 && longest <= most => Ok(Self(Shapes::Packed { tokens, longest })),
            most => {
                let most = most.copied().unwrap_or_default();
                Err(Error::Buckets(format!("rows of {longest} tokens do not fit into batches of at most {most}")))
            }
        }
    }

    /// Whether rows lie side by side.
    pub fn is_packed(&self) -> bool {
        matches!(self.0, Shapes::Packed { .. })
    }

    /// How many there are: the `max_shapes` of an executor that keeps a plan for each.
    pub fn len(&self) -> usize {
        match &self.0 {
            Shapes::Padded { batches, .. } => batches.iter().map(Vec::len).sum(),
            Shapes::Packed { tokens, .. } => tokens.len(),
        }
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All of them, the largest first, so that an arena gets its size from the first plan.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> + '_ {
        let mut all: Vec<Bucket> = match &self.0 {
            Shapes::Padded { lengths, batches } => lengths
                .iter()
                .zip(batches)
                .flat_map(|(&length, batches)| batches.iter().map(move |&batch| Bucket { batch, length }))
                .collect(),
            Shapes::Packed { tokens, .. } => tokens.iter().map(|&length| Bucket { batch: 1, length }).collect(),
        };
        all.sort_by_key(|bucket| std::cmp::Reverse((bucket.batch * bucket.length, bucket.length)));
        all.into_iter()
    }

    /// Tokens of the longest row that fits.
    pub fn longest(&self) -> usize {
        match &self.0 {
            Shapes::Padded { lengths, .. } => lengths[lengths.len() - 1],
            Shapes::Packed { longest, .. } => *longest,
        }
    }

    pub(crate) fn lanes(&self) -> usize {
        match &self.0 {
            Shapes::Padded { lengths, .. } => lengths.len(),
            Shapes::Packed { .. } => 1,
        }
    }

    /// The lane of a row: of the shortest length that holds it.
    pub(crate) fn lane(&self, length: usize) -> Option<usize> {
        match &self.0 {
            Shapes::Padded { lengths, .. } => lengths.iter().position(|&l| length <= l),
            Shapes::Packed { longest, .. } => (length <= *longest).then_some(0),
        }
    }

    /// Tokens that a row of this length takes in a batch.
    pub(crate) fn taken(&self, length: usize) -> usize {
        match &self.0 {
            Shapes::Padded { lengths, .. } => lengths.iter().copied().find(|&l| length <= l).unwrap_or(length),
            Shapes::Packed { tokens, .. } => length.max(SHORTEST.min(tokens[tokens.len() - 1])),
        }
    }

    /// Whether a batch of a lane has room for one row more, which takes `more` tokens, beside `rows` that take `tokens`.
    pub(crate) fn has_room(&self, lane: usize, rows: usize, tokens: usize, more: usize) -> bool {
        match &self.0 {
            Shapes::Padded { batches, .. } => rows < batches[lane][batches[lane].len() - 1],
            Shapes::Packed { tokens: all, .. } => tokens + more <= all[all.len() - 1],
        }
    }

    /// The smallest bucket of a lane that holds rows which take so many tokens together, and have [room](Self::has_room).
    pub(crate) fn fit(&self, lane: usize, rows: usize, tokens: usize) -> Bucket {
        match &self.0 {
            Shapes::Padded { lengths, batches } => {
                let (batches, length) = (&batches[lane], lengths[lane]);
                let batch = batches.iter().copied().find(|&batch| rows <= batch);
                Bucket { batch: batch.unwrap_or(batches[batches.len() - 1]), length }
            }
            Shapes::Packed { tokens: all, .. } => {
                let length = all.iter().copied().find(|&most| tokens <= most);
                Bucket { batch: 1, length: length.unwrap_or(all[all.len() - 1]) }
            }
        }
    }

    /// Rows that a bucket has places for.
    pub(crate) fn places(&self, bucket: Bucket) -> usize {
        match &self.0 {
            Shapes::Padded { .. } => bucket.batch,
            Shapes::Packed { .. } => rows_of(bucket.length),
        }
    }
}

/// Tokens that a row takes at least in a batch whose rows lie side by side.
const SHORTEST: usize = 16;

/// Rows that a batch of so many tokens side by side has at most.
pub(crate) fn rows_of(tokens: usize) -> usize {
    (tokens / SHORTEST).max(1)
}

/// These numbers in ascending order, each once.
fn sorted(numbers: impl IntoIterator<Item = usize>, what: &str) -> Result<Vec<usize>> {
    let mut numbers: Vec<usize> = numbers.into_iter().collect();
    numbers.sort_unstable();
    numbers.dedup();
    match numbers.first() {
        None => Err(Error::Buckets(format!("no {what} are given"))),
        Some(0) => Err(Error::Buckets(format!("the {what} cannot be 0"))),
        Some(_) => Ok(numbers),
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
        assert_eq!(buckets.fit(0, 3, 24), Bucket { batch: 8, length: 8 });
        Ok(())
    }

    #[test]
    fn packed_rows_take_the_tokens_that_they_have() -> Result<()> {
        let buckets = Buckets::packed([64, 16, 256], 100)?;
        assert_eq!(buckets.iter().map(|bucket| bucket.to_string()).collect::<Vec<_>>(), ["1x256", "1x64", "1x16"]);
        assert_eq!((buckets.lane(100), buckets.lane(101)), (Some(0), None));
        assert_eq!((buckets.taken(7), buckets.taken(33)), (16, 33));
        assert_eq!(buckets.fit(0, 2, 33), Bucket { batch: 1, length: 64 });
        assert!(buckets.has_room(0, 15, 156, 100) && !buckets.has_room(0, 15, 157, 100));
        assert_eq!(buckets.iter().map(|bucket| buckets.places(bucket)).collect::<Vec<_>>(), [16, 4, 1]);
        Ok(())
    }

    #[test]
    fn contradictions_are_errors() {
        for (batches, lengths) in [(vec![], vec![8]), (vec![1], vec![]), (vec![0, 1], vec![8]), (vec![2], vec![8, 64])]
        {
            assert!(matches!(Buckets::new(batches, lengths, 64), Err(Error::Buckets(_))));
        }
        assert!(Buckets::new([usize::MAX], [usize::MAX], 64).is_err());
        assert_eq!(Buckets::packed([8], 8).map(|small| small.taken(3)), Ok(8), "no row takes more than a batch has");
        for (tokens, longest) in [(vec![], 8), (vec![0, 8], 8), (vec![8], 9), (vec![8], 0)] {
            assert!(matches!(Buckets::packed(tokens, longest), Err(Error::Buckets(_))));
        }
    }
}
