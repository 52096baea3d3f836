//! The pieces in which several tokens are read: few sizes, each of which is one graph.

/// Tokens of a piece. The last piece of a text may have fewer, and is filled up.
const SIZES: [usize; 4] = [8, 32, 128, 512];

/// A piece: its size, and its tokens, behind which it is filled up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub size: usize,
    pub tokens: usize,
}

/// The smallest piece of several tokens.
pub(super) const SMALLEST: usize = SIZES[0];

/// The pieces of a number of tokens, which do not reach beyond the room that a text has left. A piece is filled up if more than half of it
/// are tokens, or if it is the smallest; a token by itself is a step.
pub(super) fn pieces(tokens: usize, room: usize) -> Vec<Piece> {
    let (mut left, mut pieces) = (tokens, Vec::new());
    while left > 0 {
        let above = SIZES.into_iter().find(|&size| left <= size && tokens - left + size <= room);
        let is_full_enough = |size: &usize| left > 1 && (*size == SMALLEST || 2 * left > *size);
        let below = || SIZES.into_iter().rev().find(|&size| size <= left).unwrap_or(1);
        let size = above.filter(is_full_enough).unwrap_or_else(below);
        let tokens = size.min(left);
        pieces.push(Piece { size, tokens });
        left -= tokens;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_few_and_hold_all_tokens() {
        let sizes = |tokens| pieces(tokens, 2048).iter().map(|piece| (piece.size, piece.tokens)).collect::<Vec<_>>();
        assert_eq!(sizes(0), []);
        assert_eq!(sizes(1), [(1, 1)]);
        assert_eq!(sizes(2), [(8, 2)]);
        assert_eq!(sizes(9), [(8, 8), (1, 1)]);
        assert_eq!(sizes(17), [(32, 17)]);
        assert_eq!(sizes(130), [(128, 128), (8, 2)]);
        assert_eq!(sizes(1500), [(512, 512), (512, 512), (512, 476)]);
        for (tokens, room) in (1..2000).flat_map(|tokens| [(tokens, 2048), (tokens, tokens), (tokens, tokens + 3)]) {
            let pieces = pieces(tokens, room);
            assert!(pieces.iter().map(|piece| piece.size).sum::<usize>() <= room, "{tokens} of {room}: {pieces:?}");
            assert_eq!(pieces.iter().map(|piece| piece.tokens).sum::<usize>(), tokens);
            assert!(pieces.len() <= tokens / 512 + 16, "{tokens}: {pieces:?}");
            let filled = pieces.iter().position(|piece| piece.tokens < piece.size);
            assert!(filled.is_none_or(|at| at + 1 == pieces.len()), "the last one alone is filled up");
        }
        assert_eq!(pieces(70, 72).iter().map(|piece| piece.size).collect::<Vec<_>>(), [32, 32, 8]);
    }
}
