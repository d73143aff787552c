// What goes across the lanes of a vector: sums, maxima, columns of rows. One order each, so that the same lanes give the same bits.
#pragma once

#include <cstddef>

#include "simd.h"

namespace pagemill {

#if defined(__AVX512F__)

inline float sum_lanes(Vec a) {
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

inline float max_lanes(Vec a) {
  __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

// 16 bytes of each of sixteen rows, `from` bytes into them, as four vectors: the rows' first four bytes, then their second, ...
inline void four_columns(const char* const* rows, std::size_t from, Vec (&columns)[4]) {
  Vec parts[4];  // rows i, i + 4, i + 8, i + 12
  for (int i = 0; i < 4; ++i) {
    auto part = [&](int row) { return _mm_loadu_ps(reinterpret_cast<const float*>(rows[row] + from)); };
    __m512 low = _mm512_insertf32x4(_mm512_castps128_ps512(part(i)), part(i + 4), 1);
    parts[i].v = _mm512_insertf32x4(_mm512_insertf32x4(low, part(i + 8), 2), part(i + 12), 3);
  }
  __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(parts[0].v, parts[1].v)), more_low = _mm512_castps_pd(_mm512_unpacklo_ps(parts[2].v, parts[3].v));
  __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(parts[0].v, parts[1].v)), more_high = _mm512_castps_pd(_mm512_unpackhi_ps(parts[2].v, parts[3].v));
  columns[0].v = _mm512_castpd_ps(_mm512_unpacklo_pd(low, more_low));
  columns[1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(low, more_low));
  columns[2].v = _mm512_castpd_ps(_mm512_unpacklo_pd(high, more_high));
  columns[3].v = _mm512_castpd_ps(_mm512_unpackhi_pd(high, more_high));
}

// Two bfloat16 in each lane: the first of them, and the second, in float32.
inline Vec first_bf16(Vec a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 16))}; }
inline Vec second_bf16(Vec a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

#else

inline float sum_lanes(Vec a) {
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

inline float max_lanes(Vec a) {
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

inline void four_columns(const char* const* rows, std::size_t from, Vec (&columns)[4]) {
  __m256 parts[4];  // rows i, i + 4
  for (int i = 0; i < 4; ++i) {
    auto part = [&](int row) { return _mm_loadu_ps(reinterpret_cast<const float*>(rows[row] + from)); };
    parts[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(part(i)), part(i + 4), 1);
  }
  __m256 low = _mm256_unpacklo_ps(parts[0], parts[1]), more_low = _mm256_unpacklo_ps(parts[2], parts[3]);
  __m256 high = _mm256_unpackhi_ps(parts[0], parts[1]), more_high = _mm256_unpackhi_ps(parts[2], parts[3]);
  columns[0].v = _mm256_shuffle_ps(low, more_low, 0x44);
  columns[1].v = _mm256_shuffle_ps(low, more_low, 0xee);
  columns[2].v = _mm256_shuffle_ps(high, more_high, 0x44);
  columns[3].v = _mm256_shuffle_ps(high, more_high, 0xee);
}

inline Vec first_bf16(Vec a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), 16))}; }
inline Vec second_bf16(Vec a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

#endif

}  // namespace pagemill
