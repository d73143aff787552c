// Scores to weights for attention by tiles, in base 2, rounded to bfloat16: of few rows, row by row, and of sixteen, key by key, to the same
// bits. For attention_amx.h.
//
// Rows lie beside each other and never in each other's sums; what a row does not see weighs exactly nothing, whatever its score is, and moves
// nothing.
#pragma once

#include <cstdint>

#include "attention_tile.h"

namespace pagemill {

constexpr int kFour = 4;       // rows
constexpr int kTogether = 16;  // rows whose sums stand beside each other, a line for each key

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

// Which keys of a tile rows see: each [first, last).
struct Seen {
  float first[kTogether], last[kTogether];  // whole numbers
};

// `sums` [kTile keys][16 rows] of q k: rows [at, at + 4) become weights bfloat16 [4][kTile], 2^(sum - most). `seen`: null where they see all.
// `most` and `sum` [4] move on to the new maxima; the rows whose bits are set in the result have to shrink what they gathered before by `shrinks`.
inline int weigh_four(const float* sums, int at, const Seen* seen, float* most, float* sum, std::uint16_t* weights, float* shrinks) {
  constexpr int kVectors = kTile / Vec::lanes;
  Vec scores[kVectors][kFour], joined[kFour];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const char* keys[Vec::lanes];
#pragma GCC unroll 16
    for (int i = 0; i < Vec::lanes; ++i) keys[i] = reinterpret_cast<const char*>(sums + (v * Vec::lanes + i) * kTogether + at);
    four_columns(keys, 0, scores[v]);
  }
  if (seen != nullptr) {
#pragma GCC unroll 4
    for (int r = 0; r < kFour; ++r) {
      const float* up_to = kCaps.up_to + kTile - static_cast<int>(seen->last[at + r]);
      const float* from_on = kCaps.from_on + kTile - static_cast<int>(seen->first[at + r]);
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

// Two numbers of bfloat16 in each lane, of `a` and of `b`.
inline Vec pair_halves(Vec a, Vec b) {
#if defined(__AVX512BF16__)
  alignas(64) static constexpr std::uint16_t kPairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v));
  return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kPairs), halves))};
#else
  std::uint16_t halves[2][Vec::lanes], pairs[2 * Vec::lanes];
  store_bf16(halves[0], a);
  store_bf16(halves[1], b);
  for (int i = 0; i < 2 * Vec::lanes; ++i) pairs[i] = halves[i % 2][i / 2];
  float lanes[Vec::lanes];
  std::memcpy(lanes, pairs, sizeof(lanes));
  return load(lanes);
#endif
}

// A key's scores, -inf for rows that do not see it.
inline Vec hide(Vec scores, Vec key, Vec first, Vec last) {
#if defined(__AVX512F__)
  __mmask16 seen = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(first.v, key.v, _CMP_LE_OQ), key.v, last.v, _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(set1(-__builtin_inff()).v, seen, scores.v)};
#else
  __m256 seen = _mm256_and_ps(_mm256_cmp_ps(first.v, key.v, _CMP_LE_OQ), _mm256_cmp_ps(key.v, last.v, _CMP_LT_OQ));
  return {_mm256_blendv_ps(set1(-__builtin_inff()).v, scores.v, seen)};
#endif
}

// Of the sums' rows [at, at + lanes): weights, in pairs of keys, into every other line, where sums have been read. Maxima and sums move on.
inline void weigh_lines(float* sums, int at, const Seen* seen, float* most, float* sum, float* shrinks) {
  constexpr int kVectors = kTile / Vec::lanes;
  float* lines = sums + at;
  const Vec before = load(most + at);
  Vec tops[kFour] = {before, before, before, before};
  if (seen != nullptr) {
    const Vec first = load(seen->first + at), last = load(seen->last + at);
    for (int key = 0; key < kTile; ++key) {
      float* line = lines + key * kTogether;
      store(line, hide(load(line), set1(static_cast<float>(key)), first, last));
    }
  }
  for (int key = 0; key < kTile; key += kFour) {
#pragma GCC unroll 4
    for (int i = 0; i < kFour; ++i) tops[i] = max(tops[i], load(lines + (key + i) * kTogether));  // a NaN stays
  }
  const Vec now = max(max(tops[0], tops[1]), max(tops[2], tops[3]));
  store(most + at, now);
  Vec totals[Vec::lanes];  // of keys as far apart as lanes are many, as in weigh_four
  for (int key = 0; key < Vec::lanes; key += 2) {
    Vec even = set1(0.0f), odd = set1(0.0f);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* line = lines + (v * Vec::lanes + key) * kTogether;
      Vec one = exp2_below(load(line) - now), other = exp2_below(load(line + kTogether) - now);
      even = even + one;
      odd = odd + other;
      store(line, pair_halves(one, other));
    }
    totals[key] = even, totals[key + 1] = odd;
  }
  Vec quarters[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (int q = 0; q < Vec::lanes / 4; ++q) {
    const Vec* four = totals + 4 * q;
    quarters[q] = (four[0] + four[2]) + (four[1] + four[3]);
  }
  const Vec added = Vec::lanes == 16 ? (quarters[0] + quarters[2]) + (quarters[1] + quarters[3]) : quarters[0] + quarters[1];
  const Vec shrink = exp2_below(before - now);
  store(shrinks + at, shrink);
  store(sum + at, fma(load(sum + at), shrink, added));
}

// As weigh_four for 16 rows at once. Weights take the place of the sums: row r's of the tile's first 32 keys at line 2 r + 1, the others 32
// lines on.
inline int weigh_sixteen(float* sums, const Seen* seen, float* most, float* sum, float* shrinks) {
  float before[kTogether];
  std::memcpy(before, most, sizeof(before));
  for (int at = 0; at < kTogether; at += Vec::lanes) weigh_lines(sums, at, seen, most, sum, shrinks);
  for (int pair = 0; pair < kTile / 2; pair += Vec::lanes) {
    const char* pairs[Vec::lanes];
#pragma GCC unroll 16
    for (int i = 0; i < Vec::lanes; ++i) pairs[i] = reinterpret_cast<const char*>(sums + 2 * (pair + i) * kTogether);
#pragma GCC unroll 4
    for (int row = 0; row < kTogether; row += kFour) {
      Vec columns[kFour];
      four_columns(pairs, row * sizeof(float), columns);
      float* to = sums + (2 * (row + pair / 16 * 16) + 1) * kTogether + pair % 16;
#pragma GCC unroll 4
      for (int r = 0; r < kFour; ++r) store(to + 2 * r * kTogether, columns[r]);
    }
  }
  int moved = 0;
  for (int row = 0; row < kTogether; ++row) moved |= (before[row] == most[row] ? 0 : 1) << row;
  return moved;
}

}  // namespace pagemill
