//! What a worker runs batches on.

use std::time::Duration;

use super::{Bucket, Buckets, EngineError};

/// Runs batches of one model on one device.
///
/// Several threads may run batches of one engine at the same time ([`Settings::in_flight`](super::Settings::in_flight)).
pub trait Engine: Send + Sync + 'static {
    /// What a client asks one answer for.
    type Row: Send + Sync + 'static;
    /// The answer of one row.
    type Answer: Send + 'static;

    /// Tokens of a row; 1 where rows have no length.
    fn length(&self, row: &Self::Row) -> usize;

    /// Runs rows, at most `bucket.batch` of at most `bucket.length` tokens each, padded to the bucket; or rows that have at most
    /// `bucket.length` tokens together, where [buckets are packed](Buckets::packed). Gives one answer a row, in their order.
    ///
    /// # Errors
    /// Fails every request that has one of these rows.
    fn run(&self, bucket: Bucket, rows: &[&Self::Row]) -> Result<Vec<Self::Answer>, EngineError>;

    /// Builds what this bucket needs, so that its first batch is as fast as later ones.
    ///
    /// # Errors
    /// Those of building.
    fn prepare(&self, bucket: Bucket) -> Result<(), EngineError> {
        let _ = bucket;
        Ok(())
    }

    /// How long the device takes for a batch of this bucket by itself, without the host's part. By default it is not known.
    fn device_time(&self, bucket: Bucket) -> Option<Duration> {
        let _ = bucket;
        None
    }

    /// What an operator watches. By default nothing is known.
    fn health(&self, buckets: &Buckets) -> Health {
        let _ = buckets;
        Health::default()
    }
}

/// What an operator watches of an engine.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Buckets that are answered by a plan.
    pub built: usize,
    /// Buckets that run eagerly, and why.
    pub eager: Vec<(Bucket, String)>,
    /// Calls that were compared with the module.
    pub rechecks: u64,
    /// How many of those differed.
    pub mismatches: u64,
}
