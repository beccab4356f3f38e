// swiglu on the CPU, in float32 arithmetic with the reference's rounding: one pass forward, one pass backward, one
// exponential per element in each.
#include <algorithm>

#include "rows.h"

namespace nb = nanobind;
using sprout::BFloat16;
using sprout::F32x8;
template <typename T>
using In = sprout::Strided<const T, 2>;
template <typename T>
using Out = sprout::Strided<T, 2>;

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

template <typename T>
void forward(In<T> gate, In<T> up, Out<T> out, int threads) {
    const int64_t size = gate.shape(1);
    each_row(gate.shape(0), size, threads, [&](int64_t r) {
        const T* g = gate.data() + r * gate.stride(0);
        const T* u = up.data() + r * up.stride(0);
        T* o = out.data() + r * out.stride(0);
        sprout::each8(size, [&](int64_t i, auto count) {
            const F32x8 x = sprout::load(g + i, count);
            const F32x8 activation = sprout::rounded<T>(x * sigmoid(x));
            sprout::store(o + i, activation * sprout::load(u + i, count), count);
        });
    });
}

template <typename T>
void backward(In<T> grad, In<T> gate, In<T> up, Out<T> grad_gate, Out<T> grad_up, int threads) {
    const int64_t size = gate.shape(1);
    each_row(gate.shape(0), size, threads, [&](int64_t r) {
        const T* d = grad.data() + r * grad.stride(0);
        const T* g = gate.data() + r * gate.stride(0);
        const T* u = up.data() + r * up.stride(0);
        T* dg = grad_gate.data() + r * grad_gate.stride(0);
        T* du = grad_up.data() + r * grad_up.stride(0);
        sprout::each8(size, [&](int64_t i, auto count) {
            const F32x8 x = sprout::load(g + i, count), upstream = sprout::load(d + i, count), s = sigmoid(x);
            const F32x8 d_activation = sprout::rounded<T>(upstream * sprout::load(u + i, count));
            sprout::store(du + i, upstream * sprout::rounded<T>(x * s), count);
            sprout::store(dg + i, d_activation * s * (1.0f + x * (1.0f - s)), count);
        });
    });
}

template <typename T>
void bind(nb::module_& m) {
    sprout::define(m, "swiglu_forward", &forward<T>);
    sprout::define(m, "swiglu_backward", &backward<T>);
}

}  // namespace

void bind_swiglu(nb::module_& m) {
    bind<float>(m);
    bind<BFloat16>(m);
}
