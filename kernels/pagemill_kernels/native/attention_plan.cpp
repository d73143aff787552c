// Cuts a step's attention into pieces of like cost. How it is cut changes no result (attention.cpp), so it may follow the load.
#include <algorithm>

#include "attention.h"

namespace pagemill {
namespace {

// Of a key, in rows' worth of work: fetched, transposed.
constexpr double kKeyCost = 8.0;
// Less than this is not worth handing to another thread: about five microseconds.
constexpr double kLeastCost = 1.0e5;
constexpr int kPiecesAThread = 6;

double cost_of(const AttentionItem& item, int group, int head_dim) {
  double seen = item.last_key - item.first_key - 0.5 * (item.queries - 1);
  return std::max(seen, 1.0) * (kKeyCost + static_cast<double>(item.queries) * group) * head_dim;
}

}  // namespace

AttentionPlan::AttentionPlan(const Layout& layout, const Heads& heads, int threads) {
  int group = heads.heads / heads.kv_heads;
  int most_queries = std::max(1, kRangeRows / group);
  double total = 0.0;
  std::vector<AttentionItem> whole;
  for (int sequence = 0; sequence < layout.sequences; ++sequence) {
    int tokens = layout.query_start[sequence + 1] - layout.query_start[sequence];
    int context = layout.seq_lens[sequence] - tokens;
    for (int head = 0; head < heads.kv_heads; ++head) {
      for (int first = 0; first < tokens; first += most_queries) {
        int queries = std::min(most_queries, tokens - first);
        int begin = heads.window > 0 ? std::max(0, context + first - heads.window + 1) : 0;
        AttentionItem item{sequence, head, first, queries, begin, context + first + queries, -1, 0, 0.0};
        item.cost = cost_of(item, group, heads.head_dim);
        total += item.cost;
        whole.push_back(item);
      }
    }
  }
  for (const AttentionItem& item : whole) {
    bool one_span = item.first_key / kSpan == (item.last_key - 1) / kSpan;
    if (threads == 1 || one_span || item.cost * threads * 4 < total) {
      items_.push_back(item);
    } else {
      split(item, group, heads.head_dim);
    }
  }
  gather(std::max(kLeastCost, total / (threads * kPiecesAThread)));
  if (shared_elements_ > 0) workspace_.reset(new float[shared_elements_]);
  if (!shared_.empty()) ended_.reset(new std::atomic<int>[shared_.size()]());
}

// Neighbours stay together: they read the same keys, which the first of them has brought near. The costliest pieces come first.
void AttentionPlan::gather(double enough) {
  struct Piece {
    std::size_t first, last;
    double cost;
  };
  std::vector<Piece> pieces;
  for (std::size_t index = 0; index < items_.size(); ++index) {
    if (pieces.empty() || pieces.back().cost >= enough) pieces.push_back({index, index, 0.0});
    pieces.back().last = index + 1;
    pieces.back().cost += items_[index].cost;
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
  std::vector<AttentionItem> sorted;
  sorted.reserve(items_.size());
  for (const Piece& piece : pieces) {
    begins_.push_back(static_cast<int>(sorted.size()));
    sorted.insert(sorted.end(), items_.begin() + piece.first, items_.begin() + piece.last);
  }
  begins_.push_back(static_cast<int>(sorted.size()));
  items_.swap(sorted);
}

void AttentionPlan::split(const AttentionItem& item, int rows_a_query, int head_dim) {
  int first = item.first_key / kSpan, last = (item.last_key - 1) / kSpan;
  for (int span = first; span <= last; ++span) {
    AttentionItem part = item;
    part.first_key = std::max(item.first_key, span * kSpan);
    part.last_key = std::min(item.last_key, (span + 1) * kSpan);
    part.share = static_cast<int>(shared_.size());
    part.part = span - first;
    part.cost = cost_of(part, rows_a_query, head_dim);
    items_.push_back(part);
  }
  int parts = last - first + 1;
  shared_.push_back({parts, shared_elements_});
  shared_elements_ += static_cast<std::size_t>(parts) * item.queries * rows_a_query * (head_dim + 2);
}

}  // namespace pagemill
