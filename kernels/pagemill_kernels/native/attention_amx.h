// Attention of an item's rows over tiles of keys, by tiles of bfloat16 (tiles.h): queries and weights are rounded to it, sums are float32.
// For attention.cpp, which knows where rows and keys lie.
//
// Scores are computed as [16 keys][16 rows], so that keys are taken as the cache has them; weights times values as [16 rows][16 dims], values
// laid in pairs of keys once for all rows of an item. A row's sums take 32 dims and 32 keys at a time from first to last, and a tile of keys
// as a whole: absent keys are zeros, keys that a row does not see weigh nothing. So its bits are its own, unless a key that it does not see
// has a value that is not finite: times nothing that is no number. Rows of one query see the same keys, and attention.cpp gives queries alone
// where that may have been.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention_weights.h"
#include "native.h"
#include "tiles.h"

namespace pagemill {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;
constexpr int kHalvesInTile = kTileRows * kTileBytes / 2;

// Tiles 0 to 3 are sums, 4 and 5 keys or weights, 6 and 7 queries or values; all whole, so that shapes are set once.
inline TileShapes whole_tiles() {
  TileShapes shapes;
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) shapes.bytes[tile] = kTileBytes, shapes.rows[tile] = kTileRows;
  return shapes;
}

// Two rows [dims] as pairs [dims / 16][kTile / 2][16][2], of which this is one; dims is a multiple of 16.
inline void lay_pair(const std::uint16_t* one, const std::uint16_t* other, int dims, std::uint16_t* to) {
  constexpr int kColumn = kTile * 16;  // halves from one 16 dims to the next
#if defined(__AVX512BW__)
  alignas(64) static constexpr std::uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  int d = 0;
  for (; d + 32 <= dims; d += 32, to += 2 * kColumn) {
    __m512i a = _mm512_loadu_si512(one + d), b = _mm512_loadu_si512(other + d);
    _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
    _mm512_store_si512(to + kColumn, _mm512_permutex2var_epi16(a, high, b));
  }
  if (d == dims) return;
  auto half = [&](const std::uint16_t* row) {
    return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + d)));
  };
  _mm512_store_si512(to, _mm512_permutex2var_epi16(half(one), low, half(other)));
#else
  for (int d = 0; d < dims; d += 16, to += kColumn) {
    for (int i = 0; i < 16; ++i) to[2 * i] = one[d + i], to[2 * i + 1] = other[d + i];
  }
#endif
}

// Into the second level: more may be on their way to it at once, which is what holds up single tokens.
inline void ask_for_row(const std::uint16_t* cache, std::int64_t offset, int head_dim) {
  if (offset < 0) return;
  for (int d = 0; d < head_dim; d += 32) _mm_prefetch(reinterpret_cast<const char*>(cache + offset + d), _MM_HINT_T1);
}

// A thread's own. Rows are an item's, in groups of 16; `out` [rows, head_dim] has room for whole groups.
template <class Tiles>
class TileAttention {
 public:
  void make_room(int rows, int head_dim) {
    if (rows <= rows_ && head_dim == head_dim_) return;
    rows_ = std::max(rows_, (rows + 15) / 16 * 16);
    head_dim_ = head_dim;
    depth_ = (head_dim + kTileK - 1) / kTileK * kTileK;
    const std::size_t kept = static_cast<std::size_t>(16) * head_dim_;
    const std::size_t halves = static_cast<std::size_t>(depth_) * (rows_ + 16 + kTile) + static_cast<std::size_t>(kTile) * (head_dim_ + 16);
    memory_.assign(kept + kTile * 16 + 2 * rows_ + halves / 2 + 16, 0.0f);  // zeros: rows that are not there are numbers
    float* at = memory_.data() + (16 - (reinterpret_cast<std::uintptr_t>(memory_.data()) & 63) / sizeof(float)) % 16;
    kept_ = at, sums_ = kept_ + kept, most_ = sums_ + kTile * 16, sum_ = most_ + rows_;
    auto* half = reinterpret_cast<std::uint16_t*>(sum_ + rows_);
    queries_ = half, rounded_ = queries_ + rows_ * depth_, keys_ = rounded_ + 16 * depth_, weights_ = keys_ + kTile * depth_;
    values_ = weights_ + 16 * kTile;
  }

  // Query `row` is row_at(row) [head_dim], float32 or bfloat16; times `scale`.
  template <class RowAt>
  void load_queries(int rows, float scale, RowAt&& row_at) {
    Vec factor = set1(scale * kLog2E);
    for (int group = 0; group < rows; group += 16) {
      std::memset(rounded_, 0, sizeof(std::uint16_t) * 16 * depth_);
      for (int i = 0; i < std::min(16, rows - group); ++i) {
        const auto* from = row_at(group + i);
        for (int d = 0; d < head_dim_; d += Vec::lanes) store_halves(rounded_ + i * depth_ + d, load_as(from + d) * factor);
      }
      pair_queries(reinterpret_cast<float*>(queries_ + group * depth_));
    }
  }

  // All rows over keys [first, last), which lie in one span, into `out` and `states`. find(begin) is the tile of keys that begins there, `after`
  // the one that the thread comes to next.
  template <class Rows, class Tile, class Find>
  void attend_span(const Rows& rows, int first, int last, const Cache& cache, Find&& find, const Tile& after, float* out, RowState* states) {
    std::fill(most_, most_ + rows_, kLowest);
    std::fill(sum_, sum_ + rows_, 0.0f);
    std::fill(out, out + (rows.count + 15) / 16 * 16 * head_dim_, 0.0f);
    Tile tile = find(first / kTile * kTile);
    while (true) {
      const bool ends = tile.last == last;
      const Tile next = ends ? after : find(tile.begin + kTile);
      load_keys(cache, tile);
      load_values(cache, tile, next);
      auto [row, stop] = rows.that_see(tile.begin, tile.last);
      for (int group = row / 16 * 16; group < stop; group += 16) attend_group(rows, group, row, stop, tile, out);
      if (ends) break;
      tile = next;
    }
    for (int row = 0; row < rows.count; ++row) states[row] = {most_[row] * kLn2, sum_[row]};
  }

 private:
  // [16 rows][depth] as pairs of dims, [depth / 2][16 rows][2].
  void pair_queries(float* to) {
    const char* rows[Vec::lanes];
    for (int half = 0; half < 16; half += Vec::lanes) {
      for (int i = 0; i < Vec::lanes; ++i) rows[i] = reinterpret_cast<const char*>(rounded_ + (half + i) * depth_);
      for (int pair = 0; pair < depth_ / 2; pair += 4) {
        Vec columns[4];
        four_columns(rows, pair * sizeof(float), columns);
        for (int i = 0; i < 4; ++i) store(to + (pair + i) * 16 + half, columns[i]);
      }
    }
  }

  // 16 keys each: where they lie in the cache, if it has them in one piece and as wide as tiles are; else copied, absent ones as zeros.
  template <class Tile>
  void load_keys(const Cache& cache, const Tile& tile) {
    const auto* from = static_cast<const std::uint16_t*>(cache.keys);
    const bool in_place = cache.block_size % 16 == 0 && depth_ == head_dim_;
    first_keys_ = (tile.first - tile.begin) / 16, last_keys_ = (tile.last - tile.begin + 15) / 16;
    for (int group = first_keys_; group < last_keys_; ++group) {
      const std::int64_t* offsets = tile.offsets + group * 16;
      if (in_place && offsets[0] >= 0 && offsets[15] >= 0) {
        key_rows_[group] = from + offsets[0];
        continue;
      }
      std::uint16_t* to = keys_ + group * 16 * depth_;
      key_rows_[group] = to;
      std::memset(to, 0, sizeof(std::uint16_t) * 16 * depth_);
      for (int i = 0; i < 16; ++i) {
        if (offsets[i] >= 0) std::memcpy(to + i * depth_, from + offsets[i], sizeof(std::uint16_t) * head_dim_);
      }
    }
  }

  // Absent ones are zeros.
  template <class Tile>
  void load_values(const Cache& cache, const Tile& tile, const Tile& next) {
    alignas(64) static constexpr std::uint16_t kNone[256] = {};
    const auto *keys = static_cast<const std::uint16_t*>(cache.keys), *values = static_cast<const std::uint16_t*>(cache.values);
    auto row = [&](int key) { return tile.offsets[key] < 0 ? kNone : values + tile.offsets[key]; };
    for (int key = 0; key < kTile; key += 2) {
      for (int i = key; i < key + 2; ++i) {
        ask_for_row(keys, next.offsets[i], head_dim_);
        ask_for_row(values, next.offsets[i], head_dim_);
      }
      lay_pair(row(key), row(key + 1), head_dim_, values_ + key * 16);
    }
  }

  template <class Rows, class Tile>
  static Seen seen_by(const Rows& rows, int group, const Tile& tile) {
    Seen seen = {};
    for (int r = 0; r < 16 && group + r < rows.count; ++r) {
      seen.first[r] = static_cast<float>(std::min(kTile, std::max(tile.first, rows.first_key(group + r)) - tile.begin));
      seen.last[r] = static_cast<float>(std::max(0, std::min(tile.last, rows.position(group + r) + 1) - tile.begin));
    }
    return seen;
  }

  // Of rows [first, last) of a group; their outputs shrink to their new maxima. Returns where those for the first 32 keys lie, a row each 128 bytes.
  const std::uint16_t* weigh(int first, int last, const Seen* seen, int group, float* out) {
    float shrinks[16];
    if (last - first / kFour * kFour > 2 * kFour) {
      shrink(weigh_sixteen(sums_, seen, most_ + group, sum_ + group, shrinks), shrinks, out + group * head_dim_);
      later_ = kHalvesInTile * 2;
      return reinterpret_cast<const std::uint16_t*>(sums_ + 16);
    }
    int moved = 0;
    for (int row = first / kFour * kFour; row < last; row += kFour) {
      float *most = most_ + group + row, *sum = sum_ + group + row;
      moved |= weigh_four(sums_, row, seen, most, sum, weights_ + row * kTile, shrinks + row) << row;
    }
    shrink(moved, shrinks, out + group * head_dim_);
    later_ = kTileK;
    return weights_;
  }

  void shrink(int moved, const float* shrinks, float* out) {
    for (int row = 0; moved != 0; ++row, moved >>= 1, out += head_dim_) {
      if (moved % 2 == 0) continue;
      for (int d = 0; d < head_dim_; d += Vec::lanes) store(out + d, load(out + d) * set1(shrinks[row]));
    }
  }

  // Rows of a group of 16 that are in [row, stop), which are those that see something of the tile.
  template <class Rows, class Tile>
  void attend_group(const Rows& rows, int group, int row, int stop, const Tile& tile, float* out) {
    const int first = std::max(row, group), last = std::min(stop, group + 16);
    const int there = std::min(group + 16, rows.count);
    const bool whole = first == group && last == group + 16 && tile.first == tile.begin && tile.last == tile.begin + kTile &&
                       rows.position(first) + 1 >= tile.last && rows.first_key(last - 1) <= tile.first;
    multiply_keys(queries_ + group * depth_);
    Seen seen;
    if (!whole) seen = seen_by(rows, group, tile);
    const std::uint16_t* weights = weigh(first - group, last - group, whole ? nullptr : &seen, group, out);
    // Rows that see nothing of the tile keep their bits: a product with nothing would turn -0 to 0.
    const std::size_t above = static_cast<std::size_t>(first - group) * head_dim_;
    const std::size_t below = static_cast<std::size_t>(there - last) * head_dim_;
    float *from = out + group * head_dim_, *end = out + last * head_dim_;
    std::memcpy(kept_, from, above * sizeof(float));
    std::memcpy(kept_ + above, end, below * sizeof(float));
    add_values(weights, from);
    std::memcpy(from, kept_, above * sizeof(float));
    std::memcpy(end, kept_ + above, below * sizeof(float));
  }

  // sums_ [kTile keys][16 rows], of those 16 keys that are there.
  void multiply_keys(const std::uint16_t* queries) {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
    for (int depth = 0; depth < depth_; depth += kTileK, queries += kHalvesInTile) {
      Tiles::template load<6>(queries, kTileBytes);
      multiply_16_keys<0, 4>(depth);
      multiply_16_keys<1, 5>(depth);
      multiply_16_keys<2, 4>(depth);
      multiply_16_keys<3, 5>(depth);
    }
    Tiles::template store<0>(sums_, kTileBytes);
    Tiles::template store<1>(sums_ + 16 * 16, kTileBytes);
    Tiles::template store<2>(sums_ + 32 * 16, kTileBytes);
    Tiles::template store<3>(sums_ + 48 * 16, kTileBytes);
  }

  template <int group, int tile>
  void multiply_16_keys(int depth) {
    if (group < first_keys_ || group >= last_keys_) return;
    Tiles::template load<tile>(key_rows_[group] + depth, static_cast<std::ptrdiff_t>(depth_) * 2);
    Tiles::template multiply<group, tile, 6>();
  }

  // out [16][head_dim] += weights [16][kTile] times values.
  void add_values(const std::uint16_t* weights, float* out) {
    Tiles::template load<4>(weights, kTile * 2);
    Tiles::template load<5>(weights + later_, kTile * 2);
    int column = 0;
    for (; column + 4 <= head_dim_ / 16; column += 4) add_columns<4>(column, out);
    for (; column < head_dim_ / 16; ++column) add_columns<1>(column, out);
  }

  template <int columns>
  void add_columns(int column, float* out) {
    const std::uint16_t* values = values_ + column * kTile * 16;
    out += column * 16;
    add_16_dims<0>(values, out);
    if constexpr (columns == 4) {
      add_16_dims<1>(values + kTile * 16, out + 16);
      add_16_dims<2>(values + 2 * kTile * 16, out + 32);
      add_16_dims<3>(values + 3 * kTile * 16, out + 48);
    }
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(head_dim_) * sizeof(float);
    Tiles::template store<0>(out, stride);
    if constexpr (columns == 4) {
      Tiles::template store<1>(out + 16, stride);
      Tiles::template store<2>(out + 32, stride);
      Tiles::template store<3>(out + 48, stride);
    }
  }

  template <int sums>
  void add_16_dims(const std::uint16_t* values, const float* out) {
    Tiles::template load<sums>(out, static_cast<std::ptrdiff_t>(head_dim_) * sizeof(float));
    Tiles::template load<6>(values, kTileBytes);
    Tiles::template load<7>(values + kHalvesInTile, kTileBytes);
    Tiles::template multiply<sums, 4, 6>();
    Tiles::template multiply<sums, 5, 7>();
  }

  int rows_ = 0, head_dim_ = 0, depth_ = 0;  // depth: head_dim in whole tiles
  int later_ = 0;                            // from the weights of the first 32 keys to those of the others
  int first_keys_ = 0, last_keys_ = 0;       // of the tile at hand, sixteens that have keys
  const std::uint16_t* key_rows_[kTile / 16];
  std::uint16_t *queries_, *rounded_, *keys_, *values_, *weights_;  // [rows / 16][depth / 2][16][2], [16][depth], [kTile][depth], pairs, [16][kTile]
  float *kept_, *sums_, *most_, *sum_;                              // [16][head_dim], [kTile][16], [rows], [rows]
  std::vector<float> memory_;
};

}  // namespace pagemill
