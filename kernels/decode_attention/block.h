// One task of decode_attention: a block of query rows of one sequence under one key head.
//
// It takes chunks of a fixed number of positions: packs the keys, once for the whole block unless its rows are few, then
// adds the chunk to the online softmax of each tile of rows. A row takes the same chunks and sums in the same order in
// any block: over dimensions for a score, over the positions that it sees for an output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "panels.h"

namespace sprout {

// Keys or values of one head of one sequence.
template <typename T>
struct Paged {
    const T* head;
    const int32_t* table;
    int64_t page, page_stride, stride;

    // Where the positions [start, start + count) lie.
    void locate(int64_t start, int64_t count, const T** out) const {
        for (const int64_t stop = start + count; start < stop;) {
            const int64_t slot = start % page, run = std::min(page - slot, stop - start);
            const T* first = head + table[start / page] * page_stride + slot * stride;
            for (int64_t i = 0; i < run; ++i) *out++ = first + i * stride;
            start += run;
        }
    }
};

// body(d, column) for d < size: number d of each of eight rows. The next eight are prefetched.
template <typename T, typename Body>
SPROUT_INLINE void each_column(const T* const* rows, int64_t size, Body body) {
    for (int64_t d = 0; d < size; d += 4) {
        if (d % 16 == 0)
            for (int i = 0; i < 8; ++i) __builtin_prefetch(rows[i + 8] + d);
        F32x8 pair[4];  // rows i and i + 4
        for (int i = 0; i < 4; ++i) {
            if (d + 4 <= size) {
                pair[i] = __builtin_shufflevector(load4(rows[i] + d), load4(rows[i + 4] + d), 0, 1, 2, 3, 4, 5, 6, 7);
            } else {
                const F32x8 low = load(rows[i] + d, size - d), high = load(rows[i + 4] + d, size - d);
                pair[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
            }
        }
        const F32x8 a = __builtin_shufflevector(pair[0], pair[1], 0, 8, 1, 9, 4, 12, 5, 13);
        const F32x8 b = __builtin_shufflevector(pair[2], pair[3], 0, 8, 1, 9, 4, 12, 5, 13);
        const F32x8 c = __builtin_shufflevector(pair[0], pair[1], 2, 10, 3, 11, 6, 14, 7, 15);
        const F32x8 e = __builtin_shufflevector(pair[2], pair[3], 2, 10, 3, 11, 6, 14, 7, 15);
        body(d, __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13));
        if (d + 1 < size) body(d + 1, __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
        if (d + 2 < size) body(d + 2, __builtin_shufflevector(c, e, 0, 1, 8, 9, 4, 5, 12, 13));
        if (d + 3 < size) body(d + 3, __builtin_shufflevector(c, e, 2, 3, 10, 11, 6, 7, 14, 15));
    }
}

// body(row, count) over tiles of rows; count is a constant: Rows, and for what is left ever smaller powers of two.
template <int Rows, typename Body>
void each_tile(int64_t row, int64_t rows, Body body) {
    for (; row + Rows <= rows; row += Rows) body(row, std::integral_constant<int, Rows>{});
    if constexpr (Rows > 1) each_tile<Rows <= 2 ? 1 : Rows <= 4 ? 2 : Rows <= 8 ? 4 : 8>(row, rows, body);
}

template <typename T>
class PagedAttention {
  public:
    PagedAttention(int64_t rows, int64_t size, float scale)
        : size_(size), width_(round_up(size, kPanel)), scale_(scale), query_(buffer(rows * width_)),
          sum_(buffer(rows * width_)), keys_(buffer(kChunk * width_)), values_(new float[kChunk * width_]()),
          length_(rows), peak_(rows), mass_(rows) {}

    // Rows are the `group` query heads of each of `queries` positions; query i sees its first length[i] positions.
    void attend(const int32_t* length, int64_t queries, int64_t group, const Heads<const T>& q, const Paged<T>& keys,
                const Paged<T>& values, const Heads<T>& out) {
        rows_ = queries * group;
        for (int64_t row = 0; row < rows_; ++row) {
            length_[row] = length[row / group];
            pack_row(q.at(row / group, row % group), size_, scale_, rows_, row, query_.get());
        }
        std::fill_n(sum_.get(), rows_ * width_, 0.0f);
        std::fill_n(peak_.begin(), rows_, std::numeric_limits<float>::lowest());
        std::fill_n(mass_.begin(), rows_, 0.0f);
        const int64_t longest = *std::max_element(length, length + queries);
        for (int64_t start = 0; start < longest; start += kChunk) {
            const int64_t count = std::min(kChunk, longest - start);
            place_keys(keys, start, longest);
            if (rows_ > kFewRows) pack_keys(count);
            place_values(values, start, count);
            each_tile<kRows>(0, rows_, [&](int64_t row, auto rows) { tile<decltype(rows)::value>(row, start); });
        }
        for (int64_t row = 0; row < rows_; ++row)
            unpack_row(sum_.get(), size_, mass_[row] == 0 ? 0 : 1 / mass_[row], rows_, row,
                       out.at(row / group, row % group));
    }

  private:
    static constexpr int64_t kChunk = 128;  // positions
    static constexpr int kFewRows = 4;      // up to this many, a packed key is not read often enough
    // Positions to prefetch. Not more: they lie a power of two apart, so that few of them fit into the cache.
    static constexpr int64_t kAheadKeys = 8, kAheadValues = 8;

    void place_keys(const Paged<T>& keys, int64_t start, int64_t longest) {
        const int64_t count = std::min(kChunk + kAheadKeys, longest - start);
        keys.locate(start, count, key_);
        // The last key stands in for those that are missing in its panel.
        std::fill(key_ + count, std::end(key_), key_[count - 1]);
    }

    void pack_keys(int64_t count) {
        for (int64_t key = 0; key < count; key += 8) {
            float* out = keys_.get() + key / kPanel * kPanel * width_ + key % kPanel;
            each_column(key_ + key, size_, [&](int64_t d, F32x8 column) { store8(out + d * kPanel, column); });
        }
    }

    // Values stay where they are if they are floats in whole panels.
    void place_values(const Paged<T>& values, int64_t start, int64_t count) {
        if constexpr (std::is_same_v<T, float>) {
            if (size_ == width_) values.locate(start, count, value_);
        }
        if (!std::is_same_v<T, float> || size_ != width_) copy_values(values, start, count);
        std::fill_n(value_ + count, kAheadValues, value_[count - 1]);
    }

    void copy_values(const Paged<T>& values, int64_t start, int64_t count) {
        const T* place[kChunk];
        values.locate(start, count, place);
        for (int64_t key = 0; key < count; ++key) {
            float* copy = values_.get() + key * width_;
            each8(size_, [&](int64_t d, auto lanes) { store8(copy + d, load(place[key] + d, lanes)); });
            value_[key] = copy;
        }
    }

    // Adds the chunk to `Rows` rows.
    template <int Rows>
    void tile(int64_t row, int64_t start) {
        int64_t seen[Rows];
        for (int i = 0; i < Rows; ++i) seen[i] = std::clamp<int64_t>(length_[row + i] - start, 0, kChunk);
        const auto [least, most] = std::minmax_element(seen, seen + Rows);
        if (*most == 0) return;
        score<Rows>(row, *most);
        for (int i = 0; i < Rows; ++i)
            if (seen[i] > 0) soften<Rows>(row, i, seen[i]);
        weigh<Rows>(row, *least);
        // A weight of 0 would not do: what a row does not see may be NaN.
        for (int i = 0; i < Rows; ++i)
            if (seen[i] > *least) weigh_one<Rows>(row, i, *least, seen[i]);
    }

    // Panels of scores [rows of the tile, keys of the chunk], as they are multiplied with values.
    template <int Rows>
    void score(int64_t row, int64_t count) {
        if constexpr (Rows <= kFewRows)
            if (rows_ <= kFewRows) return score_unpacked<Rows>(row, count);
        score_packed<Rows>(row, count);
    }

    template <int Rows>
    SPROUT_ALONE void score_packed(int64_t row, int64_t count) {
        for (int64_t key = 0; key < count; key += kPanel) {
            const float* panel = keys_.get() + key * width_;
            Sums<Rows> sums;
            int64_t d = 0;
            for (; d + kPanel <= size_; d += kPanel)
                sums.add_product(query_.get() + d * rows_ + row * kPanel, panel + d * kPanel);
            if (d < size_) sums.add_product(query_.get() + d * rows_ + row * kPanel, panel + d * kPanel, size_ - d);
            sums.store(scores_ + key * Rows);
        }
    }

    // The same sums in the same order: few rows transpose keys in registers and store none.
    template <int Rows>
    SPROUT_ALONE void score_unpacked(int64_t row, int64_t count) {
        for (int64_t key = 0; key < count; key += 8) {
            F32x8 sums[Rows] = {};
            each_column(key_ + key, size_, [&](int64_t d, F32x8 column) {
                const float* query = query_.get() + d / kPanel * kPanel * rows_ + row * kPanel + d % kPanel;
                for (int i = 0; i < Rows; ++i) sums[i] += query[i * kPanel] * column;
            });
            for (int i = 0; i < Rows; ++i) store8(score_at<Rows>(i, key), sums[i]);
        }
    }

    // Turns a row's scores into weights, and lowers what has been summed to the new peak.
    template <int Rows>
    void soften(int64_t row, int64_t i, int64_t count) {
        const auto at = [&](int64_t key) { return score_at<Rows>(i, key); };
        F32x8 peaks = splat8(peak_[row + i]);
        each8(count, [&](int64_t key, auto lanes) {
            const F32x8 s = keep(load8(at(key)), lanes, -std::numeric_limits<float>::infinity());
            peaks = s > peaks ? s : peaks;
        });
        const float peak = max8(peaks);
        F32x8 mass = {};
        each8(count, [&](int64_t key, auto lanes) {
            const F32x8 weight = keep(exp8(load8(at(key)) - peak), lanes, 0.0f);
            mass += weight;
            store8(at(key), weight);
        });
        if (peak > peak_[row + i]) {
            const float decay = exp8(splat8(peak_[row + i] - peak))[0];
            for (int64_t d = 0; d < width_; d += 8) {
                float* sum = sum_.get() + (d / kPanel * rows_ + row + i) * kPanel + d % kPanel;
                store8(sum, decay * load8(sum));
            }
            mass_[row + i] *= decay;
            peak_[row + i] = peak;
        }
        mass_[row + i] += sum8(mass);
    }

    // Adds the first `count` values of the chunk, weighted. One or two rows take several panels at once: enough
    // independent sums, and each value read in one go.
    template <int Rows>
    void weigh(int64_t row, int64_t count) {
        constexpr int kWide = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
        for (int64_t key = 0; key < count; key += 2 * kPanel) {
            const int64_t stop = std::min(count, key + 2 * kPanel);
            int64_t d = 0;
            for (; d + kWide * kPanel <= width_; d += kWide * kPanel)
                weigh_panels<Rows>(row, d, key, stop, std::make_integer_sequence<int, kWide>{});
            for (; d < width_; d += kPanel)
                weigh_panels<Rows>(row, d, key, stop, std::make_integer_sequence<int, 1>{});
        }
    }

    template <int Rows, int... Panel>
    SPROUT_ALONE void weigh_panels(int64_t row, int64_t d, int64_t first, int64_t last,
                                   std::integer_sequence<int, Panel...>) {
        const auto sum = [&](int panel) { return sum_.get() + (d + panel * kPanel) * rows_ + row * kPanel; };
        const auto add = [&](Sums<Rows>& sums, int64_t key, int64_t from) {
            sums.add_product(score_at<Rows>(0, key), value_ + key, from, 1);
            __builtin_prefetch(value_[key + (Rows == 1 ? kAheadValues / 2 : kAheadValues)] + from);
        };
        Sums<Rows> sums[sizeof...(Panel)];
        (sums[Panel].load(sum(Panel)), ...);
        for (int64_t key = first; key < last; ++key) (add(sums[Panel], key, d + Panel * kPanel), ...);
        (sums[Panel].store(sum(Panel)), ...);
    }

    // Adds the values [first, last) of the chunk to one row.
    template <int Rows>
    SPROUT_ALONE void weigh_one(int64_t row, int64_t i, int64_t first, int64_t last) {
        for (int64_t d = 0; d < width_; d += kPanel) {
            float* sum = sum_.get() + d * rows_ + (row + i) * kPanel;
            Sums<1> sums;
            sums.load(sum);
            for (int64_t key = first; key < last; ++key)
                sums.add_product(score_at<Rows>(i, key), value_ + key, d, 1);
            sums.store(sum);
        }
    }

    template <int Rows>
    float* score_at(int64_t i, int64_t key) {
        return scores_ + key / kPanel * kPanel * Rows + i * kPanel + key % kPanel;
    }

    const int64_t size_, width_;
    const float scale_;
    Buffer query_, sum_, keys_;  // panels of [rows, width], [rows, width], and [width, 16] for each 16 keys
    Buffer values_;              // [kChunk, width]; columns beyond `size` are 0
    const T* key_[kChunk + kAheadKeys];
    const float* value_[kChunk + kAheadValues];
    float scores_[kRows * kChunk];
    std::vector<int64_t> length_;
    std::vector<float> peak_, mass_;
    int64_t rows_ = 0;
};

}  // namespace sprout
