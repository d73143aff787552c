// Attention of a few rows over a tile where it lies in the cache: keys are transposed in registers on their way into the products, values are read
// as they are.
//
// Copying a tile pays for itself only where many rows read the copy. A row's bits are the same either way: one chain of multiply-adds over head_dim,
// one over the keys. Knows nothing of softmax or of which keys a row sees; called by attention.cpp.
#pragma once

#include <algorithm>

#include "attention_tile.h"
#include "native.h"

namespace pagemill {

constexpr int kFewRows = 2 * kBlockRows;     // of an item: reading a tile twice is still faster than copying it
constexpr int kGroups = kTile / Vec::lanes;  // of keys, one a lane

// Where the next tile's groups begin. Asked for bit by bit while this one is computed. A group that is torn by a block's end is asked for in part, and
// something else with it; that costs time, no more.
class Ahead {
 public:
  template <class Element>
  Ahead(const Cache& cache, const std::int64_t* offsets, int head_dim, Element) {
    for (int group = 0; group < kGroups; ++group) {
      const std::int64_t* own = offsets + group * Vec::lanes;
      if (*own < 0) continue;
      keys_[group] = reinterpret_cast<const char*>(static_cast<const Element*>(cache.keys) + *own);
      values_[group] = reinterpret_cast<const char*>(static_cast<const Element*>(cache.values) + *own);
      int there = static_cast<int>(std::find_if(own, own + Vec::lanes, [](std::int64_t offset) { return offset < 0; }) - own);
      bytes_[group] = there * head_dim * static_cast<int>(sizeof(Element));
    }
  }

  // Of a group's keys and values, what lies where its 16 bytes of each key at `byte` would if keys were as short. Into the second level: the first
  // holds the tile at work. Inlined by force, as GCC 12 takes a function that only asks for one without effect.
  [[gnu::always_inline]] void ask(int group, int byte) const {
    int begin = byte * Vec::lanes;
    if (begin >= bytes_[group]) return;
#pragma GCC unroll 4
    for (int at = begin; at < begin + 16 * Vec::lanes; at += 64) {
      _mm_prefetch(keys_[group] + at, _MM_HINT_T1);
      _mm_prefetch(values_[group] + at, _MM_HINT_T1);
    }
  }

 private:
  const char* keys_[kGroups] = {};
  const char* values_[kGroups] = {};
  int bytes_[kGroups] = {};  // that are there
};

// scores [Rows, kTile] of `Groups` groups of keys, side by side so that no chain is waited for.
template <class Element, int Rows, int Groups>
void score_block(const char* const* keys, const float* queries, int head_dim, float* scores, const Ahead& ahead, int group) {
  constexpr int kDims = kColumns<Element>;
  Vec sums[Groups][Rows];
#pragma GCC unroll 2
  for (int g = 0; g < Groups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) sums[g][r] = set1(0.0f);
  }
  for (int d = 0; d < head_dim; d += kDims) {
#pragma GCC unroll 2
    for (int g = 0; g < Groups; ++g) {
      Vec columns[kDims];
      columns_of<Element>(keys + g * Vec::lanes, d, columns);
      ahead.ask(group + g, d * static_cast<int>(sizeof(Element)));
#pragma GCC unroll 8
      for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sums[g][r] = fma(set1(queries[r * head_dim + d + i]), columns[i], sums[g][r]);
      }
    }
  }
#pragma GCC unroll 2
  for (int g = 0; g < Groups; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) store(scores + r * kTile + g * Vec::lanes, sums[g][r]);
  }
}

template <class Element, int Rows>
void score_rows(int groups, const char* const* keys, const float* queries, int head_dim, float* scores, const Ahead& ahead) {
  constexpr int kTogether = Vec::lanes == 16 || Rows <= 3 ? 2 : 1;  // what the registers hold
  int group = 0;
  for (; group + kTogether <= groups; group += kTogether)
    score_block<Element, Rows, kTogether>(keys + group * Vec::lanes, queries, head_dim, scores + group * Vec::lanes, ahead, group);
  if (group < groups) score_block<Element, Rows, 1>(keys + group * Vec::lanes, queries, head_dim, scores + group * Vec::lanes, ahead, group);
}

// A tile in the cache, as attention.cpp's blocks of rows read it.
template <class Element>
struct InCache {
  const Cache& cache;
  const std::int64_t* offsets;  // [kTile] of its keys and values, elements; -1: not there
  int begin;                    // its first key
  int head_dim;
  const Ahead& ahead;

  // scores [rows, kTile] of the first `columns` keys, a multiple of the lanes; up to kBlockRows rows. A key that is not there is zeros.
  void score(int rows, int columns, const float* queries, float* scores) const {
    const char* keys[kTile];
    for (int key = 0; key < columns; ++key) {
      const auto* place = static_cast<const Element*>(cache.keys) + offsets[key];
      keys[key] = offsets[key] < 0 ? kZeros : reinterpret_cast<const char*>(place);
    }
    int groups = columns / Vec::lanes;
    switch (rows) {
      case 1: score_rows<Element, 1>(groups, keys, queries, head_dim, scores, ahead); break;
      case 2: score_rows<Element, 2>(groups, keys, queries, head_dim, scores, ahead); break;
      case 3: score_rows<Element, 3>(groups, keys, queries, head_dim, scores, ahead); break;
      case 4: score_rows<Element, 4>(groups, keys, queries, head_dim, scores, ahead); break;
      case 5: score_rows<Element, 5>(groups, keys, queries, head_dim, scores, ahead); break;
      default: score_rows<Element, 6>(groups, keys, queries, head_dim, scores, ahead);
    }
    for (int group = groups; group < kGroups; ++group) {
      for (int byte = 0; byte < head_dim * static_cast<int>(sizeof(Element)); byte += 16) ahead.ask(group, byte);
    }
  }

  // Adds the values of keys [first, last), which are there, to `out` [rows, head_dim].
  void add(int rows, int first, int last, const float* scores, float* out) const {
    while (first < last) {
      int block_end = ((begin + first) / cache.block_size + 1) * cache.block_size - begin, end = std::min(last, block_end);
      const auto* values = static_cast<const Element*>(cache.values) + offsets[first];
      multiply<true>(rows, head_dim, end - first, scores + first, kTile, values, head_dim, out, head_dim);
      first = end;
    }
  }
};

}  // namespace pagemill
