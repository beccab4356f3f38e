// decode_attention for float32 and bfloat16 on the CPU: checks, blocks of rows, bindings; see block.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "block.h"

namespace nb = nanobind;
using namespace sprout;

namespace {

template <int Dims>
using Ids = nb::ndarray<const int32_t, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kSerialWork = 64 * 1024;  // multiply-adds below which more threads cost more than they give
constexpr int64_t kBlockRows = 96;          // so that packing a key costs little beside its products

void check(bool holds, const std::string& rule) {
    if (!holds) throw std::invalid_argument("decode_attention: " + rule);
}

// Everything that addresses memory.
void check_ranges(int64_t pages, int64_t page, const Ids<2>& page_table, const Ids<1>& sequence,
                  const Ids<1>& length) {
    const int64_t sequences = page_table.shape(0), max_pages = page_table.shape(1);
    for (size_t b = 0; b < sequence.size(); ++b) {
        const int64_t s = sequence.data()[b], n = length.data()[b];
        check(s >= 0 && s < sequences, "sequence must be in [0, " + std::to_string(sequences) + ")");
        check(n >= 0 && n <= max_pages * page, "length must be in [0, " + std::to_string(max_pages * page) + "]");
        for (int64_t i = 0; i * page < n; ++i) {
            const int32_t id = page_table.data()[s * max_pages + i];
            check(id >= 0 && id < pages, "pages in use must be in [0, " + std::to_string(pages) + ")");
        }
    }
}

// Starts of the blocks, and the end of the last: neighbouring rows of one sequence, `most` of them at most.
std::vector<int64_t> block_starts(const Ids<1>& sequence, int64_t most) {
    std::vector<int64_t> starts;
    const int64_t rows = sequence.size();
    for (int64_t row = 0; row < rows; ++row)
        if (row == 0 || sequence.data()[row] != sequence.data()[row - 1] || row - starts.back() == most)
            starts.push_back(row);
    starts.push_back(rows);
    return starts;
}

template <typename T>
void decode_attention(Strided<const T, 3> q, Strided<const T, 4> k_pages, Strided<const T, 4> v_pages, Ids<2> page_table,
                      Ids<1> sequence, Ids<1> length, double scale, Strided<T, 3> out, int threads) {
    const int64_t heads = q.shape(1), size = q.shape(2), page = k_pages.shape(1), kv_heads = k_pages.shape(2);
    const int64_t group = heads / kv_heads, most = std::max<int64_t>(1, kBlockRows / group);
    check_ranges(k_pages.shape(0), page, page_table, sequence, length);

    nb::gil_scoped_release release;
    const std::vector<int64_t> starts = block_starts(sequence, most);
    const int64_t blocks = starts.size() - 1;
    int64_t total = 0;
    for (size_t b = 0; b < length.size(); ++b) total += length.data()[b];
    const bool parallel = threads > 1 && 2 * total * heads * size > kSerialWork;
    const auto paged = [&](const Strided<const T, 4>& x, int64_t head, int64_t s) {
        return Paged<T>{x.data() + head * x.stride(2), page_table.data() + s * int64_t(page_table.shape(1)), page,
                        x.stride(0), x.stride(1)};
    };
#pragma omp parallel num_threads(threads) if (parallel)
    {
        PagedAttention<T> task(most * group, size, static_cast<float>(scale));
        // Prompts come after single rows: they go first, so that no thread is left with a large block.
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < blocks * kv_heads; ++n) {
            const int64_t block = blocks - 1 - n / kv_heads, head = n % kv_heads;
            const int64_t start = starts[block], stop = starts[block + 1];
            const Heads<const T> queries{q.data() + start * q.stride(0) + head * group * q.stride(1), q.stride(0),
                                         q.stride(1)};
            const Heads<T> outputs{out.data() + start * out.stride(0) + head * group * out.stride(1), out.stride(0),
                                   out.stride(1)};
            const int64_t s = sequence.data()[start];
            task.attend(length.data() + start, stop - start, group, queries, paged(k_pages, head, s),
                        paged(v_pages, head, s), outputs);
        }
    }
}

}  // namespace

void bind_decode_attention(nb::module_& m) {
    define(m, "decode_attention", &decode_attention<float>);
    define(m, "decode_attention", &decode_attention<BFloat16>);
}
