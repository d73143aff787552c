// e^x of a vector, within 1.5 units in the last place: softmax and silu.
#pragma once

#include "simd.h"

namespace pagemill {

// 0 below -104, infinity above 89, a NaN stays one. Cephes' polynomial (https://www.netlib.org/cephes/): e^x = 2^n e^r, |r| <= ln(2) / 2.
inline Vec exp(Vec x) {
  x = max(set1(-104.0f), min(set1(89.0f), x));  // in this order of operands a NaN passes
  Vec n = round(x * set1(1.44269504f));
  Vec r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + set1(1.0f));
#if defined(__AVX512F__)
  return {_mm512_scalef_ps(p.v, n.v)};
#else
  Vec half = round(n * set1(0.5f));  // 2^n itself may be out of range
  return p * exp2_whole(half) * exp2_whole(n - half);
#endif
}

// x / (1 + e^-x)
inline Vec silu(Vec x) { return x / (set1(1.0f) + exp(set1(0.0f) - x)); }

}  // namespace pagemill
