// rms_norm on the CPU, in float32 arithmetic: a row is read from memory once forward and once backward.
#include <algorithm>
#include <cmath>

#include "rows.h"

namespace nb = nanobind;
using sprout::F32x8;
template <typename T>
using In = sprout::Strided<const T, 2>;
template <typename T>
using Out = sprout::Strided<T, 2>;
template <typename T>
using Vector = sprout::Strided<const T, 1>;

namespace {

template <typename T>
void forward(In<T> x, Vector<T> weight, float eps, Out<T> out, sprout::Strided<float, 1> inverse_rms, int threads) {
    const int64_t rows = x.shape(0), size = x.shape(1);
    const T* w = weight.data();
    nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > sprout::kSerialFloats)
    for (int64_t r = 0; r < rows; ++r) {
        const T* in = x.data() + r * x.stride(0);
        F32x8 squares = {};
        sprout::each8(size, [&](int64_t i, auto count) {
            const F32x8 value = sprout::load(in + i, count);
            squares += value * value;
        });
        const float scale = 1.0f / std::sqrt(sprout::sum8(squares) / static_cast<float>(size) + eps);
        inverse_rms.data()[r] = scale;
        T* o = out.data() + r * out.stride(0);
        sprout::each8(size, [&](int64_t i, auto count) {
            const F32x8 normalised = sprout::rounded<T>(sprout::load(in + i, count) * scale);
            sprout::store(o + i, normalised * sprout::load(w + i, count), count);
        });
    }
}

// One row of d(x_i) = s (w_i g_i - x_i s^2 mean(w g x)); adds the row's x_i s g_i to grad_weight.
template <typename T>
void backward_row(const T* g, const T* x, const T* w, float scale, int64_t size, T* grad_x, float* grad_weight) {
    F32x8 dots = {};
    sprout::each8(size, [&](int64_t i, auto count) {
        const F32x8 product = sprout::load(g + i, count) * sprout::load(x + i, count);
        dots += product * sprout::load(w + i, count);
        sprout::store(grad_weight + i, sprout::load(grad_weight + i, count) + product * scale, count);
    });
    const float projection = sprout::sum8(dots) / static_cast<float>(size) * scale * scale * scale;
    sprout::each8(size, [&](int64_t i, auto count) {
        const F32x8 direct = sprout::load(g + i, count) * sprout::load(w + i, count) * scale;
        sprout::store(grad_x + i, direct - sprout::load(x + i, count) * projection, count);
    });
}

// Row c of grad_weight gets the sum of its share of the rows: the shares do not depend on the number of threads.
template <typename T>
void backward(In<T> grad, In<T> x, Vector<T> weight, Vector<float> inverse_rms, Out<T> grad_x, Out<float> grad_weight,
              int threads) {
    const int64_t rows = x.shape(0), size = x.shape(1), shares = grad_weight.shape(0);
    const int64_t share = (rows + shares - 1) / shares;
    nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > sprout::kSerialFloats)
    for (int64_t c = 0; c < shares; ++c) {
        float* sum = grad_weight.data() + c * grad_weight.stride(0);
        std::fill_n(sum, size, 0.0f);
        for (int64_t r = c * share; r < std::min(rows, (c + 1) * share); ++r)
            backward_row(grad.data() + r * grad.stride(0), x.data() + r * x.stride(0), weight.data(),
                         inverse_rms.data()[r], size, grad_x.data() + r * grad_x.stride(0), sum);
    }
}

template <typename T>
void bind(nb::module_& m) {
    sprout::define(m, "rms_norm_forward", &forward<T>);
    sprout::define(m, "rms_norm_backward", &backward<T>);
}

}  // namespace

void bind_rms_norm(nb::module_& m) {
    bind<float>(m);
    bind<sprout::BFloat16>(m);
}
