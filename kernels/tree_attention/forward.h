// Forward of tree_attention: one task is a block of queries under one key head.
//
// Online softmax over chunks of panels of keys: scores of the whole chunk, its softmax with the running peak and mass,
// and the weighted sum of its values.
#pragma once

#include <cmath>

#include "problem.h"

namespace sprout {

template <typename T>
class Forward {
  public:
    Forward(const Problem& problem, const Heads<const T>& queries, const Packed& keys, const Packed& values,
            const Heads<float>& out, const Heads<float>& lse)
        : p_(problem), queries_(queries), out_(out), lse_(lse), keys_(keys), values_(values),
          query_(buffer(p_.block_rows() * p_.width())), sum_(buffer(p_.block_rows() * p_.width())),
          scores_(buffer(kChunk * p_.block_rows() * kPanel)), peak_(p_.block_rows()),
          mass_(p_.block_rows()) {}

    void attend(const Block& block, int64_t head) {
        rows_ = block.padded();
        pack_block(p_, block, head, queries_, p_.scale, query_.get());
        std::fill_n(sum_.get(), rows_ * p_.width(), 0.0f);
        std::fill(peak_.begin(), peak_.end(), std::numeric_limits<float>::lowest());
        std::fill(mass_.begin(), mass_.end(), 0.0f);
        p_.visibility.needed(block, needed_);
        for (size_t first = 0; first < needed_.size(); first += kChunk) {
            chunk_ = &needed_[first];
            count_ = std::min<int64_t>(kChunk, needed_.size() - first);
            for (int64_t slot = 0; slot < count_; ++slot) score(block, slot, keys_.columns(head));
            for (int64_t tile = 0; tile < rows_ / kRows; ++tile) soften(tile);
            add_chunk(scores_.get(), rows_, chunk_, count_, values_.rows(head), p_.padded_keys(), p_.width(), sum_.get());
        }
        each_row(block, head, [&](int64_t row, int64_t i, int64_t query_head) {
            const float inverse = mass_[row] == 0 ? 0 : 1 / mass_[row];
            unpack_row(sum_.get(), p_.size, inverse, rows_, row, out_.at(p_.order[i], query_head));
            *lse_.at(p_.order[i], query_head) =
                mass_[row] == 0 ? -std::numeric_limits<float>::infinity() : peak_[row] + std::log(mass_[row]);
        });
    }

  private:
    static constexpr int64_t kChunk = 8;  // panels

    float* scores(int64_t slot, int64_t row) { return scores_.get() + (slot * rows_ + row) * kPanel; }

    void score(const Block& block, int64_t slot, const float* columns) {
        const Needed& needed = chunk_[slot];
        const float* panel = columns + needed.panel * p_.width() * kPanel;
        for (int64_t tile = needed.begin; tile < needed.end; ++tile)
            tile_product(query_.get(), rows_, tile, panel, p_.width(), scores(slot, tile * kRows));
        if (needed.full) return;
        for (int64_t row = needed.begin * kRows; row < needed.end * kRows; ++row)
            for (int64_t half = 0; half < kPanel; half += 8) {
                float* s = scores(slot, row) + half;
                const auto query = static_cast<int32_t>(block.start + row / block.group);
                store8(s, p_.visibility.masked(load8(s), needed.panel, half, query));
            }
    }

    // Turns a tile's scores into weights, and lowers what has been summed to the new peak.
    void soften(int64_t tile) {
        float* seen[kChunk];
        int64_t count = 0;
        for (int64_t slot = 0; slot < count_; ++slot)
            if (chunk_[slot].begin <= tile && tile < chunk_[slot].end) seen[count++] = scores(slot, tile * kRows);
        if (count == 0) return;
        for (int64_t i = 0; i < kRows; ++i) soften_row(tile * kRows + i, seen, count, i * kPanel);
    }

    void soften_row(int64_t row, float* const* seen, int64_t count, int64_t at) {
        F32x8 peaks = splat8(peak_[row]);
        for (int64_t n = 0; n < count; ++n)
            for (int64_t half = 0; half < kPanel; half += 8) {
                const F32x8 s = load8(seen[n] + at + half);
                peaks = s > peaks ? s : peaks;
            }
        const float peak = max8(peaks);
        F32x8 mass = {};
        for (int64_t n = 0; n < count; ++n)
            for (int64_t half = 0; half < kPanel; half += 8) {
                const F32x8 weight = exp8(load8(seen[n] + at + half) - peak);
                mass += weight;
                store8(seen[n] + at + half, weight);
            }
        if (peak > peak_[row]) {
            const float decay = exp8(splat8(peak_[row] - peak))[0];
            for (int64_t c = 0; c < p_.width(); c += kPanel)
                for (int64_t half = 0; half < kPanel; half += 8) {
                    float* sum = sum_.get() + c * rows_ + row * kPanel + half;
                    store8(sum, decay * load8(sum));
                }
            mass_[row] *= decay;
            peak_[row] = peak;
        }
        mass_[row] += sum8(mass);
    }

    const Problem& p_;
    Heads<const T> queries_;
    Heads<float> out_, lse_;
    const Packed& keys_;
    const Packed& values_;
    Buffer query_, sum_, scores_;  // panels of [rows, width], [rows, width], [rows, keys of a chunk]
    std::vector<float> peak_, mass_;
    std::vector<Needed> needed_;
    const Needed* chunk_ = nullptr;
    int64_t rows_ = 0, count_ = 0;
};

template <typename T>
void attention_forward(const Problem& p, const Heads<const T>& queries, const Heads<const T>& keys,
               const Heads<const T>& values, const Heads<float>& out, const Heads<float>& lse, int threads) {
    const Packed packed_keys = pack(p, keys, true, threads), packed_values = pack(p, values, false, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Forward<T> task(p, queries, packed_keys, packed_values, out, lse);
        // Late blocks see the most keys: they come first, so that no thread is left with a large one.
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = p.blocks() * p.key_heads - 1; n >= 0; --n) task.attend(p.block(n / p.key_heads), n % p.key_heads);
    }
}

}  // namespace sprout
