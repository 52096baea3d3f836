//! Heads of keys that several heads of queries share.

/// How many heads of queries share one of these heads of keys; `None` if not all of these do.
pub(super) fn shared_by(heads: usize, of_keys: usize) -> Option<usize> {
    (of_keys > 0 && heads.is_multiple_of(of_keys)).then(|| heads / of_keys)
}
