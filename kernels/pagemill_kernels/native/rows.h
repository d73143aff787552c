// What is done to one token's row between products: norms, rotation, rounding. Sizes are multiples of 16.
#pragma once

#include <cmath>
#include <cstring>

#include "lanes.h"

namespace pagemill {

inline void store_as(float* p, Vec a) { store(p, a); }
inline void store_as(std::uint16_t* p, Vec a) { store_bf16(p, a); }

// x / rms(x) * weight, https://arxiv.org/abs/1910.07467; `to` may be x.
template <class Element>
void rms_norm(const float* x, const float* weight, float eps, int size, Element* to) {
  constexpr int kChains = 16 / Vec::lanes * 2;  // so that 32 elements go on side by side with any vectors
  Vec squares[kChains];
  for (Vec& square : squares) square = set1(0.0f);
  int i = 0;
  for (; i + kChains * Vec::lanes <= size; i += kChains * Vec::lanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      Vec a = load(x + i + chain * Vec::lanes);
      squares[chain] = fma(a, a, squares[chain]);
    }
  }
  for (; i < size; i += Vec::lanes) squares[0] = fma(load(x + i), load(x + i), squares[0]);
  for (int chain = 1; chain < kChains; ++chain) squares[0] = squares[0] + squares[chain];
  Vec inverse = set1(1.0f / std::sqrt(sum_lanes(squares[0]) / static_cast<float>(size) + eps));
  for (i = 0; i < size; i += Vec::lanes) store_as(to + i, load(x + i) * inverse * load(weight + i));
}

constexpr int kMostHeadDim = 256;

// Rotates a head's halves as reference.rotary: cos and sin [size], sin's first half negated. `to` may be x.
template <class Element>
void rotate(const float* x, const float* cos, const float* sin, int size, Element* to) {
  alignas(64) float swapped[kMostHeadDim];
  std::size_t half = static_cast<std::size_t>(size) / 2;
  std::memcpy(swapped, x + half, half * sizeof(float));
  std::memcpy(swapped + half, x, half * sizeof(float));
  for (int i = 0; i < size; i += Vec::lanes) {
    store_as(to + i, load(x + i) * load(cos + i) + load(swapped + i) * load(sin + i));
  }
}

template <class Element>
void copy_row(const float* x, int size, Element* to) {
  for (int i = 0; i < size; i += Vec::lanes) store_as(to + i, load(x + i));
}

}  // namespace pagemill
