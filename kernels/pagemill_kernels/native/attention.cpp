// Causal grouped attention over the paged cache. `reference.paged_attention` is its specification.
//
// An item's queries pass over their keys tile by tile with a running softmax (https://arxiv.org/abs/2205.14135), spans of kSpan keys each on their
// own. Tiles and spans are counted from the sequence's start and every row goes through them in order, leaving out those that it sees nothing of: so
// its bits follow from its position and keys, whatever is computed beside it and however the keys lie in blocks.
//
// Where the processor has tiles they compute over caches of bfloat16 (attention_amx.h), all rows alike; vectors compute all else.
#include "attention.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "attention_amx.h"
#include "attention_few.h"
#include "attention_tile.h"
#include "rows.h"

namespace pagemill {
namespace {

// A thread's own, grown once.
class Scratch {
 public:
  float *keys, *values, *queries, *out, *total;  // [head_dim, kTile], [kTile, head_dim], and rows of head_dim
  alignas(64) float scores[kBlockRows * kTile];
  std::vector<RowState> states, totals;
  std::vector<char> begun;  // rows that have a total
  TileAttention<ProcessorTiles> tiles;

  void make_room(int rows, int head_dim) {
    std::size_t tile = static_cast<std::size_t>(kTile) * head_dim, block = static_cast<std::size_t>(rows) * head_dim;
    if (memory_.size() < 2 * tile + 3 * block + 16) memory_.resize(2 * tile + 3 * block + 16);
    if (states.size() < static_cast<std::size_t>(rows)) {
      states.resize(rows);
      totals.resize(rows);
      begun.resize(rows);
    }
    std::size_t past = (reinterpret_cast<std::uintptr_t>(memory_.data()) & 63) / sizeof(float);
    keys = memory_.data() + (16 - past) % 16;
    values = keys + tile;
    queries = values + tile;
    out = queries + block;
    total = out + block;
  }

 private:
  std::vector<float> memory_;
};

thread_local std::unique_ptr<Scratch> scratch;  // behind a pointer, so that the loops do not look it up again and again

Scratch& own_scratch(int rows, int head_dim) {
  if (scratch == nullptr) scratch = std::make_unique<Scratch>();
  scratch->make_room(rows, head_dim);
  return *scratch;
}

// What all items of one layer share.
struct Layer {
  const Layout& layout;
  const Heads& heads;
  const Cache& cache;
  const float* q;
  int ldq;
  void* out;
  Type out_type;
  int ldo;
  bool by_tiles;

  const float* query(const AttentionItem& item, int row) const {
    int group = heads.heads / heads.kv_heads;
    std::int64_t token = layout.query_start[item.sequence] + item.first_query + row / group;
    return q + token * ldq + static_cast<std::int64_t>(item.kv_head * group + row % group) * heads.head_dim;
  }
};

// An item's rows: query by query, each with the heads of the group.
struct Rows {
  int count, group, first_position, window;
  int position(int row) const { return first_position + row / group; }
  int first_key(int row) const { return window > 0 ? std::max(0, position(row) - window + 1) : 0; }
  bool sees(int row, int first, int last) const { return position(row) >= first && first_key(row) < last; }
  // Those that see any of keys [first, last), from one row up to another, whole queries: positions rise, so they stand together.
  std::pair<int, int> that_see(int first, int last) const {
    int row = 0, stop = count;
    while (row < stop && !sees(row, first, last)) row += group;
    while (stop > row && !sees(stop - 1, first, last)) stop -= group;
    return {row, stop};
  }
};

// Where a tile's keys lie. Paged rows are too short for the processor to see a stream, so the next tile's are asked for while one is loaded.
struct Tile {
  int begin = 0, first = 0, last = 0;  // it begins at key `begin`; [first, last) are there
  std::int64_t offsets[kTile];         // elements from the cache's start; -1: not there

  Tile() { std::fill(offsets, offsets + kTile, -1); }
  int columns() const { return (last - begin + Vec::lanes - 1) / Vec::lanes * Vec::lanes; }
};

// The tile that begins at `begin`, with keys [first, last) at most.
Tile find_tile(const Layer& layer, const AttentionItem& item, int begin, int first, int last) {
  Tile tile;
  tile.begin = begin;
  tile.first = std::max(begin, first);
  tile.last = std::min(begin + kTile, last);
  const std::int64_t* table = layer.layout.block_tables + static_cast<std::int64_t>(item.sequence) * layer.layout.table_stride;
  int size = layer.cache.block_size, dim = layer.heads.head_dim;
  for (int key = tile.first; key < tile.last;) {
    int block = key / size, end = std::min(tile.last, (block + 1) * size);
    std::int64_t offset = item.kv_head * layer.cache.head_stride + table[block] * layer.cache.block_stride + key % size * dim;
    for (; key < end; ++key, offset += dim) tile.offsets[key - begin] = offset;
  }
  return tile;
}

Tile first_tile(const Layer& layer, const AttentionItem& item, int first) {
  return find_tile(layer, item, first / kTile * kTile, first, std::min(item.last_key, (first / kSpan + 1) * kSpan));
}

inline void ask_for(const void* from, std::int64_t offset, int row_bytes, int element) {
  if (offset < 0) return;
  const char* at = static_cast<const char*>(from) + offset * element;
  for (int line = 0; line < row_bytes; line += 64) _mm_prefetch(at + line, _MM_HINT_T0);
}

// The tile's keys, transposed, and values into the scratch. Absent keys are zeros, absent values whatever was there: no row reads them.
template <class Element>
void load_elements(const Cache& cache, const Tile& tile, const Tile& next, int head_dim, float* keys_to, float* values_to) {
  const auto *keys = static_cast<const Element*>(cache.keys), *values = static_cast<const Element*>(cache.values);
  constexpr int element = sizeof(Element);
  int columns = tile.columns();
  for (int group = 0; group < columns; group += Vec::lanes) {
    const char* rows[Vec::lanes];
    for (int i = 0; i < Vec::lanes; ++i) {
      std::int64_t offset = tile.offsets[group + i];
      rows[i] = offset < 0 ? kZeros : reinterpret_cast<const char*>(keys + offset);
      ask_for(keys, next.offsets[group + i], head_dim * element, element);
    }
    for (int d = 0; d < head_dim; d += kColumns<Element>) {
      Vec vectors[kColumns<Element>];
      columns_of<Element>(rows, d, vectors);
      for (int i = 0; i < kColumns<Element>; ++i) store(keys_to + (d + i) * kTile + group, vectors[i]);
    }
  }
  for (int i = columns; i < kTile; ++i) ask_for(keys, next.offsets[i], head_dim * element, element);
  for (int key = 0; key < kTile; ++key, values_to += head_dim) {
    ask_for(values, next.offsets[key], head_dim * element, element);
    if (tile.offsets[key] < 0) continue;
    const Element* from = values + tile.offsets[key];
    for (int d = 0; d < head_dim; d += Vec::lanes) store(values_to + d, load_as(from + d));
  }
}

void load_tile(const Layer& layer, const Tile& tile, const Tile& next, Scratch& to) {
  if (layer.cache.type == F32) load_elements<float>(layer.cache, tile, next, layer.heads.head_dim, to.keys, to.values);
  else load_elements<std::uint16_t>(layer.cache, tile, next, layer.heads.head_dim, to.keys, to.values);
}

// A tile in the scratch, as blocks of rows read it.
struct Copied {
  const Scratch& from;
  int head_dim;

  void score(int rows, int columns, const float* queries, float* scores) const {
    multiply<false>(rows, columns, head_dim, queries, head_dim, from.keys, kTile, scores, kTile);
  }
  void add(int rows, int first, int last, const float* scores, float* out) const {
    multiply<true>(rows, head_dim, last - first, scores + first, kTile, from.values + first * head_dim, head_dim, out, head_dim);
  }
};

// Rows [row, row + count) of an item over a tile that begins at key `begin`, Copied or InCache.
template <class Place>
void attend_block(const Place& place, const Rows& rows, int row, int count, int begin, int head_dim, Scratch& own) {
  int firsts[kBlockRows], lasts[kBlockRows];
  int all_first = 0, all_last = kTile, most = 0;
  for (int r = 0; r < count; ++r) {
    firsts[r] = std::max(0, rows.first_key(row + r) - begin);
    lasts[r] = std::min(kTile, rows.position(row + r) - begin + 1);
    all_first = std::max(all_first, firsts[r]);
    all_last = std::min(all_last, lasts[r]);
    most = std::max(most, lasts[r]);
  }
  int columns = most + Vec::lanes - 1;
  columns -= columns % Vec::lanes;
  place.score(count, columns, own.queries + row * head_dim, own.scores);
  float* out = own.out + row * head_dim;
  for (int r = 0; r < count; ++r)
    soften(own.scores + r * kTile, columns, firsts[r], lasts[r], own.states[row + r], out + r * head_dim, head_dim);
  auto add = [&](int r, int together, int first, int last) {
    if (first < last) place.add(together, first, last, own.scores + r * kTile, out + r * head_dim);
  };
  if (all_first >= all_last) {
    for (int r = 0; r < count; ++r) add(r, 1, firsts[r], lasts[r]);
    return;
  }
  for (int r = 0; r < count; ++r) add(r, 1, firsts[r], all_first);
  add(0, count, all_first, all_last);
  for (int r = 0; r < count; ++r) add(r, 1, all_last, lasts[r]);
}

// The rows of an item that see something of a tile.
template <class Place>
void attend_tile(const Place& place, const Rows& rows, const Tile& tile, int head_dim, Scratch& own) {
  auto [row, stop] = rows.that_see(tile.begin, tile.last);
  for (; row < stop; row += kBlockRows) attend_block(place, rows, row, std::min(kBlockRows, stop - row), tile.begin, head_dim, own);
}

void attend_few(const Layer& layer, const Rows& rows, const Tile& tile, const Tile& next, Scratch& own) {
  int dim = layer.heads.head_dim;
  auto in_cache = [&](auto element) {
    Ahead ahead(layer.cache, next.offsets, dim, element);
    attend_tile(InCache<decltype(element)>{layer.cache, tile.offsets, tile.begin, dim, ahead}, rows, tile, dim, own);
  };
  layer.cache.type == F32 ? in_cache(float()) : in_cache(std::uint16_t());
}

void attend_many(const Layer& layer, const Rows& rows, const Tile& tile, const Tile& next, Scratch& own) {
  load_tile(layer, tile, next, own);
  attend_tile(Copied{own, layer.heads.head_dim}, rows, tile, layer.heads.head_dim, own);
}

// Joins a later span's row to the total of those before it.
void merge(RowState& total, float* total_out, bool begun, const RowState& part, const float* part_out, int head_dim) {
  if (!begun) {
    total = part;
    std::memcpy(total_out, part_out, head_dim * sizeof(float));
    return;
  }
  float now = std::max(total.most, part.most);
  Vec old = exp(set1(total.most - now)), fresh = exp(set1(part.most - now));
  float factors[2][Vec::lanes];
  store(factors[0], old);
  store(factors[1], fresh);
  total.most = now;
  total.sum = __builtin_fmaf(part.sum, factors[1][0], total.sum * factors[0][0]);
  for (int d = 0; d < head_dim; d += Vec::lanes) store(total_out + d, fma(load(part_out + d), fresh, load(total_out + d) * old));
}

// False where not all of it is finite.
template <class Element>
bool finish(const RowState& state, const float* from, Element* to, int head_dim) {
  Vec sum = set1(state.sum), trace = set1(0.0f);
  for (int d = 0; d < head_dim; d += Vec::lanes) {
    Vec value = load(from + d) / sum;
    store_as(to + d, value);
    trace = fma(value, set1(0.0f), trace);
  }
  return sum_lanes(trace) == 0.0f;
}

bool finish_row(const Layer& layer, const AttentionItem& item, const Rows& rows, int row, const RowState& state, const float* from) {
  std::int64_t token = layer.layout.query_start[item.sequence] + item.first_query + row / rows.group;
  int head = item.kv_head * rows.group + row % rows.group, dim = layer.heads.head_dim;
  std::int64_t place = token * layer.ldo + static_cast<std::int64_t>(head) * dim;
  if (layer.out_type == F32) return finish(state, from, static_cast<float*>(layer.out) + place, dim);
  return finish(state, from, static_cast<std::uint16_t*>(layer.out) + place, dim);
}

void load_queries(const Layer& layer, const AttentionItem& item, const Rows& rows, Scratch& own) {
  int dim = layer.heads.head_dim;
  if (layer.by_tiles) return own.tiles.load_queries(rows.count, layer.heads.scale, [&](int row) { return layer.query(item, row); });
  Vec scale = set1(layer.heads.scale);
  for (int row = 0; row < rows.count; ++row) {
    const float* from = layer.query(item, row);
    for (int d = 0; d < dim; d += Vec::lanes) store(own.queries + row * dim + d, load(from + d) * scale);
  }
}

// All rows over keys [first, last), which lie in one span, into `states` and `out`. `after`: what the thread comes to next.
void attend_span(const Layer& layer, const AttentionItem& item, const Rows& rows, int first, int last, const Tile& after, Scratch& own) {
  int dim = layer.heads.head_dim;
  if (layer.by_tiles) {
    auto find = [&](int begin) { return find_tile(layer, item, begin, first, last); };
    return own.tiles.attend_span(rows, first, last, layer.cache, find, after, own.out, own.states.data());
  }
  std::fill(own.states.begin(), own.states.begin() + rows.count, RowState{});
  std::fill(own.out, own.out + rows.count * dim, 0.0f);
  Tile tile = find_tile(layer, item, first / kTile * kTile, first, last);
  while (tile.begin < last) {
    bool ends = tile.last == last;
    Tile next = ends ? after : find_tile(layer, item, tile.begin + kTile, first, last);
    (rows.count <= kFewRows ? attend_few : attend_many)(layer, rows, tile, next, own);
    if (ends) break;
    tile = next;
  }
}

Rows rows_of(const Layer& layer, const AttentionItem& item) {
  int group = layer.heads.heads / layer.heads.kv_heads;
  int tokens = layer.layout.query_start[item.sequence + 1] - layer.layout.query_start[item.sequence];
  int context = layer.layout.seq_lens[item.sequence] - tokens;
  return {item.queries * group, group, context + item.first_query, layer.heads.window};
}

void attend_whole(const Layer& layer, const AttentionItem& item, const Rows& rows, const Tile& after, Scratch& own);

// Each query of an item whose outputs are not all finite: tiles multiply what a row does not see by nothing, and if that is no number the
// row is none. Alone it meets nothing that it does not see.
void attend_each(const Layer& layer, const AttentionItem& item, const Rows& rows, Scratch& own) {
  for (int query = 0; query < item.queries; ++query) {
    AttentionItem one = item;
    one.first_query += query;
    one.queries = 1;
    one.first_key = rows.first_key(query * rows.group);
    one.last_key = rows.position(query * rows.group) + 1;
    Rows heads = rows_of(layer, one);
    load_queries(layer, one, heads, own);
    attend_whole(layer, one, heads, Tile(), own);
  }
}

void attend_whole(const Layer& layer, const AttentionItem& item, const Rows& rows, const Tile& after, Scratch& own) {
  int dim = layer.heads.head_dim;
  bool one = item.first_key / kSpan == (item.last_key - 1) / kSpan;
  std::fill(own.begun.begin(), own.begun.begin() + rows.count, 0);
  for (int first = item.first_key; first < item.last_key;) {
    int last = std::min(item.last_key, (first / kSpan + 1) * kSpan);
    attend_span(layer, item, rows, first, last, last < item.last_key ? first_tile(layer, item, last) : after, own);
    for (int row = 0; row < rows.count && !one; ++row) {
      if (!rows.sees(row, first, last)) continue;
      merge(own.totals[row], own.total + row * dim, own.begun[row] != 0, own.states[row], own.out + row * dim, dim);
      own.begun[row] = 1;
    }
    first = last;
  }
  bool finite = true;
  for (int row = 0; row < rows.count; ++row)
    finite &= finish_row(layer, item, rows, row, one ? own.states[row] : own.totals[row], (one ? own.out : own.total) + row * dim);
  if (!finite && layer.by_tiles && item.queries > 1) attend_each(layer, item, rows, own);
}

// A part in the workspace: its rows' outputs [rows, head_dim], then their states.
void keep_part(const Rows& rows, int head_dim, const Scratch& own, float* part) {
  std::memcpy(part, own.out, static_cast<std::size_t>(rows.count) * head_dim * sizeof(float));
  std::memcpy(part + static_cast<std::size_t>(rows.count) * head_dim, own.states.data(), rows.count * sizeof(RowState));
}

void merge_parts(const Layer& layer, const AttentionItem& item, const Rows& rows, int parts, const float* first_part, Scratch& own) {
  int dim = layer.heads.head_dim, first_span = rows.first_key(0) / kSpan;
  std::size_t stride = static_cast<std::size_t>(rows.count) * (dim + 2);
  bool finite = true;
  for (int row = 0; row < rows.count; ++row) {
    RowState total;
    bool begun = false;
    for (int index = 0; index < parts; ++index) {
      int first = (first_span + index) * kSpan;
      if (!rows.sees(row, first, first + kSpan)) continue;
      const float* part = first_part + index * stride;
      const float* kept = part + static_cast<std::size_t>(rows.count) * dim + row * 2;
      RowState state{kept[0], kept[1]};
      merge(total, own.total, begun, state, part + static_cast<std::size_t>(row) * dim, dim);
      begun = true;
    }
    finite &= finish_row(layer, item, rows, row, total, own.total);
  }
  if (!finite && layer.by_tiles && item.queries > 1) attend_each(layer, item, rows, own);
}

}  // namespace

void AttentionPlan::compute(int piece, const Layout& layout, const Heads& heads, const Cache& cache, const float* q, int ldq, void* out,
                            Type out_type, int ldo) const {
  Layer layer{layout, heads, cache, q, ldq, out, out_type, ldo, cache.type == BF16 && tiles_work()};
  int group = heads.heads / heads.kv_heads;
  Scratch& own = own_scratch((std::max(kRangeRows, group) + 15) / 16 * 16, heads.head_dim);
  std::optional<OwnShapes<ProcessorTiles>> shapes;
  if (layer.by_tiles) {
    own.tiles.make_room(std::max(kRangeRows, group), heads.head_dim);
    shapes.emplace();
    ProcessorTiles::shape(whole_tiles());
  }
  for (int index = begins_[piece], end = begins_[piece + 1]; index < end; ++index) {
    const AttentionItem& item = items_[index];
    Tile after = index + 1 < end ? first_tile(layer, items_[index + 1], items_[index + 1].first_key) : Tile();
    Rows rows = rows_of(layer, item);
    load_queries(layer, item, rows, own);
    if (item.share < 0) {
      attend_whole(layer, item, rows, after, own);
      continue;
    }
    const SharedQueries& shared = shared_[item.share];
    float* first_part = workspace_.get() + shared.offset;
    attend_span(layer, item, rows, item.first_key, item.last_key, after, own);
    keep_part(rows, heads.head_dim, own, first_part + static_cast<std::size_t>(item.part) * rows.count * (heads.head_dim + 2));
    if (ended_[item.share].fetch_add(1) + 1 == shared.parts) {
      ended_[item.share].store(0);  // for the next layer
      merge_parts(layer, item, rows, shared.parts, first_part, own);
    }
  }
}

}  // namespace pagemill
