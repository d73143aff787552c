// Attention of some rows over one tile of keys: the two small products and the softmax between them.
//
// A tile is kTile keys that begin at a multiple of kTile in their sequence, so what a row meets, and in what order, follows from its position.
// A row's score is one chain of multiply-adds over head_dim, its output one over the keys that it sees; rows stand beside each other, never in each other's sums.
#pragma once

#include <cstddef>

#include "exp.h"
#include "lanes.h"

namespace pagemill {

constexpr int kTile = 64;                         // keys
constexpr int kBlockRows = 6;                     // of a product at once
constexpr int kBlockVectors = Vec::lanes == 16 ? 4 : 2;  // columns of a product at once, in vectors: accumulators fill the registers

alignas(64) constexpr char kZeros[256 * sizeof(float)] = {};  // a key that is not there

// Elements in 16 bytes: so many vectors columns_of makes.
template <class Element>
constexpr int kColumns = 16 / sizeof(Element);

// Elements [d, d + kColumns) of as many keys as there are lanes, a vector each.
template <class Element>
inline void columns_of(const char* const* keys, int d, Vec (&columns)[kColumns<Element>]) {
  if constexpr (sizeof(Element) == sizeof(float)) {
    four_columns(keys, d * sizeof(Element), columns);
  } else {
    Vec pairs[4];
    four_columns(keys, d * sizeof(Element), pairs);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      columns[2 * i] = first_bf16(pairs[i]);
      columns[2 * i + 1] = second_bf16(pairs[i]);
    }
  }
}

inline Vec load_as(const float* p) { return load(p); }
inline Vec load_as(const std::uint16_t* p) { return load_bf16(p); }

// c[r] = (adds ? c[r] : 0) + sum over k of a[r][k] * b[k], in order. b is float32 or bfloat16.
template <int Rows, int Vectors, bool Adds, class Element>
void multiply_block(int depth, const float* a, int lda, const Element* b, int ldb, float* c, int ldc) {
  Vec sums[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sums[r][v] = Adds ? load(c + r * ldc + v * Vec::lanes) : set1(0.0f);
  }
  for (int k = 0; k < depth; ++k) {
    Vec columns[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) columns[v] = load_as(b + static_cast<std::ptrdiff_t>(k) * ldb + v * Vec::lanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      Vec factor = set1(a[r * lda + k]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sums[r][v] = fma(factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(c + r * ldc + v * Vec::lanes, sums[r][v]);
  }
}

template <bool Adds, int Vectors, class Element>
void multiply_rows(int rows, int depth, const float* a, int lda, const Element* b, int ldb, float* c, int ldc) {
  switch (rows) {
    case 1: return multiply_block<1, Vectors, Adds>(depth, a, lda, b, ldb, c, ldc);
    case 2: return multiply_block<2, Vectors, Adds>(depth, a, lda, b, ldb, c, ldc);
    case 3: return multiply_block<3, Vectors, Adds>(depth, a, lda, b, ldb, c, ldc);
    case 4: return multiply_block<4, Vectors, Adds>(depth, a, lda, b, ldb, c, ldc);
    case 5: return multiply_block<5, Vectors, Adds>(depth, a, lda, b, ldb, c, ldc);
    default: return multiply_block<6, Vectors, Adds>(depth, a, lda, b, ldb, c, ldc);
  }
}

// Up to kBlockRows rows; columns a multiple of the lanes.
template <bool Adds, class Element>
void multiply(int rows, int columns, int depth, const float* a, int lda, const Element* b, int ldb, float* c, int ldc) {
  for (int column = 0; column < columns;) {
    int vectors = (columns - column) / Vec::lanes;
    if (vectors >= kBlockVectors) {
      multiply_rows<Adds, kBlockVectors>(rows, depth, a, lda, b + column, ldb, c + column, ldc);
      column += kBlockVectors * Vec::lanes;
    } else if (vectors >= 2) {
      multiply_rows<Adds, 2>(rows, depth, a, lda, b + column, ldb, c + column, ldc);
      column += 2 * Vec::lanes;
    } else {
      multiply_rows<Adds, 1>(rows, depth, a, lda, b + column, ldb, c + column, ldc);
      column += Vec::lanes;
    }
  }
}

// Below any score that is not -inf: a maximum that begins here leaves no -inf - -inf.
constexpr float kLowest = -3.0e38f;

// What a row has gathered: its output so far is to be divided by `sum`.
struct RowState {
  float most = kLowest;  // of its scores
  float sum = 0.0f;      // of e^(score - most)
};

// As a mask: min(score, caps) with a window over it hides by -inf and leaves the rest, a NaN that is hidden too.
struct Caps {
  alignas(64) float up_to[2 * kTile];    // inf, then -inf
  alignas(64) float from_on[2 * kTile];  // -inf, then inf
  Caps() {
    for (int i = 0; i < 2 * kTile; ++i) {
      up_to[i] = i < kTile ? __builtin_inff() : -__builtin_inff();
      from_on[i] = -up_to[i];
    }
  }
};
inline const Caps kCaps;

// scores [kTile], of which `columns` are computed and [first, last) seen, become e^(score - most); `out` [head_dim] and the state move on to the new maximum.
inline void soften(float* scores, int columns, int first, int last, RowState& state, float* out, int head_dim) {
  if (first > 0 || last < columns) {
    for (int i = 0; i < columns; i += Vec::lanes) {
      Vec seen = min(load(scores + i), load(kCaps.up_to + kTile - last + i));
      store(scores + i, min(seen, load(kCaps.from_on + kTile - first + i)));
    }
  }
  Vec most = load(scores);
  for (int i = Vec::lanes; i < columns; i += Vec::lanes) most = max(load(scores + i), most);
  float now = max_lanes(most);
  now = now < state.most ? state.most : now;  // a NaN stays
  Vec sums = set1(0.0f);
  for (int i = 0; i < columns; i += Vec::lanes) {
    Vec weight = exp(load(scores + i) - set1(now));
    store(scores + i, weight);
    sums = sums + weight;
  }
  float sum = sum_lanes(sums);
  if (now == state.most) {
    state.sum = state.sum + sum;
    return;
  }
  Vec shrink = exp(set1(state.most - now));
  float factor[Vec::lanes];
  store(factor, shrink);
  state.sum = __builtin_fmaf(state.sum, factor[0], sum);
  state.most = now;
  for (int i = 0; i < head_dim; i += Vec::lanes) store(out + i, load(out + i) * shrink);
}

}  // namespace pagemill
