// Eight float lanes through the compiler's vector extensions (AVX2, two SSE registers or NEON, as the target has).
#pragma once

#include <cstdint>
#include <cstring>

namespace sprout {

typedef float F32x8 __attribute__((vector_size(32)));
typedef float F32x4 __attribute__((vector_size(16)));
typedef int32_t I32x8 __attribute__((vector_size(32)));
typedef uint32_t U32x8 __attribute__((vector_size(32)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));
typedef uint16_t U16x8 __attribute__((vector_size(16)));
typedef uint16_t U16x4 __attribute__((vector_size(8)));

// The upper half of a float; arithmetic is done on floats.
struct BFloat16 {
    uint16_t bits;
};

inline F32x8 load8(const float* p) {
    F32x8 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store8(float* p, F32x8 v) { std::memcpy(p, &v, sizeof v); }

inline F32x4 load4(const float* p) {
    F32x4 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline F32x8 load8(const BFloat16* p) {
    U16x8 bits;
    std::memcpy(&bits, p, sizeof bits);
    return (F32x8)(__builtin_convertvector(bits, U32x8) << 16);
}

inline F32x4 load4(const BFloat16* p) {
    U16x4 bits;
    std::memcpy(&bits, p, sizeof bits);
    return (F32x4)(__builtin_convertvector(bits, U32x4) << 16);
}

// Nearest, ties to even; NaN stays NaN.
inline U32x8 bfloat16_bits(F32x8 v) {
    const U32x8 bits = (U32x8)v;
    const U32x8 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return v == v ? rounded : (bits >> 16) | 0x40;
}

inline void store8(BFloat16* p, F32x8 v) {
    const U16x8 narrow = __builtin_convertvector(bfloat16_bits(v), U16x8);
    std::memcpy(p, &narrow, sizeof narrow);
}

// v as it is after being stored as T and read back.
template <typename T>
inline F32x8 rounded(F32x8 v) {
    return v;
}

template <>
inline F32x8 rounded<BFloat16>(F32x8 v) {
    return (F32x8)(bfloat16_bits(v) << 16);
}

inline F32x8 splat8(float x) { return F32x8{} + x; }

// Sums of the lanes of four vectors.
inline F32x4 sum_each(F32x8 a, F32x8 b, F32x8 c, F32x8 d) {
    const F32x8 ab = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) +
                     __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    const F32x8 cd = __builtin_shufflevector(c, d, 0, 8, 2, 10, 4, 12, 6, 14) +
                     __builtin_shufflevector(c, d, 1, 9, 3, 11, 5, 13, 7, 15);
    const F32x8 all = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
                      __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(all, all, 0, 1, 2, 3) + __builtin_shufflevector(all, all, 4, 5, 6, 7);
}

// Largest lane; a NaN lane is passed over or taken.
inline float max8(F32x8 v) {
    const F32x8 by4 = __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7);
    v = v > by4 ? v : by4;
    const F32x8 by2 = __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3);
    v = v > by2 ? v : by2;
    return v[0] > v[1] ? v[0] : v[1];
}

inline float sum8(F32x8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// exp(x) for x <= 88 within 2 ulp; 0 below -87, where float would turn denormal. NaN stays NaN.
// Cephes' expf: x = n ln 2 + r, a polynomial in r, and n added to the exponent.
inline F32x8 exp8(F32x8 x) {
    const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
    const F32x8 bounded = x < -87.0f ? splat8(-87.0f) : x;
    const F32x8 shifted = bounded * 1.44269504088896341f + shifter;
    const F32x8 n = shifted - shifter;
    const F32x8 r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    F32x8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const I32x8 power = ((I32x8)shifted + 127) << 23;
    return x < -87.0f ? F32x8{} : p * (F32x8)power;
}

}  // namespace sprout
