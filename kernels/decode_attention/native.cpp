// decode_attention for float32 on the CPU.
//
// One task is one (row, key head): the query heads of that group read the row's keys once for the scores and its
// values once for the output, with a whole softmax between the two passes. A task's arithmetic depends on its own
// row only, so neither other rows nor the number of threads change a bit of it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "vector_math.h"

namespace nb = nanobind;
using sprout::F32x8;

namespace {

template <typename T, int Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Floats3 = Array<const float, 3>;
using Floats4 = Array<const float, 4>;
using Ids1 = Array<const int32_t, 1>;
using Ids2 = Array<const int32_t, 2>;

constexpr int64_t kSerialWork = 64 * 1024;  // multiply-adds below which more threads cost more than they give

// Keys or values of one head of one sequence, visited position by position.
struct Pages {
    const float* head;
    const int32_t* table;
    int64_t page, stride, size;  // positions in a page, floats between positions, floats of the head

    template <typename Visit>
    void each(int64_t length, Visit visit) const {
        for (int64_t start = 0; start < length; start += page) {
            const float* at = head + table[start / page] * page * stride;
            const int64_t stop = std::min(length, start + page);
            for (int64_t position = start; position < stop; ++position, at += stride) visit(position, at);
        }
    }
};

template <int Heads>
void dot(const float* q, const float* key, int64_t size, float* out) {
    F32x8 even[Heads] = {}, odd[Heads] = {};
    int64_t d = 0;
    for (; d + 16 <= size; d += 16) {
        const F32x8 low = sprout::load8(key + d), high = sprout::load8(key + d + 8);
        for (int h = 0; h < Heads; ++h) {
            even[h] += sprout::load8(q + h * size + d) * low;
            odd[h] += sprout::load8(q + h * size + d + 8) * high;
        }
    }
    for (int h = 0; h < Heads; ++h) {
        out[h] = sprout::sum8(even[h] + odd[h]);
        for (int64_t tail = d; tail < size; ++tail) out[h] += q[h * size + tail] * key[tail];
    }
}

// One slice of 8 * Vectors dimensions of the output, accumulated in registers over all positions.
template <int Heads, int Vectors>
void weigh(const float* weights, const Pages& values, int64_t length, int64_t d, float* out) {
    F32x8 sum[Heads][Vectors] = {};
    values.each(length, [&](int64_t position, const float* value) {
        F32x8 v[Vectors];
        for (int i = 0; i < Vectors; ++i) v[i] = sprout::load8(value + d + 8 * i);
        for (int h = 0; h < Heads; ++h)
            for (int i = 0; i < Vectors; ++i) sum[h][i] += weights[h * length + position] * v[i];
    });
    for (int h = 0; h < Heads; ++h)
        for (int i = 0; i < Vectors; ++i) sprout::store8(out + h * values.size + d + 8 * i, sum[h][i]);
}

template <int Heads>
void weigh_tail(const float* weights, const Pages& values, int64_t length, int64_t d, float* out) {
    float sum[Heads] = {};
    values.each(length, [&](int64_t position, const float* value) {
        for (int h = 0; h < Heads; ++h) sum[h] += weights[h * length + position] * value[d];
    });
    for (int h = 0; h < Heads; ++h) out[h * values.size + d] = sum[h];
}

// Turns scores into softmax weights in place.
void softmax(float* scores, int64_t length) {
    float peak = scores[0];
    for (int64_t i = 1; i < length; ++i) peak = std::max(peak, scores[i]);
    F32x8 lanes = {};
    float mass = 0.0f;
    for (int64_t i = 0; i < length; ++i) scores[i] = sprout::fast_exp(scores[i] - peak);
    int64_t i = 0;
    for (; i + 8 <= length; i += 8) lanes += sprout::load8(scores + i);
    for (; i < length; ++i) mass += scores[i];
    const float inverse = 1.0f / (mass + sprout::sum8(lanes));
    for (int64_t j = 0; j < length; ++j) scores[j] *= inverse;
}

// Attention of Heads query heads that share one key head; `scores` is scratch of Heads * length floats.
template <int Heads>
void attend(const float* q, const Pages& keys, const Pages& values, int64_t length, float scale, float* scores,
            float* out) {
    keys.each(length, [&](int64_t position, const float* key) {
        float dots[Heads];
        dot<Heads>(q, key, keys.size, dots);
        for (int h = 0; h < Heads; ++h) scores[h * length + position] = scale * dots[h];
    });
    for (int h = 0; h < Heads; ++h) softmax(scores + h * length, length);
    int64_t d = 0;
    for (; d + 16 <= keys.size; d += 16) weigh<Heads, 2>(scores, values, length, d, out);
    for (; d + 8 <= keys.size; d += 8) weigh<Heads, 1>(scores, values, length, d, out);
    for (; d < keys.size; ++d) weigh_tail<Heads>(scores, values, length, d, out);
}

void attend_group(const float* q, const Pages& keys, const Pages& values, int64_t group, int64_t length, float scale,
                  float* scores, float* out) {
    for (int64_t first = 0; first < group;) {
        const int64_t heads = std::min<int64_t>(4, group - first);
        const auto kernel = heads == 4 ? attend<4> : heads == 3 ? attend<3> : heads == 2 ? attend<2> : attend<1>;
        kernel(q + first * keys.size, keys, values, length, scale, scores, out + first * keys.size);
        first += heads;
    }
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
        std::vector<float> scores(std::min<int64_t>(4, group) * longest);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < rows * kv_heads; ++task) {
            const int64_t row = task / kv_heads, head = task % kv_heads, at = row * heads + head * group;
            const int32_t* table = page_table.data() + sequence.data()[row] * max_pages;
            const Pages keys{k_pages.data() + head * size, table, page, kv_heads * size, size};
            const Pages values{v_pages.data() + head * size, table, page, kv_heads * size, size};
            const int64_t n = length.data()[row];
            if (n == 0)
                std::fill_n(out.data() + at * size, group * size, 0.0f);
            else
                attend_group(q.data() + at * size, keys, values, group, n, scale, scores.data(),
                             out.data() + at * size);
        }
    }
}

}  // namespace

void bind_decode_attention(nb::module_& m) { m.def("decode_attention", &decode_attention); }
