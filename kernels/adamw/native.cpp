// adamw on the CPU: one pass over memory, all tensors in one parallel loop over blocks of equal size.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.h"

namespace nb = nanobind;
using sprout::BFloat16;
template <typename T>
using Flats = std::vector<nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

// A list of arrays is as exact as its arrays.
template <typename T>
constexpr bool sprout::is_array<std::vector<T>> = sprout::is_array<T>;

namespace {

constexpr int64_t kBlock = 8192;  // elements; 128 KiB of weights and state, a fair share for a thread

struct Coefficients {
    float decay, grad_scale, beta1, beta2, step_size, inverse_root_correction2, eps;
};

template <typename Grad>
struct Block {
    float* __restrict__ param;
    const Grad* __restrict__ grad;
    float* __restrict__ mean;
    float* __restrict__ square;
    int64_t size;
};

inline float as_float(float x) { return x; }

inline float as_float(BFloat16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename Grad>
void update(const Block<Grad>& block, const Coefficients& c) {
    float* __restrict__ param = block.param;
    const Grad* __restrict__ grad = block.grad;
    float* __restrict__ mean = block.mean;
    float* __restrict__ square = block.square;
    for (int64_t i = 0; i < block.size; ++i) {
        const float g = as_float(grad[i]) * c.grad_scale;
        const float m = mean[i] * c.beta1 + g * (1.0f - c.beta1);
        const float v = square[i] * c.beta2 + g * g * (1.0f - c.beta2);
        mean[i] = m;
        square[i] = v;
        param[i] = param[i] * c.decay - c.step_size * m / (std::sqrt(v) * c.inverse_root_correction2 + c.eps);
    }
}

template <typename Grad>
void adamw(Flats<float> params, Flats<const Grad> grads, Flats<float> means, Flats<float> squares, double beta1,
           double beta2, int step, double lr, double eps, double weight_decay, double grad_scale, int threads) {
    std::vector<Block<Grad>> blocks;
    for (size_t n = 0; n < params.size(); ++n) {
        const int64_t size = params[n].shape(0);
        for (int64_t start = 0; start < size; start += kBlock)
            blocks.push_back({params[n].data() + start, grads[n].data() + start, means[n].data() + start,
                              squares[n].data() + start, std::min(kBlock, size - start)});
    }
    const Coefficients c = {static_cast<float>(1.0 - lr * weight_decay),
                            static_cast<float>(grad_scale),
                            static_cast<float>(beta1),
                            static_cast<float>(beta2),
                            static_cast<float>(lr / (1.0 - std::pow(beta1, step))),
                            static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(beta2, step))),
                            static_cast<float>(eps)};
    nb::gil_scoped_release release;
    const int64_t count = static_cast<int64_t>(blocks.size());
#pragma omp parallel for num_threads(threads) if (threads > 1 && count > 2)
    for (int64_t b = 0; b < count; ++b) update(blocks[b], c);
}

}  // namespace

void bind_adamw(nb::module_& m) {
    sprout::define(m, "adamw", &adamw<float>);
    sprout::define(m, "adamw", &adamw<BFloat16>);
}
