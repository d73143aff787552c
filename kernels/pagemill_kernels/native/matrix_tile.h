// The inner loops of the matrix products: some rows of x times one panel of outputs, or a few panels side by side. For matrix.cpp.
//
// Whatever the number of rows and panels, an output's sum is one chain of multiply-adds over k from first to last, so its bits are
// the row's own. Chains run side by side over rows, panels and lanes, never over k.
#pragma once

#include "native.h"

namespace pagemill {

constexpr int kLanes = Vec::lanes;
constexpr int kPanel = 2 * kLanes;  // outputs in a panel

#if defined(__AVX512F__)
constexpr int kRows = 12;  // 24 sums of the 32 registers
#else
constexpr int kRows = 6;  // 12 of 16
#endif

#if defined(__AVX512BF16__)
constexpr bool kPairProducts = true;  // products of bfloat16 have an instruction; elsewhere x is widened and they are float32's
#else
constexpr bool kPairProducts = false;
#endif

// How panels are stored: [k / group][kPanel][group] elements of `type`; two k lie side by side where one load brings both.
constexpr int element_bytes(Type type) { return type == F32 ? 4 : type == I8 ? 1 : 2; }
constexpr bool takes_pairs(Type arithmetic) { return arithmetic == BF16 && kPairProducts; }
constexpr int group_of(Type stored, Type arithmetic) { return stored == BF16 || takes_pairs(arithmetic) ? 2 : 1; }

// Up to so many rows reading the panels is all the work, and a tile fetches what it reads itself so many bytes later. With more rows it
// fetches the next panels while it computes. Both measured; in float32 and bfloat16 that is the difference of 1.7 times at 8 rows.
constexpr int kFewRows = 3;
constexpr int kNear = 2048;

// Sums of a tile: sums[panel][row][kPanel] = x[row][0..k) * panels.
struct Tile {
  const char* panels;
  std::size_t panel_bytes;
  const void* x;
  std::ptrdiff_t ldx;  // elements
  int k;
  float* sums;
  const char* ahead;  // what is fetched first
  int ahead_step;     // bytes further for each group of k
  const char* next;   // where few rows' fetching goes on when the panels end
};

// ---- float32 ----

// The `which`-th k of a group, for the kLanes outputs at p.
template <Type stored>
inline Vec weights(const char* p, int which) {
  if constexpr (stored == F32) return load(reinterpret_cast<const float*>(p));
  if constexpr (stored == F16) return load_f16(reinterpret_cast<const std::uint16_t*>(p));
  if constexpr (stored == I8) return load_i8(reinterpret_cast<const std::int8_t*>(p));
#if defined(__AVX512F__)
  __m512i pairs = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(which == 0 ? _mm512_slli_epi32(pairs, 16) : _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
#else
  __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(which == 0 ? _mm256_slli_epi32(pairs, 16) : _mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
#endif
}

template <Type stored>
struct Float32 {
  using Element = float;
  static constexpr int group = group_of(stored, F32);
  static constexpr int vector_bytes = kLanes * group * element_bytes(stored);

  template <int rows, int panels>
  static inline void step(Vec (&sums)[panels][rows][2], const char* w, std::size_t panel_bytes, const float* x, std::ptrdiff_t ldx,
                          int count) {
#pragma GCC unroll 2
    for (int which = 0; which < group; ++which) {
      if (which >= count) break;
#pragma GCC unroll 4
      for (int panel = 0; panel < panels; ++panel) {
        Vec first = weights<stored>(w + panel * panel_bytes, which);
        Vec second = weights<stored>(w + panel * panel_bytes + vector_bytes, which);
#pragma GCC unroll 12
        for (int row = 0; row < rows; ++row) {
          Vec from = set1(x[row * ldx + which]);
          sums[panel][row][0] = fma(from, first, sums[panel][row][0]);
          sums[panel][row][1] = fma(from, second, sums[panel][row][1]);
        }
      }
    }
  }
};

// ---- pairs of bfloat16 ----

#if defined(__AVX512BF16__)
template <Type stored>
struct Pairs {
  using Element = std::uint16_t;
  static constexpr int group = 2;
  static constexpr int vector_bytes = kLanes * group * element_bytes(stored);

  static inline __m512bh weights(const char* p) {
    if constexpr (stored == BF16) return (__m512bh)_mm512_loadu_si512(p);
    const auto* bytes = reinterpret_cast<const std::int8_t*>(p);
    return _mm512_cvtne2ps_pbh(load_i8(bytes + kLanes).v, load_i8(bytes).v);  // exact
  }

  template <int rows, int panels>
  static inline void step(Vec (&sums)[panels][rows][2], const char* w, std::size_t panel_bytes, const std::uint16_t* x,
                          std::ptrdiff_t ldx, int count) {
#pragma GCC unroll 4
    for (int panel = 0; panel < panels; ++panel) {
      __m512bh first = weights(w + panel * panel_bytes);
      __m512bh second = weights(w + panel * panel_bytes + vector_bytes);
#pragma GCC unroll 12
      for (int row = 0; row < rows; ++row) {
        std::uint32_t pair = 0;
        std::memcpy(&pair, x + row * ldx, count == 2 ? 4 : 2);
        __m512bh from = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
        sums[panel][row][0].v = _mm512_dpbf16_ps(sums[panel][row][0].v, first, from);
        sums[panel][row][1].v = _mm512_dpbf16_ps(sums[panel][row][1].v, second, from);
      }
    }
  }
};
#endif

template <class Arithmetic, int rows, int panels>
void run_tile(const Tile& tile) {
  constexpr int group = Arithmetic::group, group_bytes = 2 * Arithmetic::vector_bytes;
  using Element = typename Arithmetic::Element;
  Vec sums[panels][rows][2];
#pragma GCC unroll 4
  for (int panel = 0; panel < panels; ++panel) {
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
      sums[panel][row][0] = set1(0.0f);
      sums[panel][row][1] = set1(0.0f);
    }
  }
  const char* w = tile.panels;
  const char* ahead = tile.ahead;
  const Element* x = static_cast<const Element*>(tile.x);
  const std::ptrdiff_t ldx = tile.ldx;
  const std::size_t panel_bytes = tile.panel_bytes;
  const int ahead_step = tile.ahead_step;
  const char* next = tile.next;
  constexpr int turn = kNear / group_bytes;
  constexpr auto hint = rows <= kFewRows ? _MM_HINT_T0 : _MM_HINT_T1;
  for (int k = tile.k / group; k > 0; --k) {
#pragma GCC unroll 4
    for (int panel = 0; panel < panels; ++panel) {
      _mm_prefetch(ahead + panel * panel_bytes, hint);
      if constexpr (group_bytes > 64) _mm_prefetch(ahead + panel * panel_bytes + 64, hint);
    }
    ahead = rows <= kFewRows && k == turn ? next : ahead + ahead_step;
    Arithmetic::step(sums, w, panel_bytes, x, ldx, group);
    w += group_bytes;
    x += group;
  }
  if (tile.k % group != 0) Arithmetic::step(sums, w, panel_bytes, x, ldx, 1);
#pragma GCC unroll 4
  for (int panel = 0; panel < panels; ++panel) {
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
      float* to = tile.sums + (panel * rows + row) * kPanel;
      store(to, sums[panel][row][0]);
      store(to + kLanes, sums[panel][row][1]);
    }
  }
}

}  // namespace pagemill
