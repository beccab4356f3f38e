// tree_attention for float32 and bfloat16 on the CPU: bindings; see problem.h, forward.h and backward.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "backward.h"
#include "forward.h"

namespace nb = nanobind;
using namespace sprout;

namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array = Strided<T, 3>;
template <typename T>
using Matrix = Strided<T, 2>;

template <typename X>
auto heads(const X& x) {
    return Heads<std::remove_pointer_t<decltype(x.data())>>{x.data(), x.stride(0), x.stride(1)};
}

// order [queries]; first, last [keys]: see Problem and Visibility.
template <typename T>
Problem problem(const Array<const T>& q, const Array<const T>& k, const Ids& order, float scale,
                const Visibility& visibility) {
    const int64_t key_heads = k.shape(1), group = q.shape(1) / key_heads;
    return {int64_t(q.shape(0)), int64_t(k.shape(0)), key_heads, group, int64_t(k.shape(2)), scale, order.data(),
            visibility};
}

template <typename T>
void forward(Array<const T> q, Array<const T> k, Array<const T> v, Ids order, Ids first, Ids last,
             double scale, Array<float> out, Matrix<float> lse, int threads) {
    nb::gil_scoped_release release;
    const Visibility visibility(first.data(), last.data(), first.size());
    const Problem p = problem(q, k, order, static_cast<float>(scale), visibility);
    attention_forward<T>(p, heads(q), heads(k), heads(v), heads(out), heads(lse), threads);
}

template <typename T>
void backward(Array<const T> q, Array<const T> k, Array<const T> v, Ids order, Ids first, Ids last,
              double scale, Array<const float> out, Matrix<const float> lse, Array<const T> grad, Array<T> grad_q,
              Array<T> grad_k, Array<T> grad_v, int threads) {
    nb::gil_scoped_release release;
    const Visibility visibility(first.data(), last.data(), first.size());
    const Problem p = problem(q, k, order, static_cast<float>(scale), visibility);
    attention_backward<T>(p, heads(q), heads(k), heads(v), heads(out), heads(lse), heads(grad),
                        {heads(grad_q), heads(grad_k), heads(grad_v)}, threads);
}

}  // namespace

// The scale is a double because nanobind takes a Python float for a float only if no bit is lost, and otherwise looks
// for an overload with conversions.
void bind_tree_attention(nb::module_& m) {
    define(m, "tree_attention_forward", &forward<float>);
    define(m, "tree_attention_forward", &forward<BFloat16>);
    define(m, "tree_attention_backward", &backward<float>);
    define(m, "tree_attention_backward", &backward<BFloat16>);
}
