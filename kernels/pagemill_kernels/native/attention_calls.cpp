// What is written into the paged cache, and attention as Python calls it: both in the pool.
#include <algorithm>

#include "attention.h"
#include "rows.h"

namespace pagemill {
namespace {

template <class Element>
void write_rows(const Layout& layout, const Heads& heads, const Cache& cache, void* to, const float* from, int ld, int first, int last) {
  for (int token = first; token < last; ++token) {
    Element* slot = static_cast<Element*>(to) + cache.place(layout.slots[token], heads.head_dim);
    for (int head = 0; head < heads.kv_heads; ++head) {
      Element* place = slot + head * cache.head_stride;
      const float* row = from + static_cast<std::int64_t>(token) * ld + head * heads.head_dim;
      copy_row(row, heads.head_dim, place);
    }
  }
}

}  // namespace

void write_cache(const Layout& layout, const Heads& heads, const Cache& cache, const float* keys, const float* values, int ld, int first, int last) {
  if (cache.type == F32) {
    write_rows<float>(layout, heads, cache, cache.keys, keys, ld, first, last);
    write_rows<float>(layout, heads, cache, cache.values, values, ld, first, last);
  } else {
    write_rows<std::uint16_t>(layout, heads, cache, cache.keys, keys, ld, first, last);
    write_rows<std::uint16_t>(layout, heads, cache, cache.values, values, ld, first, last);
  }
}

}  // namespace pagemill

extern "C" int pm_attention(void* pool, const pagemill::Layout* layout, const pagemill::Heads* heads, const pagemill::Cache* cache, const float* q,
                            const float* k, const float* v, float* out) {
  using namespace pagemill;
  constexpr int kTokens = 32;
  Pool& threads = *static_cast<Pool*>(pool);
  int row = heads->kv_heads * heads->head_dim, wide = heads->heads * heads->head_dim;
  try {
    AttentionPlan plan(*layout, *heads, threads.threads());
    threads.run((layout->tokens + kTokens - 1) / kTokens, [&](int piece, int) {
      write_cache(*layout, *heads, *cache, k, v, row, piece * kTokens, std::min(layout->tokens, (piece + 1) * kTokens));
    });
    threads.run(plan.pieces(), [&](int piece, int) { plan.compute(piece, *layout, *heads, *cache, q, wide, out, F32, wide); });
    return 0;
  } catch (...) {
    return -3;
  }
}
