// What the parts of the library know of one another, and the C calls that Python makes. Compiled once for each instruction set.
//
// A row's result depends on that row alone, to the last bit: not on how many rows are computed beside it, in how many threads, in what
// chunks or from which blocks. So every sum has one order, which follows from the row (docs/decisions/003).
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.h"
#include "simd.h"

namespace pagemill {

// As Python names them (library.py).
enum Type : int { F32 = 0, BF16 = 1, F16 = 2, I8 = 3 };

// ---- matrix products: matrix.cpp ----

// A weight [out, in], packed for this instruction set. Stored as F32, BF16 or F16 (exact where the weight is of that type) or I8 (symmetric,
// with a scale for each output). Arithmetic is float32, or, where `arithmetic` is BF16, products of bfloat16 added up in float32; then x is bfloat16.
struct Matrix {
  int out, in;
  Type stored, arithmetic;
  bool paired;         // outputs i and i + out/2 lie in one panel, for Epilogue::swiglu
  std::size_t bytes;   // that it takes
  const float* bias;   // of the outputs as they lie in the panels (matrix.h), or null; owned
  const float* scales; // likewise; I8 only; owned
  void* panels;
};

// y = p;  y += p;  y[i] = silu(p[i]) * p[i + out/2] (paired matrices);  y = f(p) with one of encoder.h's.
enum class Epilogue { store, add, swiglu, gelu, gelu_tanh, relu };

struct Product {
  const Matrix* weight;
  const void* x;  // [rows, in], float32, or bfloat16 where the arithmetic is; rows are ldx elements apart
  int ldx;
  int rows;
  void* y;  // [rows, out] (swiglu: [rows, out / 2]) of y_type; rows are ldy elements apart
  int ldy;
  Type y_type;  // F32, or BF16 (not where it adds): what the next product of bfloat16 takes
  Epilogue epilogue;
};

int pieces(const Product& product, int threads);                        // in how many the pool should run it
void compute(const Product& product, int piece, int pieces);            // any thread
void row_of(const Matrix& weight, int output, float* row);              // [in] as stored, float32: the embedding of a tied table

// ---- attention over the paged cache: attention.cpp ----

// One layer's cache: keys and values [kv_heads, blocks, block_size, head_dim] of `type` (F32 or BF16), a view of model/kv_pool's memory: what a head has
// of one block is one run.
struct Cache {
  void* keys;
  void* values;
  std::int64_t head_stride;   // elements from one head to the next
  std::int64_t block_stride;  // likewise of blocks
  int block_size;             // tokens: any number
  Type type;

  // Elements from a head's start to a slot's.
  std::int64_t place(std::int64_t slot, int head_dim) const { return slot / block_size * block_stride + slot % block_size * head_dim; }
};

// One step's layout, the same for all layers (server model/interface.AttentionMetadata). T tokens, S sequences.
struct Layout {
  int tokens, sequences;
  const std::int64_t* slots;         // [T]
  const std::int32_t* query_start;   // [S + 1]
  const std::int32_t* seq_lens;      // [S]
  const std::int64_t* block_tables;  // [S, table_stride]
  int table_stride;
};

struct Heads {
  int heads, kv_heads, head_dim;  // head_dim is a multiple of 16, up to 256
  float scale;
  int window;  // tokens that a query sees, its own included; 0: all before it
};

// ---- whole steps of a Llama decoder: decoder.cpp ----

// One layer. Norms are float32 [hidden], and [head_dim] where each query and key head has one (Qwen3). Nothing is owned.
struct DecoderLayer {
  const Matrix* qkv;      // [(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values
  const Matrix* out;      // [hidden, heads * head_dim]
  const Matrix* gate_up;  // [2 * inner, hidden], paired
  const Matrix* down;     // [hidden, inner]
  const float* input_norm;
  const float* mlp_norm;
  const float* q_norm;  // or null
  const float* k_norm;
  const float* cos;  // [positions, head_dim]; sin's first half is negated
  const float* sin;
  float scale;  // of the scores
  int window;   // as Heads
};

// All layers' matrices have one arithmetic. The stream between layers is float32; what enters a product is bfloat16 where the arithmetic is.
struct Decoder {
  int layers, hidden, heads, kv_heads, head_dim, vocab;  // hidden and head_dim are multiples of 16
  int positions;                                         // rows of the rotary tables
  float eps;
  const DecoderLayer* layer;
  const float* last_norm;
  const Matrix* embedding;  // the head itself where they are tied, or null: `table`
  const void* table;        // [vocab, hidden]
  Type table_type;          // F32, BF16, F16
  const Matrix* head;
};

// ---- BERT and RoBERTa: encoder.cpp ----

// One layer. All layers' matrices have one arithmetic; as in a decoder the stream between products is float32. Norms are float32 [hidden].
struct EncoderLayer {
  const Matrix* qkv;   // [3 * hidden, hidden]: queries, keys, values
  const Matrix* out;   // [hidden, hidden]
  const Matrix* up;    // [inner, hidden]
  const Matrix* down;  // [hidden, inner]
  const float* attention_norm;
  const float* attention_norm_bias;
  const float* output_norm;
  const float* output_norm_bias;
};

struct Encoder {
  int layers, hidden, heads, vocab;  // hidden / heads is a multiple of 16, up to 256
  int positions;                     // rows of the position table
  Epilogue activation;               // gelu, gelu_tanh or relu
  float eps;
  const EncoderLayer* layer;
  const float* norm;  // of the embeddings
  const float* norm_bias;
  const float* position_table;  // float32 [positions, hidden], the token type's row added
  const void* table;            // [vocab, hidden]
  Type table_type;              // F32, BF16, F16
};

}  // namespace pagemill

// ---- what Python calls (ctypes; library.py) ----
#pragma GCC visibility push(default)
extern "C" {
// Errors are null or a negative number; nothing throws.
const char* pm_isa();                    // "avx2" | "avx512" | "avx512_bf16" | "amx_bf16"
// Gives back the pages of libraries and programs that were only read; what is used comes in again from the system's own copy of the file.
void pm_let_go_of_files();
void* pm_pool_new(int threads);
void pm_pool_free(void* pool);

// weight [out, in] contiguous of `type` (F32, BF16, F16), copied; bias float32 [out] or null; `stored` as above; `arithmetic` F32 or BF16; `paired` for swiglu.
void* pm_matrix_new(const void* weight, int type, int out, int in, const float* bias, int stored, int arithmetic, int paired);
void pm_matrix_free(void* matrix);
std::int64_t pm_matrix_bytes(const void* matrix);
void pm_matrix_row(const void* matrix, int output, float* row);
// y float32 [rows, out] = x float32 [rows, in] times the weight (+ bias); where the arithmetic is BF16 x is rounded first, in `scratch` of
// rows * in bfloat16.
// y_type and epilogue as in Product, by number.
void pm_product(void* pool, const void* matrix, const float* x, int rows, void* y, int y_type, int epilogue, std::uint16_t* scratch);
void pm_linear(void* pool, const void* matrix, const float* x, int rows, float* y, std::uint16_t* scratch);

// Writes keys and values float32 [T, kv_heads, head_dim] into their slots, then q [T, heads, head_dim] attends over its sequences' keys: out as q.
// -3: no memory.
int pm_attention(void* pool, const pagemill::Layout* layout, const pagemill::Heads* heads, const pagemill::Cache* cache, const float* q,
                 const float* k, const float* v, float* out);

// Null where the parts do not fit each other. What `decoder` points to must outlive it.
void* pm_decoder_new(const pagemill::Decoder* decoder);
void pm_decoder_free(void* decoder);
// One step through the first `layers` layers and the last norm: hidden float32 [T, hidden]. Writes keys and values into `caches` (one a layer).
// -1: a token outside the vocabulary; -2: a position outside the rotary tables; -3: no memory.
int pm_decoder_step(void* decoder, void* pool, const std::int64_t* token_ids, const std::int64_t* positions, const pagemill::Layout* layout,
                    const pagemill::Cache* caches, int layers, float* hidden);
// Float32 [rows, hidden] → float32 [rows, vocab]; -3: no memory.
int pm_decoder_logits(void* decoder, void* pool, const float* hidden, int rows, float* logits);
std::int64_t pm_decoder_workspace(const void* decoder);  // bytes that are kept between steps, threads' scratch apart
// Adds up seconds of later steps: products, attention, the rest. Null: no longer.
void pm_decoder_measure(void* decoder, double* seconds);

// Of each row of logits float32 [rows, size], size > 0, its largest's place, the first of equals; -1 where any of it is not finite.
void pm_likeliest(const float* logits, int rows, int size, std::int64_t* tokens);

// Null where the parts do not fit each other. What `encoder` points to must outlive it.
void* pm_encoder_new(const pagemill::Encoder* encoder);
void pm_encoder_free(void* encoder);
// Texts one after another; query_start [texts + 1] says where each begins, and the end T. Last hidden states float32 [T, hidden]. Errors as a decoder's.
int pm_encoder_forward(void* encoder, void* pool, const std::int64_t* token_ids, const std::int64_t* positions, const std::int32_t* query_start,
                       int texts, float* hidden);
std::int64_t pm_encoder_workspace(const void* encoder);  // bytes that are kept between steps
}
#pragma GCC visibility pop
