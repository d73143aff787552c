// Causal grouped attention over the paged cache: how a step is cut into pieces, and what they compute.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "native.h"

namespace pagemill {

constexpr int kSpan = 1024;     // keys that are summed up on their own, spans then merged in order: results depend on it. A multiple of the tile.
constexpr int kRangeRows = 96;  // query heads of one KV head that an item computes at once, where one token has no more

// A sequence's queries [first_query, first_query + queries) of one KV head's group, over keys [first_key, last_key).
struct AttentionItem {
  int sequence, kv_head, first_query, queries;
  int first_key, last_key;
  int share;     // -1: all keys of its queries; else the number of its group of items, whose results are merged
  int part;      // its number in the group
  double cost;
};

// Items of the same queries, each over other spans of keys. The last to end merges them, in order.
struct SharedQueries {
  int parts;
  std::size_t offset;  // of its first part in the workspace, elements
};

// One step's, for layers of one window; made once, used for each of them.
class AttentionPlan {
 public:
  AttentionPlan(const Layout& layout, const Heads& heads, int threads);
  int pieces() const { return static_cast<int>(begins_.size()) - 1; }
  // Computes one; any thread. `q` [T, heads, head_dim] with rows `ldq` apart, `out` likewise, of `out_type` (F32 or BF16).
  void compute(int piece, const Layout& layout, const Heads& heads, const Cache& cache, const float* q, int ldq, void* out, Type out_type,
               int ldo) const;

 private:
  void split(const AttentionItem& item, int rows_a_query, int head_dim);
  void gather(double enough);

  std::vector<AttentionItem> items_;
  std::vector<int> begins_;  // pieces' first items, and their end
  std::vector<SharedQueries> shared_;
  std::size_t shared_elements_ = 0;
  std::unique_ptr<float[]> workspace_;
  std::unique_ptr<std::atomic<int>[]> ended_;  // parts of each group
};

// Puts rows [first, last) of new keys and values [T, kv_heads, head_dim], rows `ld` apart, into their slots. Slots that nothing was written to are
// never read, so a block's tail stays as it was.
void write_cache(const Layout& layout, const Heads& heads, const Cache& cache, const float* keys, const float* values, int ld, int first, int last);

}  // namespace pagemill
