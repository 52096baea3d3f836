// What a bias does to a tile of 64 queries by 64 keys, which a kernel of its own has looked at.
#pragma once

// Something, nothing, or all scores are hidden.
constexpr unsigned char TILE_ADDS = 0, TILE_IS_NOTHING = 1, TILE_IS_HIDDEN = 2;

// Tiles along the keys, or the queries, of which a block keeps what a bias does there. To others it adds something.
constexpr unsigned TILES_KEPT = 512;
