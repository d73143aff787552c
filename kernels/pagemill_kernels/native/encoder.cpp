// BERT and RoBERTa: texts in, their last hidden states out. model/bert.py is its twin in torch.
//
// Two rounds of the pool a layer: attention, and all that is done row by row from its projection to the next layer's queries. A piece takes some
// rows through the latter, so that what lies between the products stays in its core's cache. Few rows go together, each product divided.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "attention_tile.h"
#include "encoder.h"
#include "native.h"
#include "rows.h"

namespace pagemill {
namespace {

constexpr int kMostRows = 96;    // of a piece
constexpr int kLeastRows = 48;   // each thread has so many, or products are divided instead
constexpr int kRowStep = 12;     // what the products take at once
constexpr double kLeastCost = 1 << 20;  // of a piece of attention, in multiply-adds

// Memory that grows to the widest step and is kept.
class Floats {
 public:
  float* of(std::size_t count) {
    if (count > count_) {
      memory_.reset();
      count_ = 0;
      memory_.reset(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t(64))));
      count_ = count;
    }
    return memory_.get();
  }
  std::size_t bytes() const { return count_ * sizeof(float); }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<float, Free> memory_;
  std::size_t count_ = 0;
};

// What one thread needs for attention.
struct AttentionScratch {
  alignas(64) float keys[kMostHeadDim * kTile];      // [head_dim][kTile]
  alignas(64) float queries[kBlockRows * kMostHeadDim];
  alignas(64) float scores[kBlockRows * kTile];
  std::vector<RowState> states;
};
alignas(64) const float kNothing[kMostHeadDim] = {};

class EncoderSteps {
 public:
  explicit EncoderSteps(const Encoder& spec) : spec_(spec), layers_(spec.layer, spec.layer + spec.layers) {
    inner_ = layers_[0].up == nullptr ? 0 : layers_[0].up->out;
    inner_stride_ = (inner_ + 15) / 16 * 16;
  }

  bool fits() const;
  int forward(Pool& pool, const std::int64_t* token_ids, const std::int64_t* positions, const std::int32_t* query_start, int texts, float* x);
  std::size_t workspace() const { return qkv_.bytes() + seen_.bytes() + between_.bytes(); }

 private:
  // Rows [first, first + count) with what a thread has for them: products go through the pool where there is one.
  struct Part {
    Pool* pool;
    int first, count;
    float* between;  // [count, inner_stride]
  };
  template <class Body>
  void parts(Pool& pool, int rows, Body&& body);
  void multiply(const Part& part, const Matrix* weight, const float* x, int ldx, float* y, int ldy, Epilogue epilogue) const;
  void embed(const Part& part, const std::int64_t* token_ids, const std::int64_t* positions, float* x) const;
  void norm(const Part& part, const float* weight, const float* bias, float* x) const;
  void queries(const Part& part, const EncoderLayer& layer, const float* x, float* qkv) const;
  void activate(const Part& part) const;
  void after_attention(const Part& part, const EncoderLayer& layer, const float* seen, float* x) const;
  void attend(const float* qkv, int begin, int tokens, int head, float* seen, AttentionScratch& own) const;
  int width() const { return spec_.hidden; }

  Encoder spec_;
  std::vector<EncoderLayer> layers_;
  int inner_, inner_stride_;
  Floats qkv_, seen_, between_;  // [T, 3 * hidden]; what attention gave [T, hidden]; what is between up and down, of the rows at work
};

bool EncoderSteps::fits() const {
  int hidden = spec_.hidden;
  auto has = [](const Matrix* m, int out, int in) { return m != nullptr && m->out == out && m->in == in && !m->paired && m->arithmetic == F32; };
  for (const EncoderLayer& layer : layers_) {
    if (!has(layer.qkv, 3 * hidden, hidden) || !has(layer.out, hidden, hidden)) return false;
    if (!has(layer.up, inner_, hidden) || !has(layer.down, hidden, inner_)) return false;
    for (const float* vector : {layer.attention_norm, layer.attention_norm_bias, layer.output_norm, layer.output_norm_bias}) {
      if (vector == nullptr) return false;
    }
  }
  if (spec_.heads <= 0 || hidden % spec_.heads != 0 || hidden / spec_.heads % 16 != 0 || hidden / spec_.heads > kMostHeadDim) return false;
  return spec_.table != nullptr && spec_.table_type != I8 && spec_.position_table != nullptr && spec_.norm != nullptr && spec_.norm_bias != nullptr;
}

// Calls body(part) for all rows.
template <class Body>
void EncoderSteps::parts(Pool& pool, int rows, Body&& body) {
  int threads = pool.threads();
  if (threads > 1 && rows < threads * kLeastRows) return body(Part{&pool, 0, rows, between_.of(static_cast<std::size_t>(rows) * inner_stride_)});
  int count = (rows + kMostRows - 1) / kMostRows;
  count = (count + threads - 1) / threads * threads;
  int each = ((rows + count - 1) / count + kRowStep - 1) / kRowStep * kRowStep;
  std::size_t stride = static_cast<std::size_t>(each) * inner_stride_;
  float* between = between_.of(threads * stride);
  pool.run((rows + each - 1) / each, [&](int piece, int thread) {
    body(Part{nullptr, piece * each, std::min(each, rows - piece * each), between + thread * stride});
  });
}

void EncoderSteps::multiply(const Part& part, const Matrix* weight, const float* x, int ldx, float* y, int ldy, Epilogue epilogue) const {
  Product product{weight, x, ldx, part.count, y, ldy, F32, epilogue};
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
  for (int row = part.first; row < part.first + part.count; ++row) {
    layer_norm(x + static_cast<std::size_t>(row) * width(), weight, bias, spec_.eps, width());
  }
}

void EncoderSteps::queries(const Part& part, const EncoderLayer& layer, const float* x, float* qkv) const {
  std::size_t first = part.first;
  multiply(part, layer.qkv, x + first * width(), width(), qkv + first * 3 * width(), 3 * width(), Epilogue::store);
}

// Rows end in lanes that no product reads.
void EncoderSteps::activate(const Part& part) const {
  auto all = [&](auto&& each) {
    auto row = [&](int index) {
      float* at = part.between + static_cast<std::size_t>(index) * inner_stride_;
      for (int i = 0; i < inner_stride_; i += Vec::lanes) store(at + i, each(load(at + i)));
    };
    if (part.pool != nullptr) return part.pool->run(part.count, [&](int piece, int) { row(piece); });
    for (int index = 0; index < part.count; ++index) row(index);
  };
  if (spec_.activation == 0) all([](Vec a) { return gelu(a); });
  else if (spec_.activation == 1) all([](Vec a) { return gelu_tanh(a); });
  else all([](Vec a) { return relu(a); });
}

void EncoderSteps::after_attention(const Part& part, const EncoderLayer& layer, const float* seen, float* x) const {
  std::size_t first = static_cast<std::size_t>(part.first) * width();
  multiply(part, layer.out, seen + first, width(), x + first, width(), Epilogue::add);
  norm(part, layer.attention_norm, layer.attention_norm_bias, x);
  multiply(part, layer.up, x + first, width(), part.between, inner_stride_, Epilogue::store);
  activate(part);
  multiply(part, layer.down, part.between, inner_stride_, x + first, width(), Epilogue::add);
  norm(part, layer.output_norm, layer.output_norm_bias, x);
}

// One head of one text, whose tokens see each other: tile by tile of keys, with a running softmax.
void EncoderSteps::attend(const float* qkv, int begin, int tokens, int head, float* seen, AttentionScratch& own) const {
  const int hidden = width(), ld = 3 * hidden, dim = hidden / spec_.heads;
  const float* queries = qkv + static_cast<std::size_t>(begin) * ld + head * dim;
  const float *keys = queries + hidden, *values = keys + hidden;
  float* out = seen + static_cast<std::size_t>(begin) * hidden + head * dim;
  const Vec scale = set1(1.0f / std::sqrt(static_cast<float>(dim)));
  own.states.assign(tokens, RowState());
  for (int row = 0; row < tokens; ++row) std::memset(out + static_cast<std::size_t>(row) * hidden, 0, dim * sizeof(float));
  for (int tile = 0; tile < tokens; tile += kTile) {
    int there = std::min(kTile, tokens - tile), columns = (there + Vec::lanes - 1) / Vec::lanes * Vec::lanes;
    for (int group = 0; group < columns; group += Vec::lanes) {
      const char* rows[Vec::lanes];
      for (int i = 0; i < Vec::lanes; ++i) {
        const float* row = group + i < there ? keys + static_cast<std::size_t>(tile + group + i) * ld : kNothing;
        rows[i] = reinterpret_cast<const char*>(row);
      }
      for (int d = 0; d < dim; d += 4) {
        Vec four[4];
        four_columns(rows, d * sizeof(float), four);
        for (int i = 0; i < 4; ++i) store(own.keys + (d + i) * kTile + group, four[i]);
      }
    }
    for (int row = 0; row < tokens; row += kBlockRows) {
      int count = std::min(kBlockRows, tokens - row);
      for (int r = 0; r < count; ++r) {
        const float* from = queries + static_cast<std::size_t>(row + r) * ld;
        for (int d = 0; d < dim; d += Vec::lanes) store(own.queries + r * dim + d, load(from + d) * scale);
      }
      pagemill::multiply<false>(count, columns, dim, own.queries, dim, own.keys, kTile, own.scores, kTile);
      float* to = out + static_cast<std::size_t>(row) * hidden;
      for (int r = 0; r < count; ++r) soften(own.scores + r * kTile, columns, 0, there, own.states[row + r], to + r * hidden, dim);
      pagemill::multiply<true>(count, dim, there, own.scores, kTile, values + static_cast<std::size_t>(tile) * ld, ld, to, hidden);
    }
  }
  for (int row = 0; row < tokens; ++row) {
    float* to = out + static_cast<std::size_t>(row) * hidden;
    Vec inverse = set1(1.0f / own.states[row].sum);
    for (int d = 0; d < dim; d += Vec::lanes) store(to + d, load(to + d) * inverse);
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
  float *qkv = qkv_.of(static_cast<std::size_t>(tokens) * 3 * width()), *seen = seen_.of(static_cast<std::size_t>(tokens) * width());
  // Pieces of attention: heads of texts, text by text.
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
  std::vector<std::unique_ptr<AttentionScratch>> scratch(pool.threads());
  int longest = 0;
  for (int text = 0; text < texts; ++text) longest = std::max(longest, query_start[text + 1] - query_start[text]);
  for (auto& each : scratch) {
    each.reset(new AttentionScratch);
    each->states.reserve(longest);  // so that no thread of the pool asks for memory
  }

  parts(pool, tokens, [&](const Part& part) {
    embed(part, token_ids, positions, x);
    queries(part, layers_[0], x, qkv);
  });
  for (std::size_t index = 0; index < layers_.size(); ++index) {
    pool.run(static_cast<int>(begins.size()) - 1, [&](int piece, int thread) {
      for (int item = begins[piece]; item < begins[piece + 1]; ++item) {
        int text = item / spec_.heads, begin = query_start[text];
        attend(qkv, begin, query_start[text + 1] - begin, item % spec_.heads, seen, *scratch[thread]);
      }
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
