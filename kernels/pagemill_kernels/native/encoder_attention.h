// Attention of one head of one text, whose tokens all see each other: tile by tile of keys, with a running softmax. For encoder.cpp.
//
// By vectors in float32, whatever the type of what it reads and writes, or by tiles of bfloat16 (attention_amx.h), where a text alone is
// computed at a time: so nothing that is not finite comes to another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "attention_amx.h"
#include "attention_tile.h"
#include "room.h"
#include "rows.h"

namespace pagemill {

// Rows of `tokens` queries, keys and values [head_dim], `ld` elements apart, and of what is written, `ldo` apart.
template <class Element>
struct TextHead {
  const Element *queries, *keys, *values;
  Element* out;
  int tokens, head_dim, ld, ldo;

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

// The space that one at a time computes in.
class TextAttention {
 public:
  // For texts of so many tokens: asks for all memory now, so that no thread of the pool does.
  void make_room(int tokens, int head_dim, bool by_tiles) {
    const std::size_t rows = (tokens + kTileRows - 1) / kTileRows * kTileRows;
    states_.reserve(rows);
    out_.reserve(rows * head_dim);
    if (by_tiles) return tiles_.make_room(tokens, head_dim);
    keys_ = static_cast<float*>(room_.of(((kTile + kBlockRows) * head_dim + kBlockRows * kTile) * sizeof(float)));
    scores_ = keys_ + kTile * head_dim;
    queries_ = scores_ + kBlockRows * kTile;
  }

  template <class Element>
  void by_vectors(const TextHead<Element>& head) {
    const int dim = head.head_dim;
    const Vec scale = set1(head.scale());
    states_.assign(head.tokens, RowState());
    out_.assign(static_cast<std::size_t>(head.tokens) * dim, 0.0f);
    for (int tile = 0; tile < head.tokens; tile += kTile) {
      const int there = std::min(kTile, head.tokens - tile);
      const int columns = transpose_keys(head, tile, there);
      for (int row = 0; row < head.tokens; row += kBlockRows) {
        const int count = std::min(kBlockRows, head.tokens - row);
        for (int r = 0; r < count; ++r) {
          const Element* from = head.queries + static_cast<std::size_t>(row + r) * head.ld;
          for (int d = 0; d < dim; d += Vec::lanes) store(queries_ + r * dim + d, load_as(from + d) * scale);
        }
        multiply<false>(count, columns, dim, queries_, dim, keys_, kTile, scores_, kTile);
        float* to = out_.data() + static_cast<std::size_t>(row) * dim;
        for (int r = 0; r < count; ++r) soften(scores_ + r * kTile, columns, 0, there, states_[row + r], to + r * dim, dim);
        multiply<true>(count, dim, there, scores_, kTile, head.values + static_cast<std::size_t>(tile) * head.ld, head.ld, to, dim);
      }
    }
    finish(head);
  }

  // While the processor's tiles have the shapes of whole_tiles().
  void by_tiles(const TextHead<std::uint16_t>& head) {
    states_.resize(head.tokens);  // attend_span begins them, and out_ in whole groups of rows
    out_.resize(static_cast<std::size_t>(head.tokens + kTileRows - 1) / kTileRows * kTileRows * head.head_dim);
    const Cache keys_and_values{const_cast<std::uint16_t*>(head.keys), const_cast<std::uint16_t*>(head.values), 0, 0, 1, BF16};
    auto find = [&](int begin) {
      Tile tile{begin, begin, std::min(begin + kTile, head.tokens), {}};
      for (int i = 0; i < kTile; ++i) tile.offsets[i] = begin + i < tile.last ? static_cast<std::int64_t>(begin + i) * head.ld : -1;
      return tile;
    };
    tiles_.load_queries(head.tokens, head.scale(), [&](int row) { return head.queries + static_cast<std::size_t>(row) * head.ld; });
    tiles_.attend_span(Rows{head.tokens}, 0, head.tokens, keys_and_values, find, find(head.tokens), out_.data(), states_.data());
    finish(head);
  }

 private:
  struct Tile {
    int begin, first, last;
    std::int64_t offsets[kTile];  // elements from the first key or value; -1: not there
  };

  struct Rows {
    int count;
    int position(int) const { return count - 1; }
    int first_key(int) const { return 0; }
    std::pair<int, int> that_see(int, int) const { return {0, count}; }
  };

  // Keys [tile, tile + there) into columns; returns how many there are with those that fill up the last vector.
  template <class Element>
  int transpose_keys(const TextHead<Element>& head, int tile, int there) {
    const int columns = (there + Vec::lanes - 1) / Vec::lanes * Vec::lanes;
    for (int group = 0; group < columns; group += Vec::lanes) {
      const char* rows[Vec::lanes];
      for (int i = 0; i < Vec::lanes; ++i) {
        const Element* row = head.keys + static_cast<std::size_t>(tile + group + i) * head.ld;
        rows[i] = group + i < there ? reinterpret_cast<const char*>(row) : kZeros;
      }
      for (int d = 0; d < head.head_dim; d += kColumns<Element>) {
        Vec several[kColumns<Element>];
        columns_of<Element>(rows, d, several);
        for (int i = 0; i < kColumns<Element>; ++i) store(keys_ + (d + i) * kTile + group, several[i]);
      }
    }
    return columns;
  }

  template <class Element>
  void finish(const TextHead<Element>& head) {
    for (int row = 0; row < head.tokens; ++row) {
      const float* from = out_.data() + static_cast<std::size_t>(row) * head.head_dim;
      Element* to = head.out + static_cast<std::size_t>(row) * head.ldo;
      Vec inverse = set1(1.0f / states_[row].sum);
      for (int d = 0; d < head.head_dim; d += Vec::lanes) store_as(to + d, load(from + d) * inverse);
    }
  }

  std::vector<float> out_;  // [tokens, head_dim], not divided yet
  std::vector<RowState> states_;
  float *keys_ = nullptr, *scores_ = nullptr, *queries_ = nullptr;  // [head_dim][kTile], [kBlockRows][kTile], [kBlockRows][head_dim]
  Room room_;  // theirs
  TileAttention<ProcessorTiles> tiles_;
};

}  // namespace pagemill
