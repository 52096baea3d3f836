// The effect of a bias on a tile of 64 queries by 64 keys. A kernel of its own finds it.
#pragma once

// Something, nothing, or all scores are hidden.
constexpr unsigned char TILE_ADDS = 0, TILE_IS_NOTHING = 1, TILE_IS_HIDDEN = 2;

// Tiles along the keys, or the queries, of which a block keeps the effect. A bias counts as adding something to others.
constexpr unsigned TILES_KEPT = 512;
