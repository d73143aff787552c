// What BERT's rows go through between products: layer norm and the activations. Sizes are multiples of 16.
#pragma once

#include <cmath>

#include "exp.h"
#include "lanes.h"

namespace pagemill {

// (x - mean) / sqrt(variance + eps) * weight + bias, https://arxiv.org/abs/1607.06450; in place, and into `rounded` where that is not null.
inline void layer_norm(float* x, const float* weight, const float* bias, float eps, int size, std::uint16_t* rounded) {
  constexpr int kChains = 16 / Vec::lanes;
  auto sum_of = [&](auto&& term) {
    Vec sums[kChains];
    for (Vec& sum : sums) sum = set1(0.0f);
    for (int i = 0; i < size; i += 16) {
      for (int chain = 0; chain < kChains; ++chain) sums[chain] = term(load(x + i + chain * Vec::lanes), sums[chain]);
    }
    for (int chain = 1; chain < kChains; ++chain) sums[0] = sums[0] + sums[chain];
    return sum_lanes(sums[0]) / static_cast<float>(size);
  };
  Vec mean = set1(sum_of([](Vec a, Vec sum) { return sum + a; }));
  float variance = sum_of([&](Vec a, Vec sum) { return fma(a - mean, a - mean, sum); });
  Vec inverse = set1(1.0f / std::sqrt(variance + eps));
  for (int i = 0; i < size; i += Vec::lanes) {
    Vec normed = fma((load(x + i) - mean) * inverse, load(weight + i), load(bias + i));
    store(x + i, normed);
    if (rounded != nullptr) store_bf16(rounded + i, normed);
  }
}

// x (1 + erf(x / sqrt(2))) / 2 = max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, where erfc is e^-(a p(a)) of a = |x|: within 1e-7 of |x|. The
// polynomial was fitted to erfc by weighted least squares over [0, 7.2]; from there on it is below 1e-12.
inline Vec gelu(Vec x) {
  Vec a = max(set1(0.0f) - x, x), near = min(set1(7.2f), a);  // in these orders of operands a NaN passes
  Vec p = set1(-2.81287356e-07f);
  p = fma(p, near, set1(5.55298948e-06f));
  p = fma(p, near, set1(-4.56230919e-05f));
  p = fma(p, near, set1(0.000177273323f));
  p = fma(p, near, set1(2.49961886e-05f));
  p = fma(p, near, set1(-0.00484067295f));
  p = fma(p, near, set1(0.0363655798f));
  p = fma(p, near, set1(0.318302423f));
  p = fma(p, near, set1(0.797885239f));
  return max(set1(0.0f), x) - set1(0.5f) * a * exp(set1(0.0f) - near * p);
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = x / (1 + e^-2u)
inline Vec gelu_tanh(Vec x) {
  Vec u = set1(1.5957691f) * fma(set1(0.044715f) * x * x, x, x);
  return x / (set1(1.0f) + exp(set1(0.0f) - u));
}

inline Vec relu(Vec x) { return max(set1(0.0f), x); }

}  // namespace pagemill
