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
/// A list, a tuple or a dictionary that is written out.
pub(super) const WRITTEN: &str = "opara_written";
/// What a loop runs over, or a place is taken from.
pub(super) const READ: &str = "opara_read";
/// What is compared.
pub(super) const COMPARED: &str = "opara_compared";
/// What another value is looked for in.
pub(super) const SEARCHED: &str = "opara_searched";
/// What a namespace is given.
pub(super) const KEPT: &str = "opara_kept";
/// A macro that is defined.
pub(super) const MACRO: &str = "opara_macro";
