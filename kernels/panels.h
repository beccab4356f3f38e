// Matrices cut into panels of 16 columns, and products of panels that stay in registers.
//
// A panel holds 16 columns of a matrix row by row: element (r, 16 c + j) of a matrix of n rows lies at
// (c n + r) 16 + j. Whatever is multiplied has this form, so a product is a loop over panels and all strides inside
// it are constants. The registers hold a few rows of one panel of the result; each step adds a column times a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "rows.h"

// What keeps sums in registers is inlined into a loop that stands alone, where nothing else competes for them.
#define SPROUT_INLINE inline __attribute__((always_inline))
#define SPROUT_ALONE inline __attribute__((noinline))

namespace sprout {

constexpr int64_t kPanel = 16;

// kRows x 16 floats fill the registers: enough independent sums to hide the latency of the multiply-adds.
// kColumns, a divisor of 16, is the same where a panel's columns are the rows of the result.
#if defined(__AVX512F__)
typedef float Lanes __attribute__((vector_size(64)));
constexpr int kRows = 12, kColumns = 8;
#elif defined(__AVX__)
typedef float Lanes __attribute__((vector_size(32)));
constexpr int kRows = 6, kColumns = 4;
#else
typedef float Lanes __attribute__((vector_size(16)));
constexpr int kRows = 2, kColumns = 2;
#endif
constexpr int kLanes = sizeof(Lanes) / sizeof(float), kVectors = kPanel / kLanes;

using Buffer = std::unique_ptr<float[]>;  // not initialised

inline Buffer buffer(int64_t floats) { return Buffer(new float[floats]); }

constexpr int64_t round_up(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

SPROUT_INLINE Lanes load_lanes(const float* p) {
    Lanes v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// `Rows` consecutive rows of one panel. Indices are constants by expansion, not by unrolling, which comes too late for
// the compiler to keep arrays in registers.
template <int Rows>
class Sums {
  public:
    SPROUT_INLINE void load(const float* p) { load(p, All{}); }
    SPROUT_INLINE void store(float* p) const { store(p, All{}); }

    // Adds the first `depth` columns of a panel's rows times as many rows of b.
    SPROUT_INLINE void add_product(const float* a, const float* b, int64_t depth = kPanel) {
        add<kPanel, 1>(a, b, depth);
    }

    // The same for rows of b that begin anywhere, at rows[k] + d.
    SPROUT_INLINE void add_product(const float* a, const float* const* rows, int64_t d, int64_t depth) {
        for (int64_t k = 0; k < depth; ++k) add_step<kPanel>(a + k, rows[k] + d, All{});
    }

    // Adds the transposed columns of a panel of `depth` rows times as many rows of b.
    SPROUT_INLINE void add_transposed_product(const float* a, const float* b, int64_t depth) {
        add<1, kPanel>(a, b, depth);
    }

  private:
    using All = std::make_integer_sequence<int, Rows * kVectors>;

    // Adds sum over k < depth of a(i, k) b(k, :), where a(i, k) = a[i * RowStride + k * StepStride].
    template <int RowStride, int StepStride>
    SPROUT_INLINE void add(const float* a, const float* b, int64_t depth) {
        for (int64_t k = 0; k < depth; ++k) add_step<RowStride>(a + k * StepStride, b + k * kPanel, All{});
    }

    template <int RowStride, int... I>
    SPROUT_INLINE void add_step(const float* a, const float* b, std::integer_sequence<int, I...>) {
        ((lanes_[I] += a[I / kVectors * RowStride] * load_lanes(b + I % kVectors * kLanes)), ...);
    }

    template <int... I>
    SPROUT_INLINE void load(const float* p, std::integer_sequence<int, I...>) {
        ((lanes_[I] = load_lanes(p + I * kLanes)), ...);
    }

    template <int... I>
    SPROUT_INLINE void store(float* p, std::integer_sequence<int, I...>) const {
        (std::memcpy(p + I * kLanes, &lanes_[I], sizeof(Lanes)), ...);
    }

    Lanes lanes_[Rows * kVectors] = {};
};

// Row r of an n-row matrix of panels, from `size` numbers times `scale`; columns beyond are 0.
template <typename T>
void pack_row(const T* x, int64_t size, float scale, int64_t n, int64_t r, float* panels) {
    for (int64_t d = 0; d < size; d += kPanel) {
        float* out = panels + (d / kPanel * n + r) * kPanel;
        for (int64_t half = 0; half < kPanel; half += 8) {
            const int64_t left = std::clamp<int64_t>(size - d - half, 0, 8);
            store8(out + half, scale * (left == 8 ? load8(x + d + half) : load(x + d + half, left)));
        }
    }
}

// The opposite: `size` numbers times `scale` out of row r.
template <typename T>
void unpack_row(const float* panels, int64_t size, float scale, int64_t n, int64_t r, T* x) {
    for (int64_t d = 0; d < size; d += 8) {
        const F32x8 v = scale * load8(panels + (d / kPanel * n + r) * kPanel + d % kPanel);
        if (size - d >= 8)
            store8(x + d, v);
        else
            store(x + d, v, size - d);
    }
}

// Transposes a matrix of n rows and `columns` columns, both multiples of 16.
inline void transpose(const float* panels, int64_t n, int64_t columns, float* out) {
    for (int64_t c = 0; c < columns; ++c) {
        const float* in = panels + c / kPanel * n * kPanel + c % kPanel;
        for (int64_t r = 0; r < n; ++r) out[(r / kPanel * columns + c) * kPanel + r % kPanel] = in[r * kPanel];
    }
}

}  // namespace sprout
