// Epilogue of selected_logprob's tiles on the CPU: a tile of logits is read from memory once and, in backward, written
// once. A row of a tile fits the first-level cache: the second look at it (the sum after the maximum) is cheap.
#include <cmath>
#include <limits>

#include "rows.h"

namespace nb = nanobind;
using sprout::F32x8;
using Tile = sprout::Strided<float, 2>;
using Targets = sprout::Strided<const int64_t, 1>;
using PerToken = sprout::Strided<const float, 1>;
using Running = sprout::Strided<float, 1>;

namespace {

// Divides a row of logits by its temperature, in place, and returns the largest.
float scaled_peak(float* z, int64_t size, float temperature) {
    const float lowest = std::numeric_limits<float>::lowest();
    F32x8 peaks = sprout::splat8(lowest);
    sprout::each8(size, [&](int64_t i, auto count) {
        F32x8 value = sprout::load(z + i, count);
        if (temperature != 1.0f) {
            value /= temperature;
            sprout::store(z + i, value, count);
        }
        value = sprout::keep(value, count, lowest);
        peaks = peaks > value ? peaks : value;
    });
    float peak = peaks[0];
    for (int lane = 1; lane < 8; ++lane) peak = peak > peaks[lane] ? peak : peaks[lane];
    return peak;
}

// Folds a tile of logits, whose first column is `start`, into what is known of its rows (see tiles.py).
template <bool Entropy>
void fold_row(float* z, int64_t size, float temperature, int64_t target, float& logit, float& peak, float& mass,
              float& moment) {
    const float tile_peak = scaled_peak(z, size, temperature);
    const float new_peak = tile_peak > peak ? tile_peak : peak;
    F32x8 masses = {}, moments = {};
    sprout::each8(size, [&](int64_t i, auto count) {
        const F32x8 below = sprout::load(z + i, count) - new_peak;
        const F32x8 e = sprout::exp8(below);
        masses += sprout::keep(e, count, 0.0f);
        if (Entropy) moments += sprout::keep(e * below, count, 0.0f);
    });
    const float shift = peak - new_peak, shrink = std::exp(shift);
    if (Entropy) moment = shrink * (moment + mass * shift) + sprout::sum8(moments);
    mass = shrink * mass + sprout::sum8(masses);
    peak = new_peak;
    if (target >= 0 && target < size) logit = z[target];
}

void fold(Tile z, int64_t start, Targets target, PerToken temperature, Running logit, Running peak, Running mass,
          Running moment, bool entropy, int threads) {
    const int64_t rows = z.shape(0), size = z.shape(1);
    nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > sprout::kSerialFloats)
    for (int64_t r = 0; r < rows; ++r) {
        const auto row = entropy ? fold_row<true> : fold_row<false>;
        row(z.data() + r * z.stride(0), size, temperature.data()[r], target.data()[r] - start, logit.data()[r],
            peak.data()[r], mass.data()[r], moment.data()[r]);
    }
}

// d(logits) = slope at the target, minus exp(z - peak) * (constant + entropy_slope * (z - peak)). `out` may be z.
template <typename T>
void d_logits(sprout::Strided<const float, 2> z, int64_t start, Targets target, PerToken temperature, PerToken peak,
              PerToken slope, PerToken constant, PerToken entropy_slope, sprout::Strided<T, 2> out, int threads) {
    const int64_t rows = z.shape(0), size = z.shape(1);
    nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > sprout::kSerialFloats)
    for (int64_t r = 0; r < rows; ++r) {
        const float* in = z.data() + r * z.stride(0);
        T* o = out.data() + r * out.stride(0);
        const float t = temperature.data()[r], top = peak.data()[r];
        const float c = constant.data()[r], s = entropy_slope.data()[r];
        const auto gradient = [&](F32x8 logits) {
            const F32x8 below = (t == 1.0f ? logits : logits / t) - top;
            return -sprout::exp8(below) * (c + s * below);
        };
        const int64_t at = target.data()[r] - start;
        const bool inside = at >= 0 && at < size;
        const float logit_at = inside ? in[at] : 0.0f;
        sprout::each8(size, [&](int64_t i, auto count) {
            sprout::store(o + i, gradient(sprout::load(in + i, count)), count);
        });
        if (inside) sprout::store(o + at, gradient(sprout::splat8(logit_at)) + slope.data()[r], 1);
    }
}

}  // namespace

void bind_selected_logprob(nb::module_& m) {
    sprout::define(m, "selected_logprob_fold", &fold);
    sprout::define(m, "selected_logprob_d_logits", &d_logits<float>);
    sprout::define(m, "selected_logprob_d_logits", &d_logits<sprout::BFloat16>);
}
