// A step of a Llama decoder: Llama, SmolLM2, Mistral with its window, Qwen2 with its biases, Qwen3 with its head norms. model/llama.py is its twin in torch.
//
// Each layer is five rounds of the pool: queries, keys and values; attention; its projection; gate and up; down. What lies between (norms, rotation, the
// writing of keys and values) is a round of its own only where there are many rows: waiting for another thread costs more than a few rows do.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "attention.h"
#include "room.h"
#include "rows.h"

namespace pagemill {
namespace {

constexpr int kAlone = 8192;  // elements that the calling thread goes through itself: about two microseconds
enum Stage { products, attention, rest };

// Calls body(row) for every row, in the pool where there are many.
template <class Body>
void each_row(Pool& pool, int rows, int elements, Body&& body) {
  int each = std::max(1, kAlone / elements);
  if (rows <= each) {
    for (int row = 0; row < rows; ++row) body(row);
    return;
  }
  each = std::max(1, each / 2);
  pool.run((rows + each - 1) / each, [&](int piece, int) {
    for (int row = piece * each, last = std::min(rows, row + each); row < last; ++row) body(row);
  });
}

class DecoderSteps {
 public:
  explicit DecoderSteps(const Decoder& spec)
      : spec_(spec), layers_(spec.layer, spec.layer + spec.layers), wide_(spec.heads * spec.head_dim),
        qkv_((spec.heads + 2 * spec.kv_heads) * spec.head_dim), inner_(spec.layers > 0 ? layers_[0].down->in : 0),
        arithmetic_(spec.layers > 0 ? layers_[0].qkv->arithmetic : F32) {}

  bool fits() const;
  int step(Pool& pool, const std::int64_t* token_ids, const std::int64_t* positions, const Layout& layout, const Cache* caches, int layers, float* x);
  void logits(Pool& pool, const float* hidden, int rows, float* to);
  std::size_t workspace() const { return narrow_.bytes() + broad_.bytes() + rounded_.bytes(); }
  void measure(double* seconds) { seconds_ = seconds; }

 private:
  int refuse(const std::int64_t* token_ids, const std::int64_t* positions, int tokens) const;
  void embed(Pool& pool, const std::int64_t* token_ids, int tokens, float* x);
  void attend(Pool& pool, const DecoderLayer& layer, const std::int64_t* positions, const Layout& layout, const Cache& cache, const AttentionPlan& plan,
              float* x);
  void normed(Pool& pool, const float* x, const float* weight, int tokens, void* to);
  void place_token(const DecoderLayer& layer, const Cache& cache, std::int64_t position, std::int64_t slot, float* qkv) const;
  void multiply(Pool& pool, const Matrix* weight, const void* x, int rows, void* y, Type y_type, Epilogue epilogue);
  int width() const { return arithmetic_ == BF16 ? 2 : 4; }
  void count(Stage stage);

  Decoder spec_;
  std::vector<DecoderLayer> layers_;
  int wide_, qkv_, inner_;
  Type arithmetic_;
  Room narrow_, broad_, rounded_;  // what enters a product [T, hidden or heads]; qkv, or what is between gate and down; hidden rows for the head
  double* seconds_ = nullptr;
  std::chrono::steady_clock::time_point since_;
};

bool DecoderSteps::fits() const {
  auto has = [&](const Matrix* m, int out, int in, bool paired) {
    return m != nullptr && m->out == out && m->in == in && m->paired == paired && m->arithmetic == arithmetic_;
  };
  for (const DecoderLayer& layer : layers_) {
    if (layer.down == nullptr || !has(layer.qkv, qkv_, spec_.hidden, false) || !has(layer.out, spec_.hidden, wide_, false)) return false;
    if (!has(layer.gate_up, 2 * inner_, spec_.hidden, true) || !has(layer.down, spec_.hidden, inner_, false)) return false;
    if (layer.input_norm == nullptr || layer.mlp_norm == nullptr || (layer.q_norm == nullptr) != (layer.k_norm == nullptr)) return false;
    if (layer.cos == nullptr || layer.sin == nullptr) return false;
  }
  if (spec_.hidden % 16 != 0 || spec_.head_dim % 16 != 0 || spec_.head_dim > kMostHeadDim || spec_.heads % spec_.kv_heads != 0) return false;
  if (spec_.embedding == nullptr && (spec_.table == nullptr || spec_.table_type == I8)) return false;
  if (spec_.embedding != nullptr && (spec_.embedding->in != spec_.hidden || spec_.embedding->out != spec_.vocab)) return false;
  return spec_.head != nullptr && spec_.head->in == spec_.hidden && spec_.last_norm != nullptr;
}

void DecoderSteps::count(Stage stage) {
  if (seconds_ == nullptr) return;
  auto now = std::chrono::steady_clock::now();
  seconds_[stage] += std::chrono::duration<double>(now - since_).count();
  since_ = now;
}

int DecoderSteps::refuse(const std::int64_t* token_ids, const std::int64_t* positions, int tokens) const {
  for (int i = 0; i < tokens; ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= spec_.vocab) return -1;
    if (positions[i] < 0 || positions[i] >= spec_.positions) return -2;
  }
  return 0;
}

void DecoderSteps::embed(Pool& pool, const std::int64_t* token_ids, int tokens, float* x) {
  std::size_t hidden = spec_.hidden;
  each_row(pool, tokens, spec_.hidden, [&](int row) {
    float* to = x + row * hidden;
    std::size_t from = token_ids[row] * hidden;
    if (spec_.embedding != nullptr) return row_of(*spec_.embedding, static_cast<int>(token_ids[row]), to);
    auto half = static_cast<const std::uint16_t*>(spec_.table) + from;
    for (std::size_t i = 0; i < hidden; i += Vec::lanes) {
      if (spec_.table_type == F32) store(to + i, load(static_cast<const float*>(spec_.table) + from + i));
      else store(to + i, spec_.table_type == BF16 ? load_bf16(half + i) : load_f16(half + i));
    }
  });
}

void DecoderSteps::normed(Pool& pool, const float* x, const float* weight, int tokens, void* to) {
  std::size_t hidden = spec_.hidden;
  each_row(pool, tokens, spec_.hidden, [&](int row) {
    const float* from = x + row * hidden;
    if (arithmetic_ == BF16) rms_norm(from, weight, spec_.eps, spec_.hidden, static_cast<std::uint16_t*>(to) + row * hidden);
    else rms_norm(from, weight, spec_.eps, spec_.hidden, static_cast<float*>(to) + row * hidden);
  });
}

void DecoderSteps::multiply(Pool& pool, const Matrix* weight, const void* x, int rows, void* y, Type y_type, Epilogue epilogue) {
  int across = epilogue == Epilogue::swiglu ? weight->out / 2 : weight->out;
  Product product{weight, x, weight->in, rows, y, across, y_type, epilogue};
  int shares = pieces(product, pool.threads());
  pool.run(shares, [&](int piece, int) { compute(product, piece, shares); });
}

// Norms and rotates a token's queries where they are, its keys into the cache, with its values.
void DecoderSteps::place_token(const DecoderLayer& layer, const Cache& cache, std::int64_t position, std::int64_t slot, float* qkv) const {
  int dim = spec_.head_dim;
  const float *cos = layer.cos + position * dim, *sin = layer.sin + position * dim;
  std::int64_t in_head = cache.place(slot, dim);
  for (int head = 0; head < spec_.heads; ++head, qkv += dim) {
    if (layer.q_norm != nullptr) rms_norm(qkv, layer.q_norm, spec_.eps, dim, qkv);
    rotate(qkv, cos, sin, dim, qkv);
  }
  for (int head = 0; head < spec_.kv_heads; ++head, qkv += dim) {
    if (layer.k_norm != nullptr) rms_norm(qkv, layer.k_norm, spec_.eps, dim, qkv);
    std::size_t place = head * cache.head_stride + in_head;
    if (cache.type == F32) rotate(qkv, cos, sin, dim, static_cast<float*>(cache.keys) + place);
    else rotate(qkv, cos, sin, dim, static_cast<std::uint16_t*>(cache.keys) + place);
  }
  for (int head = 0; head < spec_.kv_heads; ++head, qkv += dim) {
    std::size_t place = head * cache.head_stride + in_head;
    if (cache.type == F32) copy_row(qkv, dim, static_cast<float*>(cache.values) + place);
    else copy_row(qkv, dim, static_cast<std::uint16_t*>(cache.values) + place);
  }
}

void DecoderSteps::attend(Pool& pool, const DecoderLayer& layer, const std::int64_t* positions, const Layout& layout, const Cache& cache,
                          const AttentionPlan& plan, float* x) {
  void* narrow = narrow_.of(0);
  auto* qkv = static_cast<float*>(broad_.of(0));
  normed(pool, x, layer.input_norm, layout.tokens, narrow);
  count(rest);
  multiply(pool, layer.qkv, narrow, layout.tokens, qkv, F32, Epilogue::store);
  count(products);
  each_row(pool, layout.tokens, 2 * qkv_, [&](int row) {
    place_token(layer, cache, positions[row], layout.slots[row], qkv + static_cast<std::size_t>(row) * qkv_);
  });
  count(rest);
  Heads heads{spec_.heads, spec_.kv_heads, spec_.head_dim, layer.scale, layer.window};
  pool.run(plan.pieces(), [&](int piece, int) { plan.compute(piece, layout, heads, cache, qkv, qkv_, narrow, arithmetic_, wide_); });
  count(attention);
  multiply(pool, layer.out, narrow, layout.tokens, x, F32, Epilogue::add);
  count(products);
}

int DecoderSteps::step(Pool& pool, const std::int64_t* token_ids, const std::int64_t* positions, const Layout& layout, const Cache* caches,
                       int layers, float* x) {
  int tokens = layout.tokens, wrong = refuse(token_ids, positions, tokens);
  if (wrong != 0) return wrong;
  std::size_t rows = tokens;
  if (seconds_ != nullptr) since_ = std::chrono::steady_clock::now();
  void* narrow = narrow_.of(rows * std::max(spec_.hidden, wide_) * width());
  void* broad = broad_.of(std::max(rows * qkv_ * sizeof(float), rows * inner_ * width()));
  std::vector<std::unique_ptr<AttentionPlan>> plans;
  std::vector<int> windows;
  embed(pool, token_ids, tokens, x);
  for (int index = 0; index < std::min(layers, spec_.layers); ++index) {
    const DecoderLayer& layer = layers_[index];
    std::size_t kind = std::find(windows.begin(), windows.end(), layer.window) - windows.begin();
    if (kind == windows.size()) {
      Heads heads{spec_.heads, spec_.kv_heads, spec_.head_dim, layer.scale, layer.window};
      windows.push_back(layer.window);
      plans.emplace_back(new AttentionPlan(layout, heads, pool.threads()));
    }
    attend(pool, layer, positions, layout, caches[index], *plans[kind], x);
    normed(pool, x, layer.mlp_norm, tokens, narrow);
    count(rest);
    multiply(pool, layer.gate_up, narrow, tokens, broad, arithmetic_, Epilogue::swiglu);
    multiply(pool, layer.down, broad, tokens, x, F32, Epilogue::add);
    count(products);
  }
  each_row(pool, tokens, spec_.hidden, [&](int row) {
    float* at = x + static_cast<std::size_t>(row) * spec_.hidden;
    rms_norm(at, spec_.last_norm, spec_.eps, spec_.hidden, at);
  });
  count(rest);
  return 0;
}

void DecoderSteps::logits(Pool& pool, const float* hidden, int rows, float* to) {
  const void* x = hidden;
  if (seconds_ != nullptr) since_ = std::chrono::steady_clock::now();
  if (spec_.head->arithmetic == BF16) {
    auto* rounded = static_cast<std::uint16_t*>(rounded_.of(static_cast<std::size_t>(rows) * spec_.hidden * 2));
    each_row(pool, rows, spec_.hidden, [&](int row) {
      std::size_t place = static_cast<std::size_t>(row) * spec_.hidden;
      copy_row(hidden + place, spec_.hidden, rounded + place);
    });
    x = rounded;
  }
  multiply(pool, spec_.head, x, rows, to, F32, Epilogue::store);
  count(products);
}

}  // namespace
}  // namespace pagemill

using namespace pagemill;

extern "C" {

void* pm_decoder_new(const Decoder* decoder) {
  for (int layer = 0; layer < decoder->layers; ++layer) {
    if (decoder->layer[layer].qkv == nullptr || decoder->layer[layer].down == nullptr) return nullptr;
  }
  try {
    auto made = std::make_unique<DecoderSteps>(*decoder);
    return made->fits() ? made.release() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

void pm_decoder_free(void* decoder) { delete static_cast<DecoderSteps*>(decoder); }

int pm_decoder_step(void* decoder, void* pool, const std::int64_t* token_ids, const std::int64_t* positions, const Layout* layout, const Cache* caches,
                    int layers, float* hidden) {
  try {
    return static_cast<DecoderSteps*>(decoder)->step(*static_cast<Pool*>(pool), token_ids, positions, *layout, caches, layers, hidden);
  } catch (...) {
    return -3;
  }
}

int pm_decoder_logits(void* decoder, void* pool, const float* hidden, int rows, float* logits) {
  try {
    static_cast<DecoderSteps*>(decoder)->logits(*static_cast<Pool*>(pool), hidden, rows, logits);
    return 0;
  } catch (...) {
    return -3;
  }
}

std::int64_t pm_decoder_workspace(const void* decoder) { return static_cast<std::int64_t>(static_cast<const DecoderSteps*>(decoder)->workspace()); }

void pm_decoder_measure(void* decoder, double* seconds) { static_cast<DecoderSteps*>(decoder)->measure(seconds); }

}  // extern "C"
