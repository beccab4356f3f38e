// Matrices of floats or bfloat16 given row by row, and loops over a row in lanes of eight floats.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vector_math.h"

// NumPy has no bfloat16: its bits cross as uint16 (kernels/arrays.py).
template <>
struct nanobind::detail::dtype_traits<sprout::BFloat16> {
    static constexpr dlpack::dtype value{static_cast<uint8_t>(dlpack::dtype_code::UInt), 16, 1};
    static constexpr auto name = const_name("uint16");
};

namespace sprout {

using Eight = std::integral_constant<int64_t, 8>;

// Any strides, but a stride of 1 in the last dimension.
template <typename T, int Dims>
using Strided = nanobind::ndarray<T, nanobind::ndim<Dims>, nanobind::device::cpu>;

// [rows, heads, size] with any strides, but a stride of 1 in the last dimension.
template <typename T>
struct Heads {
    T* data;
    int64_t row_stride, head_stride;

    T* at(int64_t row, int64_t head) const { return data + row * row_stride + head * head_stride; }
};

template <typename T>
constexpr bool is_array = false;
template <typename... Config>
constexpr bool is_array<nanobind::ndarray<Config...>> = true;

template <typename T>
auto argument() {
    if constexpr (is_array<T>) {
        return nanobind::arg().noconvert();
    } else {
        return nanobind::arg();
    }
}

// Binds a function that takes arrays as they are: what is written to a converted copy would be lost, and overloads for
// several dtypes would all match. Numbers may be converted.
template <typename... Args>
void define(nanobind::module_& m, const char* name, void (*function)(Args...)) {
    m.def(name, function, argument<Args>()...);
}

constexpr int64_t kSerialFloats = 16 * 1024;  // below this many, more threads cost more than they give

// body(i, count) for i = 0, 8, 16, ...; count is the constant 8 but for the last, shorter piece.
template <typename Body>
inline void each8(int64_t size, Body body) {
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) body(i, Eight{});
    if (i < size) body(i, size - i);
}

// The lanes from `count` on are 0.
template <typename T>
inline F32x8 load(const T* p, int64_t count) {
    T lanes[8] = {};
    std::memcpy(lanes, p, count * sizeof(T));
    return load8(lanes);
}

template <typename T>
inline F32x8 load(const T* p, Eight) {
    return load8(p);
}

template <typename T>
inline void store(T* p, F32x8 v, int64_t count) {
    T lanes[8];
    store8(lanes, v);
    std::memcpy(p, lanes, count * sizeof(T));
}

template <typename T>
inline void store(T* p, F32x8 v, Eight) {
    store8(p, v);
}

// v with `other` in the lanes from `count` on.
inline F32x8 keep(F32x8 v, int64_t count, float other) {
    const I32x8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return lane < static_cast<int32_t>(count) ? v : splat8(other);
}

inline F32x8 keep(F32x8 v, Eight, float) { return v; }

}  // namespace sprout
