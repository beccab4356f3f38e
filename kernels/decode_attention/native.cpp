// decode_attention for float32 on the CPU.
//
// One task is one (row, key head): the query heads of that group read the row's keys once for the scores and its
// values once for the output, page by page, with a whole softmax in between. A task's arithmetic depends on its own
// row only, so neither other rows nor the number of threads change a bit of it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "vector_math.h"

namespace nb = nanobind;
using sprout::F32x4;
using sprout::F32x8;

namespace {

template <typename T, int Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Floats3 = Array<const float, 3>;
using Floats4 = Array<const float, 4>;
using Ids1 = Array<const int32_t, 1>;
using Ids2 = Array<const int32_t, 2>;

constexpr int64_t kSerialWork = 64 * 1024;  // multiply-adds below which more threads cost more than they give

// Keys or values of one head of one sequence, in runs of consecutive positions.
struct Pages {
    const float* head;
    const int32_t* table;
    int64_t page, stride, size;  // positions in a page, floats between positions, floats of the head

    template <typename Visit>
    void each(int64_t length, Visit visit) const {
        for (int64_t start = 0; start < length; start += page)
            visit(start, std::min(page, length - start), head + table[start / page] * page * stride);
    }
};

// Dot products of one or two query heads with four keys.
template <int Heads>
void dot4(const float* q, const float* const key[4], int64_t size, F32x4 out[Heads]) {
    F32x8 sum[Heads][4] = {};
    int64_t d = 0;
    for (; d + 8 <= size; d += 8) {
        for (int i = 0; i < 4; ++i) {
            const F32x8 k = sprout::load8(key[i] + d);
            for (int h = 0; h < Heads; ++h) sum[h][i] += sprout::load8(q + h * size + d) * k;
        }
    }
    for (int h = 0; h < Heads; ++h) {
        out[h] = sprout::sum_each(sum[h][0], sum[h][1], sum[h][2], sum[h][3]);
        for (int64_t tail = d; tail < size; ++tail)
            for (int i = 0; i < 4; ++i) out[h][i] += q[h * size + tail] * key[i][tail];
    }
}

// scores[h * width + position] of a run, four positions at a time: beyond the end the last key stands in for the
// missing ones, and up to three scores more are written.
template <int Heads>
void score_run(const float* q, const float* run, int64_t count, const Pages& keys, int64_t width, float* scores) {
    for (int64_t first = 0; first < count; first += 4) {
        const float* key[4];
        for (int64_t i = 0; i < 4; ++i) key[i] = run + std::min(first + i, count - 1) * keys.stride;
        F32x4 dots[Heads];
        dot4<Heads>(q, key, keys.size, dots);
        for (int h = 0; h < Heads; ++h) std::memcpy(scores + h * width + first, &dots[h], sizeof dots[h]);
    }
}

// out[h] += sum of weights[h * width + position] * value over a run, 8 * Vectors dimensions from d.
template <int Heads, int Vectors>
void weigh_run(const float* weights, const float* run, int64_t count, const Pages& values, int64_t width, int64_t d,
               float* out) {
    F32x8 sum[Heads][Vectors];
    for (int h = 0; h < Heads; ++h)
        for (int i = 0; i < Vectors; ++i) sum[h][i] = sprout::load8(out + h * values.size + d + 8 * i);
    for (int64_t position = 0; position < count; ++position) {
        const float* value = run + position * values.stride + d;
        for (int h = 0; h < Heads; ++h)
            for (int i = 0; i < Vectors; ++i)
                sum[h][i] += weights[h * width + position] * sprout::load8(value + 8 * i);
    }
    for (int h = 0; h < Heads; ++h)
        for (int i = 0; i < Vectors; ++i) sprout::store8(out + h * values.size + d + 8 * i, sum[h][i]);
}

template <int Heads>
void weigh_run(const float* weights, const float* run, int64_t count, const Pages& values, int64_t width, float* out) {
    int64_t d = 0;
    for (; d + 32 <= values.size; d += 32) weigh_run<Heads, 4>(weights, run, count, values, width, d, out);
    for (; d + 8 <= values.size; d += 8) weigh_run<Heads, 1>(weights, run, count, values, width, d, out);
    for (; d < values.size; ++d)
        for (int h = 0; h < Heads; ++h)
            for (int64_t position = 0; position < count; ++position)
                out[h * values.size + d] += weights[h * width + position] * run[position * values.stride + d];
}

// Turns scale * scores into softmax weights in place; `scores` has room for whole vectors.
void softmax(float* scores, int64_t length, float scale) {
    std::fill(scores + length, scores + (length + 7) / 8 * 8, -std::numeric_limits<float>::infinity());
    F32x8 peaks = sprout::splat8(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < length; i += 8) {
        const F32x8 scaled = scale * sprout::load8(scores + i);
        peaks = scaled > peaks ? scaled : peaks;
        sprout::store8(scores + i, scaled);
    }
    float peak = peaks[0];
    for (int lane = 1; lane < 8; ++lane) peak = std::max(peak, peaks[lane]);
    F32x8 mass = {};
    for (int64_t i = 0; i < length; i += 8) {
        const F32x8 weight = sprout::exp8(sprout::load8(scores + i) - peak);
        mass += weight;
        sprout::store8(scores + i, weight);
    }
    const float inverse = 1.0f / sprout::sum8(mass);
    for (int64_t i = 0; i < length; i += 8) sprout::store8(scores + i, inverse * sprout::load8(scores + i));
}

// Attention of the `group` query heads of one key head; `scores` is scratch of group * width floats.
void attend(const float* q, const Pages& keys, const Pages& values, int64_t group, int64_t length, float scale,
            int64_t width, float* scores, float* out) {
    const int64_t size = keys.size;
    keys.each(length, [&](int64_t start, int64_t count, const float* run) {
        int64_t h = 0;
        for (; h + 2 <= group; h += 2)
            score_run<2>(q + h * size, run, count, keys, width, scores + h * width + start);
        if (h < group) score_run<1>(q + h * size, run, count, keys, width, scores + h * width + start);
    });
    for (int64_t h = 0; h < group; ++h) softmax(scores + h * width, length, scale);
    std::fill_n(out, group * size, 0.0f);
    values.each(length, [&](int64_t start, int64_t count, const float* run) {
        int64_t h = 0;
        for (; h + 2 <= group; h += 2)
            weigh_run<2>(scores + h * width + start, run, count, values, width, out + h * size);
        if (h < group) weigh_run<1>(scores + h * width + start, run, count, values, width, out + h * size);
    });
}

void check(bool holds, const std::string& rule) {
    if (!holds) throw std::invalid_argument("decode_attention: " + rule);
}

// Longest length and sum of lengths, after checking everything that addresses memory.
std::pair<int64_t, int64_t> check_ranges(const Floats4& k_pages, const Ids2& page_table, const Ids1& sequence,
                                         const Ids1& length) {
    const int64_t pages = k_pages.shape(0), page = k_pages.shape(1);
    const int64_t sequences = page_table.shape(0), max_pages = page_table.shape(1);
    int64_t longest = 0, total = 0;
    for (size_t b = 0; b < sequence.size(); ++b) {
        const int64_t s = sequence.data()[b], n = length.data()[b];
        check(s >= 0 && s < sequences, "sequence must be in [0, " + std::to_string(sequences) + ")");
        check(n >= 0 && n <= max_pages * page, "length must be in [0, " + std::to_string(max_pages * page) + "]");
        for (int64_t i = 0; i * page < n; ++i) {
            const int32_t id = page_table.data()[s * max_pages + i];
            check(id >= 0 && id < pages, "pages in use must be in [0, " + std::to_string(pages) + ")");
        }
        longest = std::max(longest, n);
        total += n;
    }
    return {longest, total};
}

void decode_attention(Floats3 q, Floats4 k_pages, Floats4 v_pages, Ids2 page_table, Ids1 sequence, Ids1 length,
                      float scale, Array<float, 3> out, int threads) {
    const int64_t rows = q.shape(0), heads = q.shape(1), size = q.shape(2);
    const int64_t page = k_pages.shape(1), kv_heads = k_pages.shape(2), group = heads / kv_heads;
    const auto [longest, total] = check_ranges(k_pages, page_table, sequence, length);
    const bool parallel = threads > 1 && 2 * total * heads * size > kSerialWork;
    const int64_t max_pages = page_table.shape(1);

    nb::gil_scoped_release release;
#pragma omp parallel num_threads(threads) if (parallel)
    {
        const int64_t width = longest + 8;  // room for whole vectors at the end
        std::vector<float> scores(group * width);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < rows * kv_heads; ++task) {
            const int64_t row = task / kv_heads, head = task % kv_heads, at = (row * heads + head * group) * size;
            const int32_t* table = page_table.data() + sequence.data()[row] * max_pages;
            const Pages keys{k_pages.data() + head * size, table, page, kv_heads * size, size};
            const Pages values{v_pages.data() + head * size, table, page, kv_heads * size, size};
            attend(q.data() + at, keys, values, group, length.data()[row], scale, width, scores.data(),
                   out.data() + at);
        }
    }
}

}  // namespace

void bind_decode_attention(nb::module_& m) { m.def("decode_attention", &decode_attention); }
