// Products of bfloat16 by tiles (tiles.h): some rows of x times panels of pairs. For matrix.cpp.
//
// A panel is [k / 2][32 columns][2]: 16 pairs of k from it, 128 bytes apart, are a tile's 16 rows of 16 columns; the other 16 columns lie
// 64 bytes on. An output's sum takes 32 k at a time from first to last, whatever the rows beside it, so its bits are the row's own. They
// are not the bits of vectors' sums, so all rows of a product take one way. Tiles treat numbers below 2^-126 as zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tiles.h"
#if defined(__AVX512BF16__)
#include "simd.h"
#endif

namespace pagemill {

constexpr int kTilePanel = 32;                        // outputs in a panel
constexpr int kTileStride = 128;                      // bytes from one pair of k to the next in a panel of bfloat16, and of sums
constexpr int kBlockRows = 32;                        // rows of x in two tiles
constexpr int kStepBytes = kTileK / 2 * kTileStride;  // of a panel of bfloat16: what two tiles take at a time
constexpr int kAheadBytes = 2048;                     // how far ahead of a product its panels are asked for; measured

// Tiles 0 to 3 are sums, [upper rows, lower rows][2]; 4 and 5 are x's upper and lower rows; 6 and 7 a panel's columns.
inline TileShapes shapes_of(int upper, int lower) {
  TileShapes shapes;
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) shapes.bytes[tile] = kTileBytes;
  for (int tile : {0, 1, 4}) shapes.rows[tile] = static_cast<std::uint8_t>(upper);
  for (int tile : {2, 3, 5}) shapes.rows[tile] = static_cast<std::uint8_t>(lower);
  shapes.rows[6] = shapes.rows[7] = kTileK / 2;
  return shapes;
}

struct TileProduct {
  const char* panels;  // bfloat16 or int8, [k / 2, rounded up][32][2] each
  std::size_t panel_bytes;
  int count;  // of panels
  bool int8;
  const std::uint16_t* x;  // bfloat16 [rows, k]
  std::ptrdiff_t ldx;      // elements
  int rows, k;
};

// Numbers of int8 as bfloat16; exact.
inline void widen_codes(const char* from, int n, std::uint16_t* to) {
  const auto* codes = reinterpret_cast<const std::int8_t*>(from);
  int i = 0;
#if defined(__AVX512BF16__)
  for (; i + 2 * Vec::lanes <= n; i += 2 * Vec::lanes) {
    __m512bh both = _mm512_cvtne2ps_pbh(load_i8(codes + i + Vec::lanes).v, load_i8(codes + i).v);
    _mm512_storeu_si512(to + i, (__m512i)both);
  }
#endif
  for (; i < n; ++i) {
    float value = codes[i];
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    to[i] = static_cast<std::uint16_t>(bits >> 16);
  }
}

// A product's sums, a block of rows and a panel or two at a time.
template <class Tiles>
class TileLoops {
 public:
  explicit TileLoops(const TileProduct& product) : p_(product), steps_(product.k / kTileK), rest_(product.k % kTileK) {}

  // Calls finish(panel, row, rows, sums [rows][32]) for all of them.
  template <class Finish>
  void run(Finish&& finish) {
    if (rest_ != 0) pad_x();
    const bool ahead = p_.int8 && p_.rows > kBlockRows;  // codes are widened once for all blocks, rather than for each
    const int panels = p_.rows <= kTileRows ? 2 : 1;
    alignas(64) float sums[kBlockRows * kTilePanel];
    for (int panel = 0; panel < p_.count;) {
      int wide = std::min(panels, p_.count - panel);
      const char* from = p_.panels + panel * p_.panel_bytes;
      if (ahead) widen_panel(from);
      if (rest_ != 0) pad_panels(from, wide);
      for (int row = 0; row < p_.rows; row += kBlockRows) {
        int rows = std::min(kBlockRows, p_.rows - row);
        if (rows > kTileRows) {
          use(kTileRows, rows - kTileRows);
          block<2, 1>(ahead ? reinterpret_cast<const char*>(wide_) : from, p_.int8 && !ahead, !ahead && row == 0, row, sums);
        } else if (wide == 2) {
          use(rows, rows);
          block<1, 2>(from, p_.int8, row == 0, row, sums);
        } else {
          use(rows, rows);
          block<1, 1>(ahead ? reinterpret_cast<const char*>(wide_) : from, p_.int8 && !ahead, !ahead && row == 0, row, sums);
        }
        for (int i = 0; i < wide; ++i) finish(panel + i, row, rows, sums + i * kTileRows * kTilePanel);
      }
      panel += wide;
    }
  }

 private:
  void use(int upper, int lower) {
    if (upper == upper_ && lower == lower_) return;
    Tiles::shape(shapes_of(upper, lower));
    upper_ = upper, lower_ = lower;
  }

  // The last k of x, and zeros: [rows][32].
  void pad_x() {
    x_.assign(static_cast<std::size_t>(p_.rows) * kTileK, 0);
    for (int row = 0; row < p_.rows; ++row) {
      const std::uint16_t* from = p_.x + row * p_.ldx + steps_ * kTileK;
      std::memcpy(&x_[static_cast<std::size_t>(row) * kTileK], from, sizeof(std::uint16_t) * rest_);
    }
  }

  // The last k of some panels, and zeros. Where k is odd the panel has a zero already.
  void pad_panels(const char* panels, int count) {
    const int numbers = (rest_ + 1) / 2 * 2 * kTilePanel;
    std::memset(last_, 0, sizeof(last_));
    for (int i = 0; i < count; ++i) {
      const char* from = panels + i * p_.panel_bytes + static_cast<std::size_t>(steps_) * step_bytes(p_.int8);
      if (p_.int8) {
        widen_codes(from, numbers, last_[i]);
      } else {
        std::memcpy(last_[i], from, sizeof(std::uint16_t) * numbers);
      }
    }
  }

  void widen_panel(const char* from) {
    std::size_t numbers = static_cast<std::size_t>(steps_) * kTileK * kTilePanel;
    thread_local std::vector<std::uint16_t> kept;
    if (kept.size() < numbers + kTileBytes) kept.resize(numbers + kTileBytes);
    auto start = reinterpret_cast<std::uintptr_t>(kept.data());
    wide_ = reinterpret_cast<std::uint16_t*>((start + kTileBytes - 1) / kTileBytes * kTileBytes);
    widen_codes(from, static_cast<int>(numbers), wide_);
  }

  static constexpr int step_bytes(bool int8) { return int8 ? kStepBytes / 2 : kStepBytes; }

  // One or two tiles of rows times one panel, or one times two: sums[panel][16 or 32 rows][32]. `first`: the panel comes from memory.
  template <int uppers, int panels>
  void block(const char* from, bool int8, bool first, int row, float* sums) {
    static_assert(uppers + panels <= 3, "four tiles of sums");
    alignas(64) std::uint16_t near[kTileK * kTilePanel];
    const std::uint16_t* x = p_.x + row * p_.ldx;
    const std::ptrdiff_t x_stride = p_.ldx * 2;
    const int bytes = step_bytes(int8);
    const int lead = kAheadBytes / bytes;
    const char* coming = from + kAheadBytes;
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
    for (int step = 0; step < steps_; ++step, x += kTileK, from += bytes, coming += bytes) {
      if (step + lead == steps_) coming += (panels - 1) * p_.panel_bytes;  // past the panels beside this one, which come of themselves
      if (first) ask_for<panels>(coming, bytes);
      load_x<uppers>(x, x_stride);
      columns<uppers, 0>(codes_or(from, int8, near));
      if constexpr (panels == 2) columns<uppers, 2>(codes_or(from + p_.panel_bytes, int8, near));
    }
    if (rest_ != 0) {
      load_x<uppers>(&x_[static_cast<std::size_t>(row) * kTileK], kTileBytes);
      columns<uppers, 0>(last_[0]);
      if constexpr (panels == 2) columns<uppers, 2>(last_[1]);
    }
    float* other = sums + kTileRows * kTilePanel;  // the lower rows, or the second panel
    Tiles::template store<0>(sums, kTileStride);
    Tiles::template store<1>(sums + kTilePanel / 2, kTileStride);
    if constexpr (uppers + panels == 3) {
      Tiles::template store<2>(other, kTileStride);
      Tiles::template store<3>(other + kTilePanel / 2, kTileStride);
    }
  }

  // The next bytes of each panel: the processor's own fetching is behind where a few rows are all there is to compute.
  template <int panels>
  [[gnu::always_inline]] void ask_for(const char* coming, int bytes) {
    for (int panel = 0; panel < panels; ++panel, coming += p_.panel_bytes) {
      for (int line = 0; line < bytes; line += 64) __builtin_prefetch(coming + line);
    }
  }

  static const void* codes_or(const char* from, bool int8, std::uint16_t* near) {
    if (!int8) return from;
    widen_codes(from, kTileK * kTilePanel, near);
    return near;
  }

  template <int uppers>
  static void load_x(const std::uint16_t* x, std::ptrdiff_t stride) {
    Tiles::template load<4>(x, stride);
    if constexpr (uppers == 2) Tiles::template load<5>(reinterpret_cast<const char*>(x) + kTileRows * stride, stride);
  }

  // 32 k of a panel into the sums from `first` on.
  template <int uppers, int first>
  static void columns(const void* from) {
    Tiles::template load<6>(from, kTileStride);
    Tiles::template load<7>(static_cast<const char*>(from) + kTileBytes, kTileStride);
    Tiles::template multiply<first, 4, 6>();
    Tiles::template multiply<first + 1, 4, 7>();
    if constexpr (uppers == 2) {
      Tiles::template multiply<2, 5, 6>();
      Tiles::template multiply<3, 5, 7>();
    }
  }

  const TileProduct& p_;
  const int steps_, rest_;  // whole tiles of k, and the k after them
  int upper_ = 0, lower_ = 0;
  alignas(64) std::uint16_t last_[2][kTileK * kTilePanel];
  std::vector<std::uint16_t> x_;
  std::uint16_t* wide_ = nullptr;
};

}  // namespace pagemill
