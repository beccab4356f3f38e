// What forward and backward share: the tensors of one call, and keys, values and blocks of queries as panels.
#pragma once

#include <cstdint>
#include <vector>

#include "panels.h"
#include "visibility.h"

namespace sprout {

// Query head h belongs to key head h / group. The sorted query i is row order[i]; sorted queries are attended to in
// blocks. A panel's rows of a block that see none of its keys are left out, so blocks may cross the branches of a
// forest, and their size is a matter of the caches.
struct Problem {
    int64_t queries, keys, key_heads, group, size;
    float scale;
    const int32_t* order;
    const Visibility& visibility;

    static constexpr int64_t kBlockRows = 144;

    int64_t width() const { return round_up(size, kPanel); }
    int64_t padded_keys() const { return visibility.panels * kPanel; }
    int64_t head_floats() const { return padded_keys() * width(); }  // keys or values of one head

    // Queries of a block: as many as fit, in whole tiles if possible.
    int64_t block_queries() const {
        const int64_t most = std::max<int64_t>(1, kBlockRows / group);
        for (int64_t count = most; count > most - kRows && count > 0; --count)
            if (count * group % kRows == 0) return count;
        return most;
    }
    int64_t blocks() const { return (queries + block_queries() - 1) / block_queries(); }
    int64_t block_rows() const { return round_up(block_queries() * group, kRows); }
    Block block(int64_t i) const {
        return {i * block_queries(), std::min(queries, (i + 1) * block_queries()), group};
    }
};

// Keys or values of all heads as matrices [padded_keys, width] of panels, and their transposes.
struct Packed {
    Buffer plain, transposed;
    int64_t head_floats;

    const float* rows(int64_t head) const { return plain.get() + head * head_floats; }
    const float* columns(int64_t head) const { return transposed.get() + head * head_floats; }
};

template <typename T>
Packed pack(const Problem& p, const Heads<const T>& x, bool transposed, int threads) {
    const int64_t n = p.padded_keys(), floats = p.head_floats();
    Packed packed{buffer(p.key_heads * floats), buffer(transposed ? p.key_heads * floats : 0), floats};
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t head = 0; head < p.key_heads; ++head) {
        float* panels = packed.plain.get() + head * floats;
        for (int64_t key = 0; key < p.keys; ++key) pack_row(x.at(key, head), p.size, 1.0f, n, key, panels);
        for (int64_t c = 0; c < p.width(); c += kPanel)
            std::fill(panels + (c * n + p.keys * kPanel), panels + (c + kPanel) * n, 0.0f);
        if (transposed) transpose(panels, n, p.width(), packed.transposed.get() + head * floats);
    }
    return packed;
}

// visit(row, sorted query, query head) for every row of a block under one key head.
template <typename Visit>
void each_row(const Block& block, int64_t key_head, Visit visit) {
    for (int64_t i = block.start, row = 0; i < block.stop; ++i)
        for (int64_t g = 0; g < block.group; ++g, ++row) visit(row, i, key_head * block.group + g);
}

// A block's rows times `scale` as panels; rows beyond are 0.
template <typename T>
void pack_block(const Problem& p, const Block& block, int64_t key_head, const Heads<const T>& x, float scale,
                float* panels) {
    const int64_t n = block.padded();
    each_row(block, key_head, [&](int64_t row, int64_t i, int64_t head) {
        pack_row(x.at(p.order[i], head), p.size, scale, n, row, panels);
    });
    for (int64_t c = 0; c < p.width(); c += kPanel)
        std::fill(panels + c * n + block.rows() * kPanel, panels + (c + kPanel) * n, 0.0f);
}

// out = x y^T for one tile of x's rows and one panel of keys: x in panels, and `columns` is y^T, one panel.
SPROUT_ALONE void tile_product(const float* x, int64_t rows, int64_t tile, const float* columns, int64_t width,
                         float* out) {
    Sums<kRows> sums;
    for (int64_t c = 0; c < width; c += kPanel)
        sums.add_product(x + c * rows + tile * kRows * kPanel, columns + c * kPanel);
    sums.store(out);
}

// out += x y for all rows: x [rows, keys of a chunk] in panels, y [padded_keys, width] and out [rows, width] in panels.
SPROUT_ALONE void add_chunk(const float* x, int64_t rows, const Needed* chunk, int64_t count, const float* y,
                            int64_t padded_keys, int64_t width, float* out) {
    for (int64_t c = 0; c < width; c += kPanel)
        for (int64_t row = 0; row < rows; row += kRows) {
            Sums<kRows> sums;
            sums.load(out + c * rows + row * kPanel);
            for (int64_t slot = 0; slot < count; ++slot)
                if (chunk[slot].begin * kRows <= row && row < chunk[slot].end * kRows)
                    sums.add_product(x + (slot * rows + row) * kPanel,
                                     y + c * padded_keys + chunk[slot].panel * kPanel * kPanel);
            sums.store(out + c * rows + row * kPanel);
        }
}

}  // namespace sprout
