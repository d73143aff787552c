// BERT and RoBERTa: texts in, their last hidden states out. model/bert.py is its twin in torch.
//
// Two rounds of the pool a layer: attention, and all that is done row by row from its projection to the next layer's queries. A piece takes some
// rows through the latter, so that what lies between the products stays in its core's cache. Few rows go together, each product divided.
//
// The stream between products is float32. What enters one, and what attention reads, is of the matrices' arithmetic: float32, or bfloat16.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "encoder.h"
#include "encoder_attention.h"
#include "native.h"
#include "room.h"

namespace pagemill {
namespace {

// Rows of a piece at most, and what the products take at once: by vectors, whose pieces stay in the second-level cache, and by tiles, which are
// so fast that the weights have to come from the third level less often. Measured.
constexpr int kMostRows = 96, kRowStep = 12;
constexpr int kMostTileRows = 256, kTileRowStep = 32;
constexpr int kLeastRows = 48;          // each thread has so many, or products are divided instead
constexpr double kLeastCost = 1 << 20;  // of a piece of attention, in multiply-adds

class EncoderSteps {
 public:
  explicit EncoderSteps(const Encoder& spec) : spec_(spec), layers_(spec.layer, spec.layer + spec.layers) {
    inner_ = layers_[0].up == nullptr ? 0 : layers_[0].up->out;
    inner_stride_ = (inner_ + 31) / 32 * 32;
    arithmetic_ = layers_[0].qkv == nullptr ? F32 : layers_[0].qkv->arithmetic;
    by_tiles_ = arithmetic_ == BF16 && tiles_work();
  }

  bool fits() const;
  int forward(Pool& pool, const std::int64_t* token_ids, const std::int64_t* positions, const std::int32_t* query_start, int texts, float* x);
  std::size_t workspace() const { return qkv_.bytes() + seen_.bytes() + between_.bytes(); }

 private:
  // Rows [first, first + count) with what a thread has for them: products go through the pool where there is one.
  struct Part {
    Pool* pool;
    int first, count;
    std::uint16_t* rounded;  // [count, hidden]: the stream's rows as products take them; null where that is float32
    char* between;           // [count, inner_stride]
  };
  template <class Body>
  void parts(Pool& pool, int rows, Body&& body);
  std::size_t part_bytes(int rows) const;
  Part part_of(Pool* pool, int first, int count, char* memory) const;
  void multiply(const Part& part, const Matrix* weight, const void* x, int ldx, void* y, int ldy, Type y_type, Epilogue epilogue) const;
  void embed(const Part& part, const std::int64_t* token_ids, const std::int64_t* positions, float* x) const;
  void norm(const Part& part, const float* weight, const float* bias, float* x) const;
  void queries(const Part& part, const EncoderLayer& layer, const float* x, char* qkv) const;
  void after_attention(const Part& part, const EncoderLayer& layer, const char* seen, float* x) const;
  std::vector<int> divided(const std::int32_t* query_start, int texts) const;
  void attend(const std::int32_t* query_start, int first, int last, const char* qkv, char* seen, TextAttention& own) const;
  template <class Element>
  TextHead<Element> head_of(const std::int32_t* query_start, int item, const char* qkv, char* seen) const;
  int width() const { return spec_.hidden; }
  std::size_t bytes_of(std::size_t elements) const { return elements * (arithmetic_ == BF16 ? 2 : 4); }
  const void* entering(const Part& part, const float* x) const {
    return part.rounded != nullptr ? static_cast<const void*>(part.rounded) : x + static_cast<std::size_t>(part.first) * width();
  }

  Encoder spec_;
  std::vector<EncoderLayer> layers_;
  int inner_, inner_stride_;
  Type arithmetic_;
  bool by_tiles_;
  Room qkv_, seen_, between_;  // [T, 3 * hidden]; what attention gave [T, hidden]; what parts have, of the rows at work
};

bool EncoderSteps::fits() const {
  int hidden = spec_.hidden;
  auto has = [&](const Matrix* m, int out, int in) {
    return m != nullptr && m->out == out && m->in == in && !m->paired && m->arithmetic == arithmetic_;
  };
  for (const EncoderLayer& layer : layers_) {
    if (!has(layer.qkv, 3 * hidden, hidden) || !has(layer.out, hidden, hidden)) return false;
    if (!has(layer.up, inner_, hidden) || !has(layer.down, hidden, inner_)) return false;
    for (const float* vector : {layer.attention_norm, layer.attention_norm_bias, layer.output_norm, layer.output_norm_bias}) {
      if (vector == nullptr) return false;
    }
  }
  if (spec_.heads <= 0 || hidden % spec_.heads != 0 || hidden / spec_.heads % 16 != 0 || hidden / spec_.heads > kMostHeadDim) return false;
  if (spec_.activation < Epilogue::gelu || spec_.activation > Epilogue::relu) return false;
  return spec_.table != nullptr && spec_.table_type != I8 && spec_.position_table != nullptr && spec_.norm != nullptr && spec_.norm_bias != nullptr;
}

std::size_t EncoderSteps::part_bytes(int rows) const {
  std::size_t rounded = arithmetic_ == BF16 ? static_cast<std::size_t>(rows) * width() * 2 : 0;
  return rounded + bytes_of(static_cast<std::size_t>(rows) * inner_stride_);
}

EncoderSteps::Part EncoderSteps::part_of(Pool* pool, int first, int count, char* memory) const {
  if (arithmetic_ == F32) return {pool, first, count, nullptr, memory};
  return {pool, first, count, reinterpret_cast<std::uint16_t*>(memory), memory + static_cast<std::size_t>(count) * width() * 2};
}

// Calls body(part) for all rows.
template <class Body>
void EncoderSteps::parts(Pool& pool, int rows, Body&& body) {
  int threads = pool.threads();
  if (threads > 1 && rows < threads * kLeastRows) return body(part_of(&pool, 0, rows, static_cast<char*>(between_.of(part_bytes(rows)))));
  int step = by_tiles_ ? kTileRowStep : kRowStep, most = by_tiles_ ? kMostTileRows : kMostRows;
  int count = (rows + most - 1) / most;
  count = (count + threads - 1) / threads * threads;
  int each = ((rows + count - 1) / count + step - 1) / step * step;
  std::size_t stride = (part_bytes(each) + 63) / 64 * 64;
  char* memory = static_cast<char*>(between_.of(threads * stride));
  pool.run((rows + each - 1) / each, [&](int piece, int thread) {
    body(part_of(nullptr, piece * each, std::min(each, rows - piece * each), memory + thread * stride));
  });
}

void EncoderSteps::multiply(const Part& part, const Matrix* weight, const void* x, int ldx, void* y, int ldy, Type y_type,
                            Epilogue epilogue) const {
  Product product{weight, x, ldx, part.count, y, ldy, y_type, epilogue};
  if (part.pool == nullptr) return compute(product, 0, 1);
  int shares = pieces(product, part.pool->threads());
  part.pool->run(shares, [&](int piece, int) { compute(product, piece, shares); });
}

void EncoderSteps::embed(const Part& part, const std::int64_t* token_ids, const std::int64_t* positions, float* x) const {
  for (int row = part.first; row < part.first + part.count; ++row) {
    float* to = x + static_cast<std::size_t>(row) * width();
    std::size_t from = token_ids[row] * width();
    const float* position = spec_.position_table + positions[row] * width();
    const auto* half = static_cast<const std::uint16_t*>(spec_.table) + from;
    for (int i = 0; i < width(); i += Vec::lanes) {
      Vec word = spec_.table_type == F32    ? load(static_cast<const float*>(spec_.table) + from + i)
                 : spec_.table_type == BF16 ? load_bf16(half + i)
                                            : load_f16(half + i);
      store(to + i, word + load(position + i));
    }
  }
  norm(part, spec_.norm, spec_.norm_bias, x);
}

void EncoderSteps::norm(const Part& part, const float* weight, const float* bias, float* x) const {
  x += static_cast<std::size_t>(part.first) * width();
  for (int row = 0; row < part.count; ++row, x += width()) {
    layer_norm(x, weight, bias, spec_.eps, width(), part.rounded == nullptr ? nullptr : part.rounded + static_cast<std::size_t>(row) * width());
  }
}

void EncoderSteps::queries(const Part& part, const EncoderLayer& layer, const float* x, char* qkv) const {
  char* to = qkv + bytes_of(static_cast<std::size_t>(part.first) * 3 * width());
  multiply(part, layer.qkv, entering(part, x), width(), to, 3 * width(), arithmetic_, Epilogue::store);
}

void EncoderSteps::after_attention(const Part& part, const EncoderLayer& layer, const char* seen, float* x) const {
  std::size_t first = static_cast<std::size_t>(part.first) * width();
  multiply(part, layer.out, seen + bytes_of(first), width(), x + first, width(), F32, Epilogue::add);
  norm(part, layer.attention_norm, layer.attention_norm_bias, x);
  multiply(part, layer.up, entering(part, x), width(), part.between, inner_stride_, arithmetic_, spec_.activation);
  multiply(part, layer.down, part.between, inner_stride_, x + first, width(), F32, Epilogue::add);
  norm(part, layer.output_norm, layer.output_norm_bias, x);
}

// Heads of texts, text by text, as pieces of like cost: where each begins, and the end.
std::vector<int> EncoderSteps::divided(const std::int32_t* query_start, int texts) const {
  std::vector<int> begins;
  double cost = kLeastCost;
  for (int item = 0; item < texts * spec_.heads; ++item) {
    if (cost >= kLeastCost) {
      begins.push_back(item);
      cost = 0.0;
    }
    double length = query_start[item / spec_.heads + 1] - query_start[item / spec_.heads];
    cost += 2.0 * length * length * (width() / spec_.heads) + 1000.0;
  }
  begins.push_back(texts * spec_.heads);
  return begins;
}

template <class Element>
TextHead<Element> EncoderSteps::head_of(const std::int32_t* query_start, int item, const char* qkv, char* seen) const {
  const int text = item / spec_.heads, hidden = width(), dim = hidden / spec_.heads, column = item % spec_.heads * dim;
  const std::size_t begin = query_start[text];
  const Element* queries = reinterpret_cast<const Element*>(qkv) + begin * 3 * hidden + column;
  Element* out = reinterpret_cast<Element*>(seen) + begin * hidden + column;
  return {queries, queries + hidden, queries + 2 * hidden, out, query_start[text + 1] - query_start[text], dim, 3 * hidden, hidden};
}

// Items [first, last) of `divided`.
void EncoderSteps::attend(const std::int32_t* query_start, int first, int last, const char* qkv, char* seen, TextAttention& own) const {
  std::optional<OwnShapes<ProcessorTiles>> shapes;
  if (by_tiles_) {
    shapes.emplace();
    ProcessorTiles::shape(whole_tiles());
  }
  for (int item = first; item < last; ++item) {
    if (query_start[item / spec_.heads] == query_start[item / spec_.heads + 1]) continue;
    if (by_tiles_) own.by_tiles(head_of<std::uint16_t>(query_start, item, qkv, seen));
    else if (arithmetic_ == BF16) own.by_vectors(head_of<std::uint16_t>(query_start, item, qkv, seen));
    else own.by_vectors(head_of<float>(query_start, item, qkv, seen));
  }
}

int EncoderSteps::forward(Pool& pool, const std::int64_t* token_ids, const std::int64_t* positions, const std::int32_t* query_start, int texts,
                          float* x) {
  int tokens = query_start[texts];
  for (int i = 0; i < tokens; ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= spec_.vocab) return -1;
    if (positions[i] < 0 || positions[i] >= spec_.positions) return -2;
  }
  if (tokens == 0) return 0;
  const std::size_t states = static_cast<std::size_t>(tokens) * width();
  char *qkv = static_cast<char*>(qkv_.of(bytes_of(3 * states))), *seen = static_cast<char*>(seen_.of(bytes_of(states)));
  std::vector<int> begins = divided(query_start, texts);
  const int items = static_cast<int>(begins.size()) - 1;
  const bool few = items < pool.threads();  // each has a space of its own, whichever thread takes it: no more are held than are used
  std::vector<std::unique_ptr<TextAttention>> spaces(few ? items : pool.threads());
  int longest = 0;
  for (int text = 0; text < texts; ++text) longest = std::max(longest, query_start[text + 1] - query_start[text]);
  for (auto& each : spaces) {
    each.reset(new TextAttention);
    each->make_room(longest, width() / spec_.heads, by_tiles_);
  }

  parts(pool, tokens, [&](const Part& part) {
    embed(part, token_ids, positions, x);
    queries(part, layers_[0], x, qkv);
  });
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    pool.run(items, [&](int piece, int thread) {
      attend(query_start, begins[piece], begins[piece + 1], qkv, seen, *spaces[few ? piece : thread]);
    });
    parts(pool, tokens, [&](const Part& part) {
      after_attention(part, layers_[index], seen, x);
      if (index + 1 < layers_.size()) queries(part, layers_[index + 1], x, qkv);
    });
  }
  return 0;
}

}  // namespace
}  // namespace pagemill

using namespace pagemill;

extern "C" {

void* pm_encoder_new(const Encoder* encoder) {
  if (encoder->layers <= 0 || encoder->hidden <= 0) return nullptr;
  try {
    auto made = std::make_unique<EncoderSteps>(*encoder);
    return made->fits() ? made.release() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

void pm_encoder_free(void* encoder) { delete static_cast<EncoderSteps*>(encoder); }

int pm_encoder_forward(void* encoder, void* pool, const std::int64_t* token_ids, const std::int64_t* positions, const std::int32_t* query_start,
                       int texts, float* hidden) {
  try {
    return static_cast<EncoderSteps*>(encoder)->forward(*static_cast<Pool*>(pool), token_ids, positions, query_start, texts, hidden);
  } catch (...) {
    return -3;
  }
}

std::int64_t pm_encoder_workspace(const void* encoder) { return static_cast<std::int64_t>(static_cast<const EncoderSteps*>(encoder)->workspace()); }

}  // extern "C"
