//! Hashing of texts to ids, without a vocabulary.

/// FNV-1a. Unlike the standard library's hash, it is the same in every release.
pub(crate) fn fnv1a(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors from the hash's authors.
    #[test]
    fn hashes_match_the_published_vectors() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text), hash, "{text}");
        }
    }
}
