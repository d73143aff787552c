// Scores to weights for attention by tiles: four rows at a time, in base 2, rounded to bfloat16. For attention_amx.h.
//
// Rows lie beside each other and never in each other's sums; what a row does not see weighs exactly nothing, whatever its score is, and moves nothing.
#pragma once

#include <cstdint>

#include "attention_tile.h"

namespace pagemill {

constexpr int kFour = 4;  // rows

// 2^x for x <= 0, within 3.4e-6 of it (a weight keeps 8 bits); exactly 1 at 0, 0 at -inf; a NaN stays one.
inline Vec exp2_below(Vec x) {
#if defined(__AVX512F__)
  Vec r{_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // x - floor(x)
#else
  x = max(set1(-150.0f), x);  // in this order of operands a NaN passes
  Vec n = round(x - set1(0.5f)), r = x - n;
#endif
  Vec p = fma(set1(0.01355574715f), r, set1(0.05203236894f));
  p = fma(p, r, set1(0.24137976317f));
  p = fma(p, r, set1(0.69303212073f));
  p = fma(p, r, set1(1.0f));
#if defined(__AVX512F__)
  return {_mm512_scalef_ps(p.v, x.v)};
#else
  Vec half = round(n * set1(0.5f));  // 2^n itself may be out of range
  return p * exp2_whole(half) * exp2_whole(n - half);
#endif
}

// Rounded to the nearest, ties to even.
inline void store_halves(std::uint16_t* to, Vec a) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
#else
  store_bf16(to, a);
#endif
}

inline void store_halves(std::uint16_t* to, Vec a, Vec b) {
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
#else
  store_bf16(to, a);
  store_bf16(to + Vec::lanes, b);
#endif
}

// What `join` makes of the lanes of each of four vectors, in one order.
template <class Join>
inline __m128 across_lanes(const Vec (&rows)[kFour], Join&& join) {
#if defined(__AVX512F__)
  Vec low = join(Vec{_mm512_unpacklo_ps(rows[0].v, rows[1].v)}, Vec{_mm512_unpackhi_ps(rows[0].v, rows[1].v)});
  Vec high = join(Vec{_mm512_unpacklo_ps(rows[2].v, rows[3].v)}, Vec{_mm512_unpackhi_ps(rows[2].v, rows[3].v)});
  __m512d first = _mm512_castps_pd(low.v), second = _mm512_castps_pd(high.v);
  Vec all = join(Vec{_mm512_castpd_ps(_mm512_unpacklo_pd(first, second))}, Vec{_mm512_castpd_ps(_mm512_unpackhi_pd(first, second))});
  all = join(all, Vec{_mm512_shuffle_f32x4(all.v, all.v, 0x4e)});  // halves, then quarters of them
  all = join(all, Vec{_mm512_shuffle_f32x4(all.v, all.v, 0xb1)});
  return _mm512_castps512_ps128(all.v);
#else
  Vec low = join(Vec{_mm256_unpacklo_ps(rows[0].v, rows[1].v)}, Vec{_mm256_unpackhi_ps(rows[0].v, rows[1].v)});
  Vec high = join(Vec{_mm256_unpacklo_ps(rows[2].v, rows[3].v)}, Vec{_mm256_unpackhi_ps(rows[2].v, rows[3].v)});
  Vec all = join(Vec{_mm256_shuffle_ps(low.v, high.v, 0x44)}, Vec{_mm256_shuffle_ps(low.v, high.v, 0xee)});
  all = join(all, Vec{_mm256_permute2f128_ps(all.v, all.v, 1)});
  return _mm256_castps256_ps128(all.v);
#endif
}

// Which keys of a tile four rows see: each [first, last).
struct Seen {
  int first[kFour], last[kFour];
};

// `sums` [kTile keys][16 rows] of q k: columns [at, at + 4) become weights bfloat16 [4][kTile], 2^(sum - most). `seen`: null
// where they see all. `most` and `sum` [4] move on to the new maxima; the rows whose bits are set in the result have to shrink what they gathered
// before by `shrinks`.
inline int weigh(const float* sums, int at, const Seen* seen, float* most, float* sum, std::uint16_t* weights, float* shrinks) {
  constexpr int kVectors = kTile / Vec::lanes;
  Vec scores[kVectors][kFour], joined[kFour];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const char* keys[Vec::lanes];
#pragma GCC unroll 16
    for (int i = 0; i < Vec::lanes; ++i) keys[i] = reinterpret_cast<const char*>(sums + (v * Vec::lanes + i) * 16 + at);
    four_columns(keys, 0, scores[v]);
  }
  if (seen != nullptr) {
#pragma GCC unroll 4
    for (int r = 0; r < kFour; ++r) {
      const float *up_to = kCaps.up_to + kTile - seen->last[r], *from_on = kCaps.from_on + kTile - seen->first[r];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        scores[v][r] = min(min(scores[v][r], load(up_to + v * Vec::lanes)), load(from_on + v * Vec::lanes));
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kFour; ++r) {
    joined[r] = scores[0][r];
#pragma GCC unroll 8
    for (int v = 1; v < kVectors; ++v) joined[r] = max(scores[v][r], joined[r]);
  }
  __m128 before = _mm_loadu_ps(most);
  __m128 now = _mm_max_ps(before, across_lanes(joined, [](Vec a, Vec b) { return max(a, b); }));
  _mm_storeu_ps(most, now);
#pragma GCC unroll 4
  for (int r = 0; r < kFour; ++r) {
    Vec top = set1(most[r]);
    joined[r] = set1(0.0f);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; v += 2) {
      Vec one = exp2_below(scores[v][r] - top), other = exp2_below(scores[v + 1][r] - top);
      joined[r] = joined[r] + one + other;
      store_halves(weights + r * kTile + v * Vec::lanes, one, other);
    }
  }
  __m128 added = across_lanes(joined, [](Vec a, Vec b) { return a + b; });
  float few[Vec::lanes] = {};
  _mm_storeu_ps(few, _mm_sub_ps(before, now));
  store(few, exp2_below(load(few)));
  __m128 shrink = _mm_loadu_ps(few);
  _mm_storeu_ps(shrinks, shrink);
  _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_loadu_ps(sum), shrink, added));
  return _mm_movemask_ps(_mm_cmp_ps(before, now, _CMP_NEQ_UQ));
}

}  // namespace pagemill
