//! Attention that one launch computes.

use serde::{Deserialize, Serialize};

/// Attention of queries over keys and values. A query's own place is the one that leaves as many keys behind it as there are queries behind
/// the query.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Attending {
    /// Texts, each of which attends to itself.
    pub texts: u64,
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and values, each for as many consecutive ones of queries.
    pub kv_heads: u64,
    /// Elements of a head.
    pub size: u64,
    /// The factor of products of queries and keys.
    pub scale: f32,
    /// Scores are this number times the hyperbolic tangent of their part of it, if it is not 0.
    pub cap: f32,
    /// How many keys before its own place a query sees, if not all.
    pub before: Option<u64>,
    /// How many keys behind its own place a query sees, if not all.
    pub behind: Option<u64>,
    /// Whether each head has a slope: its multiple of the distance between a key and a query's own place is taken from the score.
    pub has_slopes: bool,
    /// Whether texts of several lengths lie one behind another, and operands say where each begins.
    pub is_packed: bool,
}

/// Pages of keys and values, of which each text has some, in an order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pages {
    /// Keys of a page.
    pub keys: u64,
    /// Pages that a text may have.
    pub of_text: u64,
}
