// rotary on the CPU, in float32 arithmetic; `direction` -1 is the backward.
#include "rows.h"

namespace nb = nanobind;
using sprout::F32x8;
using Matrix = sprout::Strided<const float, 2>;

namespace {

template <typename T>
void rotate(sprout::Strided<const T, 3> x, Matrix cos, Matrix sin, sprout::Strided<T, 3> out, float direction,
            int threads) {
    const int64_t rows = x.shape(0), heads = x.shape(1), half = x.shape(2) / 2;
    nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) if (threads > 1 && 2 * rows * heads * half > sprout::kSerialFloats)
    for (int64_t r = 0; r < rows; ++r) {
        const float* c = cos.data() + r * cos.stride(0);
        const float* s = sin.data() + r * sin.stride(0);
        for (int64_t h = 0; h < heads; ++h) {
            const T* in = x.data() + r * x.stride(0) + h * x.stride(1);
            T* o = out.data() + r * out.stride(0) + h * out.stride(1);
            sprout::each8(half, [&](int64_t i, auto count) {
                const F32x8 first = sprout::load(in + i, count), second = sprout::load(in + half + i, count);
                const F32x8 cosine = sprout::load(c + i, count), sine = direction * sprout::load(s + i, count);
                sprout::store(o + i, first * cosine - second * sine, count);
                sprout::store(o + half + i, second * cosine + first * sine, count);
            });
        }
    }
}

}  // namespace

void bind_rotary(nb::module_& m) {
    sprout::define(m, "rotary", &rotate<float>);
    sprout::define(m, "rotary", &rotate<sprout::BFloat16>);
}
