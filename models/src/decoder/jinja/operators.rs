//! The filters that stand for operators, which the rewriter writes.

/// `~`: the texts of values.
pub(super) const TEXT: &str = "opara_text";
/// `+`.
pub(super) const SUM: &str = "opara_sum";
/// `*`.
pub(super) const PRODUCT: &str = "opara_product";
/// `%`.
pub(super) const REMAINDER: &str = "opara_remainder";
/// `%` before a tuple.
pub(super) const FORMAT: &str = "opara_format";
/// `//`.
pub(super) const QUOTIENT: &str = "opara_quotient";
/// `[a:b:c]`.
pub(super) const SLICE: &str = "opara_slice";
/// What a name is set to.
pub(super) const KEPT: &str = "opara_kept";
/// What a namespace is given.
pub(super) const HELD: &str = "opara_held";
/// A text between tags, so long.
pub(super) const PLAIN: &str = "opara_plain";
