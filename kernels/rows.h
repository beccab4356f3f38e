// Float matrices given row by row, and loops over a row in lanes of eight.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "vector_math.h"

namespace sprout {

// Any strides, but a stride of 1 in the last dimension.
template <typename T, int Dims>
using Strided = nanobind::ndarray<T, nanobind::ndim<Dims>, nanobind::device::cpu>;

constexpr int64_t kSerialFloats = 16 * 1024;  // below this many, more threads cost more than they give

// body(i, count) for i = 0, 8, 16, ...; count is the constant 8 but for the last, shorter piece.
template <typename Body>
inline void each8(int64_t size, Body body) {
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) body(i, std::integral_constant<int64_t, 8>{});
    if (i < size) body(i, size - i);
}

inline F32x8 load(const float* p, std::integral_constant<int64_t, 8>) { return load8(p); }

inline F32x8 load(const float* p, int64_t count) {
    F32x8 v = {};
    std::memcpy(&v, p, count * sizeof(float));
    return v;
}

inline void store(float* p, F32x8 v, int64_t count) { std::memcpy(p, &v, count * sizeof(float)); }

}  // namespace sprout
