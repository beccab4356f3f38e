// sample for float32 on the CPU: one task is one row.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "rows.h"

namespace nb = nanobind;
using sprout::F32x8;

namespace {

template <typename T>
using Column = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr float kProbabilityUnits = 1125899906842624.0f;  // probabilities are multiples of 2^-50
constexpr int64_t kSerialWork = 16 * 1024;                // logits below which more threads cost more than they give

// SplitMix64's finaliser of 64 bits (Stafford's variant 13 of MurmurHash3's).
uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Output number `position` of the SplitMix64 stream seeded with mix(key), as a number in [0, 1).
double uniform(int64_t key, int64_t position) {
    const uint64_t bits = mix(mix(key) + (static_cast<uint64_t>(position) + 1) * 0x9E3779B97F4A7C15u);
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

// Scratch of one thread: scores and weights padded to whole vectors, and integer probabilities.
struct Row {
    std::vector<float> weight;
    std::vector<int64_t> mass, token;

    explicit Row(int64_t vocabulary) : weight(vocabulary + 8), mass(vocabulary), token(vocabulary) {}

    // Fills `weight` with exp(z - max z) for z = logits / temperature; returns their sum, and max z in `peak`.
    double exponentials(const float* logits, float temperature, float& peak) {
        const int64_t n = mass.size();
        std::copy_n(logits, n, weight.begin());
        std::fill(weight.begin() + n, weight.end(), -std::numeric_limits<float>::infinity());
        F32x8 peaks = sprout::load8(weight.data()) / temperature;
        for (int64_t i = 0; i < n; i += 8) {
            const F32x8 z = sprout::load8(&weight[i]) / temperature;
            peaks = z > peaks ? z : peaks;
            sprout::store8(&weight[i], z);
        }
        peak = peaks[0];
        for (int lane = 1; lane < 8; ++lane) peak = std::max(peak, peaks[lane]);
        double sum = 0.0;
        for (int64_t i = 0; i < n; i += 8) {
            const F32x8 e = sprout::exp8(sprout::load8(&weight[i]) - peak);
            sprout::store8(&weight[i], e);
            sum += sprout::sum8(e);
        }
        return sum;
    }

    // Sets the masses outside the nucleus to 0: all but the most probable tokens that together reach top_p.
    void keep_nucleus(double top_p) {
        const double enough = top_p * static_cast<double>(std::accumulate(mass.begin(), mass.end(), int64_t{0}));
        const auto less = [this](int64_t a, int64_t b) { return mass[a] != mass[b] ? mass[a] < mass[b] : a > b; };
        std::iota(token.begin(), token.end(), 0);
        std::make_heap(token.begin(), token.end(), less);
        auto end = token.end();
        for (int64_t reached = 0; end != token.begin() && static_cast<double>(reached) < enough; --end) {
            reached += mass[token.front()];
            std::pop_heap(token.begin(), end, less);
        }
        std::for_each(token.begin(), end, [this](int64_t id) { mass[id] = 0; });
    }

    // First token whose cumulative mass exceeds u times the total.
    int64_t draw(double u) const {
        const double total = static_cast<double>(std::accumulate(mass.begin(), mass.end(), int64_t{0}));
        int64_t goal = static_cast<int64_t>(u * total), id = 0;
        while ((goal -= mass[id]) >= 0) ++id;
        return id;
    }

    // The token, and its log-prob before top_p.
    int64_t choose(const float* logits, float temperature, double top_p, double u, float& logprob) {
        float peak;
        const double sum = exponentials(logits, temperature == 0.0f ? 1.0f : temperature, peak);
        int64_t id;
        if (temperature == 0.0f) {
            id = std::max_element(logits, logits + mass.size()) - logits;
        } else {
            const float scale = static_cast<float>(kProbabilityUnits / sum);
            for (size_t i = 0; i < mass.size(); ++i) mass[i] = static_cast<int64_t>(weight[i] * scale);
            if (top_p < 1.0) keep_nucleus(top_p);
            id = draw(u);
        }
        const float z = temperature == 0.0f ? logits[id] : logits[id] / temperature;
        logprob = (z - peak) - static_cast<float>(std::log(sum));
        return id;
    }
};

void sample(Logits logits, Column<const float> temperature, Column<const double> top_p, Column<const int64_t> key,
            Column<const int64_t> position, Column<int64_t> token, Column<float> logprob, int threads) {
    const int64_t rows = logits.shape(0), vocabulary = logits.shape(1);
    const bool parallel = threads > 1 && rows * vocabulary > kSerialWork;
    nb::gil_scoped_release release;
#pragma omp parallel num_threads(threads) if (parallel)
    {
        Row row(vocabulary);
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < rows; ++b) {
            const double u = uniform(key.data()[b], position.data()[b]);
            token.data()[b] = row.choose(logits.data() + b * vocabulary, temperature.data()[b], top_p.data()[b], u,
                                         logprob.data()[b]);
        }
    }
}

}  // namespace

void bind_sample(nb::module_& m) { sprout::define(m, "sample", &sample); }
