// Backward of tree_attention (FlashAttention-2, arXiv 2307.08691, algorithm 2), deterministic without atomics.
//
// With weights P = exp(S - lse) and D = rowsum(dO * O):   dV = P^T dO,   dS = P * (dO V^T - D),   dQ = dS K,   dK = dS^T Q.
// One task is a share of the blocks of queries under one key head. It alone owns their dQ and adds dK and dV in sums of
// its own; the sums of all shares are added in order at the end. Shares depend on the problem, never on the threads.
#pragma once

#include <cmath>

#include "problem.h"

namespace sprout {

template <typename T>
struct Gradients {
    Heads<T> queries, keys, values;
};

// Sums of dK and dV of one task, matrices [padded_keys, width] of panels.
struct KeySums {
    float* keys;
    float* values;
};

// out += x^T y over `count` rows from `first`: x [rows, 16 keys] one panel, y [rows, width] in panels, and out those 16
// rows of [padded_keys, width] in panels.
SPROUT_ALONE void add_transposed(const float* x, const float* y, int64_t rows, int64_t first, int64_t count,
                                 int64_t padded_keys, int64_t width, float* out) {
    for (int64_t c = 0; c < width; c += kPanel)
        for (int64_t key = 0; key < kPanel; key += kColumns) {
            Sums<kColumns> sum;
            sum.load(out + c * padded_keys + key * kPanel);
            sum.add_transposed_product(x + first * kPanel + key, y + c * rows + first * kPanel, count);
            sum.store(out + c * padded_keys + key * kPanel);
        }
}

template <typename T>
class Backward {
  public:
    Backward(const Problem& problem, const Heads<const T>& queries, const Packed& keys, const Packed& values,
             const Heads<const float>& out, const Heads<const float>& lse, const Heads<const T>& grad,
             const Heads<T>& grad_queries)
        : p_(problem), queries_(queries), grad_(grad), grad_queries_(grad_queries), out_(out), lse_(lse), keys_(keys),
          values_(values), query_(panels(p_.width())), upstream_(panels(p_.width())),
          grad_query_(panels(p_.width())), weights_(panels(kPanel)), grad_scores_(panels(kChunk * kPanel)),
          row_lse_(p_.block_rows()), row_dot_(p_.block_rows()) {}

    void propagate(const Block& block, int64_t head, const KeySums& sums) {
        rows_ = block.padded();
        load(block, head);
        p_.visibility.needed(block, needed_);
        for (size_t first = 0; first < needed_.size(); first += kChunk) {
            chunk_ = &needed_[first];
            count_ = std::min<int64_t>(kChunk, needed_.size() - first);
            for (int64_t slot = 0; slot < count_; ++slot) {
                grad_of_scores(block, head, slot);
                const int64_t first = chunk_[slot].begin * kRows, count = chunk_[slot].end * kRows - first;
                const int64_t at = chunk_[slot].panel * kPanel * kPanel;
                add_transposed(weights_.get(), upstream_.get(), rows_, first, count, p_.padded_keys(), p_.width(),
                               sums.values + at);
                add_transposed(grad_scores(slot, 0), query_.get(), rows_, first, count, p_.padded_keys(), p_.width(),
                               sums.keys + at);
            }
            add_chunk(grad_scores_.get(), rows_, chunk_, count_, keys_.rows(head), p_.padded_keys(), p_.width(),
                      grad_query_.get());
        }
        each_row(block, head, [&](int64_t row, int64_t i, int64_t query_head) {
            unpack_row(grad_query_.get(), p_.size, p_.scale, rows_, row, grad_queries_.at(p_.order[i], query_head));
        });
    }

  private:
    static constexpr int64_t kChunk = 4;  // panels

    Buffer panels(int64_t columns) const { return buffer(p_.block_rows() * columns); }
    float* grad_scores(int64_t slot, int64_t row) { return grad_scores_.get() + (slot * rows_ + row) * kPanel; }

    void load(const Block& block, int64_t head) {
        pack_block(p_, block, head, queries_, p_.scale, query_.get());
        pack_block(p_, block, head, grad_, 1.0f, upstream_.get());
        std::fill_n(grad_query_.get(), rows_ * p_.width(), 0.0f);
        std::fill(row_lse_.begin(), row_lse_.end(), 0.0f);
        std::fill(row_dot_.begin(), row_dot_.end(), 0.0f);
        each_row(block, head, [&](int64_t row, int64_t i, int64_t query_head) {
            const float lse = *lse_.at(p_.order[i], query_head);
            row_lse_[row] = std::isinf(lse) && lse < 0 ? 0 : lse;  // a row that sees nothing has weights 0 anyway
            row_dot_[row] = dot(out_.at(p_.order[i], query_head), grad_.at(p_.order[i], query_head));
        });
    }

    float dot(const float* x, const T* y) const {
        F32x8 sum = {};
        each8(p_.size, [&](int64_t d, auto count) { sum += sprout::load(x + d, count) * sprout::load(y + d, count); });
        return sum8(sum);
    }

    // weights_ and the slot of grad_scores_, tile by tile.
    void grad_of_scores(const Block& block, int64_t head, int64_t slot) {
        const Needed& needed = chunk_[slot];
        const int64_t at = needed.panel * p_.width() * kPanel;
        for (int64_t tile = needed.begin; tile < needed.end; ++tile) {
            float* weights = weights_.get() + tile * kRows * kPanel;
            float* grads = grad_scores(slot, tile * kRows);
            tile_product(query_.get(), rows_, tile, keys_.columns(head) + at, p_.width(), weights);
            tile_product(upstream_.get(), rows_, tile, values_.columns(head) + at, p_.width(), grads);
            for (int64_t i = 0; i < kRows; ++i) {
                const int64_t row = tile * kRows + i;
                for (int64_t half = 0; half < kPanel; half += 8, weights += 8, grads += 8) {
                    F32x8 scores = load8(weights) - row_lse_[row];
                    if (!needed.full)
                        scores = p_.visibility.masked(scores, needed.panel, half, query_of(block, row));
                    const F32x8 weight = exp8(scores);
                    store8(weights, weight);
                    store8(grads, weight * (load8(grads) - row_dot_[row]));
                }
            }
        }
    }

    static int32_t query_of(const Block& block, int64_t row) {
        return static_cast<int32_t>(block.start + row / block.group);
    }

    const Problem& p_;
    Heads<const T> queries_, grad_;
    Heads<T> grad_queries_;
    Heads<const float> out_, lse_;
    const Packed& keys_;
    const Packed& values_;
    Buffer query_, upstream_, grad_query_;  // [rows, width]
    Buffer weights_, grad_scores_;          // [rows, 16], [rows, keys of a chunk]
    std::vector<float> row_lse_, row_dot_;
    std::vector<Needed> needed_;
    const Needed* chunk_ = nullptr;
    int64_t rows_ = 0, count_ = 0;
};

// Cuts the blocks into at most `count` runs of about equal work: [shares + 1] ascending, from 0 to all blocks.
inline std::vector<int64_t> shares(const Problem& p, int64_t count) {
    std::vector<int64_t> work(p.blocks() + 1), bounds{0};
    std::vector<Needed> needed;
    for (int64_t i = 0; i < p.blocks(); ++i) {
        p.visibility.needed(p.block(i), needed);
        work[i + 1] = work[i];
        for (const Needed& panel : needed) work[i + 1] += panel.end - panel.begin;
    }
    for (int64_t share = 1; share < count; ++share) {
        const auto end = std::lower_bound(work.begin(), work.end(), work.back() * share / count);
        if (end - work.begin() > bounds.back()) bounds.push_back(end - work.begin());
    }
    if (bounds.back() < p.blocks()) bounds.push_back(p.blocks());
    return bounds;
}

// Writes the sums of all shares of one key head, added in order.
template <typename T>
void write_sums(const Problem& p, const float* sums, int64_t share_stride, int64_t share_count, int64_t head,
                const Heads<T>& out) {
    std::vector<float> total(p.width());
    const int64_t n = p.padded_keys();
    for (int64_t key = 0; key < p.keys; ++key) {
        for (int64_t d = 0; d < p.width(); d += 8) {
            F32x8 sum = {};
            const int64_t at = (d / kPanel * n + key) * kPanel + d % kPanel;
            for (int64_t share = 0; share < share_count; ++share) sum += load8(sums + share * share_stride + at);
            store8(&total[d], sum);
        }
        each8(p.size, [&](int64_t d, auto count) { store(out.at(key, head) + d, load(&total[d], count), count); });
    }
}

template <typename T>
void attention_backward(const Problem& p, const Heads<const T>& queries, const Heads<const T>& keys, const Heads<const T>& values,
              const Heads<const float>& out, const Heads<const float>& lse, const Heads<const T>& grad,
              const Gradients<T>& gradients, int threads) {
    constexpr int64_t kTasks = 16;
    const Packed packed_keys = pack(p, keys, true, threads), packed_values = pack(p, values, true, threads);
    const std::vector<int64_t> bounds = shares(p, std::max<int64_t>(1, kTasks / p.key_heads));
    const int64_t share_count = bounds.size() - 1, floats = p.head_floats(), share_stride = 2 * p.key_heads * floats;
    const Buffer sums = buffer(share_count * share_stride);  // [shares, key heads, dK and dV]
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Backward<T> task(p, queries, packed_keys, packed_values, out, lse, grad, gradients.queries);
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < share_count * p.key_heads; ++n) {
            const int64_t head = n % p.key_heads, share = n / p.key_heads;
            float* own = sums.get() + n * 2 * floats;
            std::fill_n(own, 2 * floats, 0.0f);
            for (int64_t i = bounds[share]; i < bounds[share + 1]; ++i)
                task.propagate(p.block(i), head, {own, own + floats});
        }
#pragma omp for
        for (int64_t head = 0; head < p.key_heads; ++head) {
            const float* first = sums.get() + head * 2 * floats;
            write_sums(p, first, share_stride, share_count, head, gradients.keys);
            write_sums(p, first + floats, share_stride, share_count, head, gradients.values);
        }
    }
}

}  // namespace sprout
