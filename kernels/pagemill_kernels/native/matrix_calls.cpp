// The products and the pool as Python calls them.
#include <algorithm>

#include "amx.h"
#include "matrix.h"

using namespace pagemill;

namespace {

bool stored_as(int type) { return type == F32 || type == BF16 || type == F16 || type == I8; }

bool is_possible(int type, int out, int in, int stored, int arithmetic, int paired) {
  if (type != F32 && type != BF16 && type != F16) return false;
  if (!stored_as(stored) || out <= 0 || in <= 0 || (paired && out % 2 != 0)) return false;
  return arithmetic == F32 || (arithmetic == BF16 && (stored == BF16 || stored == I8));
}

void round_row(const float* from, int n, std::uint16_t* to) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(to + i, load(from + i));
  if (i == n) return;
  float rest[kLanes] = {};
  std::uint16_t rounded[kLanes];
  std::memcpy(rest, from + i, sizeof(float) * (n - i));
  store_bf16(rounded, load(rest));
  std::memcpy(to + i, rounded, 2 * (n - i));
}

}  // namespace

extern "C" {

const char* pm_isa() {
#if defined(__AMX_BF16__)
  return tiles_work() ? "amx_bf16" : "avx512_bf16";
#elif defined(__AVX512BF16__)
  return "avx512_bf16";
#elif defined(__AVX512F__)
  return "avx512";
#else
  return "avx2";
#endif
}

void* pm_pool_new(int threads) {
  try {
#if defined(__AMX_BF16__)
    tiles_work();  // asks, before there are threads
#endif
    return threads > 0 ? new Pool(threads) : nullptr;
  } catch (...) {
    return nullptr;
  }
}

void pm_pool_free(void* pool) { delete static_cast<Pool*>(pool); }

void* pm_matrix_new(const void* weight, int type, int out, int in, const float* bias, int stored, int arithmetic, int paired) {
  if (!is_possible(type, out, in, stored, arithmetic, paired)) return nullptr;
  try {
    return pack(weight, static_cast<Type>(type), out, in, bias, static_cast<Type>(stored), static_cast<Type>(arithmetic), paired != 0);
  } catch (...) {
    return nullptr;
  }
}

void pm_matrix_free(void* matrix) { release(static_cast<Matrix*>(matrix)); }

std::int64_t pm_matrix_bytes(const void* matrix) { return static_cast<std::int64_t>(static_cast<const Matrix*>(matrix)->bytes); }

void pm_matrix_row(const void* matrix, int output, float* row) { row_of(*static_cast<const Matrix*>(matrix), output, row); }

void pm_product(void* pool, const void* matrix, const float* x, int rows, void* y, int y_type, int epilogue, std::uint16_t* scratch) {
  const Matrix& m = *static_cast<const Matrix*>(matrix);
  Pool& threads = *static_cast<Pool*>(pool);
  const void* from = x;
  if (m.arithmetic == BF16) {
    constexpr int kEach = 16;
    threads.run((rows + kEach - 1) / kEach, [&](int piece, int) {
      for (int row = piece * kEach; row < std::min(rows, (piece + 1) * kEach); ++row) {
        round_row(x + static_cast<std::size_t>(row) * m.in, m.in, scratch + static_cast<std::size_t>(row) * m.in);
      }
    });
    from = scratch;
  }
  auto what = static_cast<Epilogue>(epilogue);
  int across = what == Epilogue::swiglu ? m.out / 2 : m.out;
  Product product{&m, from, m.in, rows, y, across, static_cast<Type>(y_type), what};
  int count = pieces(product, threads.threads());
  threads.run(count, [&](int piece, int) { compute(product, piece, count); });
}

void pm_linear(void* pool, const void* matrix, const float* x, int rows, float* y, std::uint16_t* scratch) {
  pm_product(pool, matrix, x, rows, y, F32, static_cast<int>(Epilogue::store), scratch);
}

}  // extern "C"
