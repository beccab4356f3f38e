// Eight float lanes through the compiler's vector extensions (AVX2, two SSE registers or NEON, as the target has).
#pragma once

#include <cstdint>
#include <cstring>

namespace sprout {

typedef float F32x8 __attribute__((vector_size(32)));

inline F32x8 load8(const float* p) {
    F32x8 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store8(float* p, F32x8 v) { std::memcpy(p, &v, sizeof v); }

inline float sum8(F32x8 v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// exp(x) for x <= 88, within 2 ulp; 0 below -87, where float would turn denormal. NaN stays NaN.
// Cephes' expf: x = n ln 2 + r, a polynomial in r, and n added to the exponent. Branch-free, so loops vectorise.
inline float fast_exp(float x) {
    const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
    const float bounded = x < -87.0f ? -87.0f : x;
    const float shifted = bounded * 1.44269504088896341f + shifter;
    const float n = shifted - shifter;
    const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const int32_t exponent = (bits + 127) << 23;
    float power;
    std::memcpy(&power, &exponent, sizeof power);
    return x < -87.0f ? 0.0f : p * power;
}

}  // namespace sprout
