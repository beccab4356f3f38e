// swiglu for float32 on the CPU: one pass forward, one pass backward, one exponential per element in each.
#include <algorithm>

#include "rows.h"

namespace nb = nanobind;
using sprout::F32x8;
using In = sprout::Strided<const float, 2>;
using Out = sprout::Strided<float, 2>;

namespace {

inline F32x8 sigmoid(F32x8 x) {
    const F32x8 negated = -x;
    return 1.0f / (1.0f + sprout::exp8(negated > 88.0f ? sprout::splat8(88.0f) : negated));
}

template <typename Row>
void each_row(int64_t rows, int64_t size, int threads, Row row) {
    nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > sprout::kSerialFloats)
    for (int64_t r = 0; r < rows; ++r) row(r);
}

void forward(In gate, In up, Out out, int threads) {
    const int64_t size = gate.shape(1);
    each_row(gate.shape(0), size, threads, [&](int64_t r) {
        const float* g = gate.data() + r * gate.stride(0);
        const float* u = up.data() + r * up.stride(0);
        float* o = out.data() + r * out.stride(0);
        sprout::each8(size, [&](int64_t i, auto count) {
            const F32x8 x = sprout::load(g + i, count);
            sprout::store(o + i, x * sigmoid(x) * sprout::load(u + i, count), count);
        });
    });
}

void backward(In grad, In gate, In up, Out grad_gate, Out grad_up, int threads) {
    const int64_t size = gate.shape(1);
    each_row(gate.shape(0), size, threads, [&](int64_t r) {
        const float* d = grad.data() + r * grad.stride(0);
        const float* g = gate.data() + r * gate.stride(0);
        const float* u = up.data() + r * up.stride(0);
        float* dg = grad_gate.data() + r * grad_gate.stride(0);
        float* du = grad_up.data() + r * grad_up.stride(0);
        sprout::each8(size, [&](int64_t i, auto count) {
            const F32x8 x = sprout::load(g + i, count), upstream = sprout::load(d + i, count), s = sigmoid(x);
            sprout::store(du + i, upstream * x * s, count);
            sprout::store(dg + i, upstream * sprout::load(u + i, count) * s * (1.0f + x * (1.0f - s)), count);
        });
    });
}

}  // namespace

void bind_swiglu(nb::module_& m) {
    m.def("swiglu_forward", &forward);
    m.def("swiglu_backward", &backward);
}
