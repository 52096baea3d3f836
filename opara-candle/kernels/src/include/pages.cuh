// Where keys and values lie in a cache (pages, 2, kv_heads, places of a page, dim), keys before values. The places of a sequence are in the
// pages that its row of a table names, in this order (Kwon et al., "PagedAttention", 2023); without a table it has one page, its own.
#pragma once

// Places of a page, where there is a table: `PAGE` of `operands.rs`.
constexpr unsigned PAGE = 64;

// The keys of one head of a sequence that has `capacity` places; values are `to_values` elements behind them.
template <typename T> struct Cache {
    T *keys;
    unsigned to_values, of_page;
    const unsigned *pages;
    unsigned dim;

    __device__ Cache(T *cache, const unsigned *table, unsigned item, unsigned kv, unsigned kv_heads, unsigned capacity, unsigned dim)
        : dim(dim) {
        const unsigned places = table ? PAGE : capacity;
        to_values = kv_heads * places * dim, of_page = 2 * to_values;
        pages = table ? table + (size_t)item * (capacity / PAGE) : nullptr;
        keys = cache + (size_t)kv * places * dim + (table ? 0 : (size_t)item * of_page);
    }

    // Where the elements of a place begin. No kernel of a graph writes the table.
    __device__ size_t at(unsigned place) const {
        return pages ? (size_t)pages[place / PAGE] * of_page + place % PAGE * dim : (size_t)place * dim;
    }
};
