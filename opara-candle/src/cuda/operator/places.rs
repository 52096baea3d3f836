//! The choice among the kernels of `places.cuh`, in which one query a head attends to keys and values.

/// `THREADS` and `EACH` of `places.cuh`.
pub(crate) const THREADS: u32 = 256;
pub(crate) const EACH: usize = 8;

/// Places whose keys and values a block asks for at once, times the lanes of a place.
const AT_ONCE: usize = 4 * THREADS as usize;

/// Neighbouring lanes that have a head's elements together; `None` if there are none for so many elements.
pub(crate) fn lanes(head_dim: usize) -> Option<usize> {
    let is_whole = head_dim > 0 && head_dim.is_multiple_of(EACH);
    [8, 16, 32].into_iter().find(|lanes| head_dim <= lanes * EACH).filter(|_| is_whole)
}

/// How a kernel divides its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// Neighbours that have a head's elements together.
    lanes: usize,
    /// Query heads that share keys, at most.
    heads: usize,
}

impl Split {
    /// For so many query heads that share keys, elements of a head, and places, at most; `None` if there is no kernel.
    pub fn new(group: usize, head_dim: usize, places: usize) -> Option<Self> {
        let lanes = lanes(head_dim)?;
        // What a block has after asking twice is not worth a cluster.
        let are_few = places * lanes <= 2 * AT_ONCE;
        let heads = match group {
            1 if are_few && lanes < 32 => 1,
            _ => [4, 8].into_iter().find(|heads| group <= *heads)?,
        };
        Some(Self { lanes, heads })
    }

    /// The part of the kernel's name.
    pub fn name(self) -> String {
        format!("{}x{}", self.lanes, self.heads)
    }

    /// Blocks that share the places of a head.
    pub fn blocks(self, has_clusters: bool) -> u32 {
        if has_clusters && self.heads > 1 {
            8
        } else {
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_published_models_have_a_kernel() {
        let split = |heads: usize, kv_heads, head_dim, places| {
            Split::new(heads / kv_heads, head_dim, places).map(|split| (split.lanes, split.heads))
        };
        assert_eq!(split(14, 2, 64, 64), Some((8, 8)), "Qwen2.5-0.5B");
        assert_eq!(split(32, 8, 128, 64), Some((16, 4)), "Llama 3.1");
        assert_eq!(split(32, 32, 96, 4096), Some((16, 4)), "Phi-3");
        assert_eq!(split(24, 8, 128, 64), Some((16, 4)), "Phi-4-mini");
        assert_eq!(split(4, 1, 256, 64), Some((32, 4)), "Gemma 3");
        assert_eq!(split(8, 1, 256, 64), Some((32, 8)), "Gemma 2B");
        assert_eq!(split(4, 2, 20, 64), None);
        assert_eq!(split(16, 1, 64, 64), None);
    }

    #[test]
    fn few_places_take_one_block_for_each_head() {
        let split = |head_dim, places| {
            let split = Split::new(1, head_dim, places).expect("there is a kernel");
            (split.heads, split.blocks(true))
        };
        assert_eq!([split(64, 256), split(64, 257)], [(1, 1), (4, 8)], "T5");
        assert_eq!([split(128, 128), split(128, 129)], [(1, 1), (4, 8)]);
        assert_eq!(split(256, 1), (4, 8));
        assert_eq!(Split::new(2, 64, 64).expect("there is a kernel").blocks(false), 1);
    }
}
