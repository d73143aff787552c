// Weights from rows as they are saved to panels as the products read them, and back.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "matrix.h"

namespace pagemill {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;

void* allocate(std::size_t bytes) {
  std::size_t align = bytes >= kHuge ? kHuge : 64;
  void* memory = nullptr;  // aligned_alloc is for multiples of the alignment alone, and AddressSanitizer ends the process of whoever asks for others
  if (posix_memalign(&memory, align, (bytes + 63) / 64 * 64) != 0) throw std::bad_alloc();
  if (align == kHuge) madvise(memory, bytes / kHuge * kHuge, MADV_HUGEPAGE);  // whole pages alone: the end would take another of them
  return memory;
}

// n elements of `type` at p, n a multiple of kLanes or not.
void widen(const char* p, Type type, int n, float* to) {
  for (int i = 0; i < n; i += kLanes) {
    alignas(64) char in[kLanes * 4] = {};
    alignas(64) float out[kLanes];
    int count = std::min(n - i, kLanes), bytes = element_bytes(type);
    std::memcpy(in, p + static_cast<std::size_t>(i) * bytes, static_cast<std::size_t>(count) * bytes);
    const auto* halves = reinterpret_cast<const std::uint16_t*>(in);
    store(out, type == F32 ? load(reinterpret_cast<const float*>(in)) : type == BF16 ? load_bf16(halves) : load_f16(halves));
    std::memcpy(to + i, out, sizeof(float) * count);
  }
}

// The scale of a row: its largest magnitude becomes 127; not a number where a weight is not finite, so that the output isn't either.
float quantize(float* row, int n) {
  float largest = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (!std::isfinite(row[i])) largest = std::numeric_limits<float>::infinity();
    largest = std::max(largest, std::fabs(row[i]));
  }
  bool usable = largest > 0.0f && std::isfinite(largest);
  float scale = largest / 127.0f;
  for (int i = 0; i < n; ++i) {
    row[i] = usable && scale > 0.0f ? std::min(127.0f, std::max(-127.0f, std::nearbyint(row[i] / scale))) : 0.0f;
  }
  return std::isfinite(largest) ? scale : std::numeric_limits<float>::quiet_NaN();
}

// The bytes of n numbers as they are stored.
void narrow(const float* row, int n, Type stored, char* to) {
  if (stored == F32) {
    std::memcpy(to, row, sizeof(float) * n);
  } else if (stored == I8) {
    for (int i = 0; i < n; ++i) to[i] = static_cast<char>(static_cast<std::int8_t>(row[i]));
  } else {
    for (int i = 0; i < n; i += kLanes) {
      alignas(64) float in[kLanes] = {};
      std::uint16_t out[kLanes];
      int count = std::min(n - i, kLanes);
      std::memcpy(in, row + i, sizeof(float) * count);
      stored == BF16 ? store_bf16(out, load(in)) : store_f16(out, load(in));
      std::memcpy(to + 2 * i, out, 2 * count);
    }
  }
}

template <class Element>
void scatter(const Element* row, int n, int group, Element* column) {
  for (int k = 0; k < n; ++k) column[k / group * group * kPanel + k % group] = row[k];
}

template <class Element>
void gather(const Element* column, int n, int group, Element* row) {
  for (int k = 0; k < n; ++k) row[k] = column[k / group * group * kPanel + k % group];
}

char* start_of(const Matrix& m, int output) {
  std::size_t column = column_of(m, output);
  int group = group_of(m.stored, m.arithmetic);
  return static_cast<char*>(m.panels) + column / kPanel * panel_bytes_of(m) + column % kPanel * group * element_bytes(m.stored);
}

}  // namespace

Matrix* pack(const void* weight, Type type, int out, int in, const float* bias, Type stored, Type arithmetic, bool paired) {
  auto* m = new Matrix{out, in, stored, arithmetic, paired, 0, nullptr, nullptr, nullptr};
  try {
    std::size_t columns = static_cast<std::size_t>(panels_of(*m)) * kPanel, panels = panels_of(*m) * panel_bytes_of(*m);
    m->panels = allocate(panels);
    std::memset(m->panels, 0, panels);  // columns that fill the last panel up are zero
    std::size_t floats = columns * sizeof(float);
    float* biases = bias == nullptr ? nullptr : static_cast<float*>(std::memset(allocate(floats), 0, floats));
    m->bias = biases;
    float* scales = stored != I8 ? nullptr : static_cast<float*>(std::memset(allocate(floats), 0, floats));
    m->scales = scales;
    m->bytes = panels + (biases != nullptr) * floats + (scales != nullptr) * floats;
    int group = group_of(stored, arithmetic);
    std::vector<float> row(in);
    std::vector<char> narrowed(static_cast<std::size_t>(in) * element_bytes(stored));
    for (int output = 0; output < out; ++output) {
      const char* from = static_cast<const char*>(weight) + static_cast<std::size_t>(output) * in * element_bytes(type);
      char* column = start_of(*m, output);
      if (biases != nullptr) biases[column_of(*m, output)] = bias[output];
      const char* exact = from;
      if (type != stored) {
        widen(from, type, in, row.data());
        if (stored == I8) scales[column_of(*m, output)] = quantize(row.data(), in);
        narrow(row.data(), in, stored, narrowed.data());
        exact = narrowed.data();
      }
      switch (element_bytes(stored)) {
        case 4: scatter(reinterpret_cast<const float*>(exact), in, group, reinterpret_cast<float*>(column)); break;
        case 2: scatter(reinterpret_cast<const std::uint16_t*>(exact), in, group, reinterpret_cast<std::uint16_t*>(column)); break;
        default: scatter(exact, in, group, column);
      }
    }
  } catch (...) {
    release(m);
    throw;
  }
  return m;
}

void release(Matrix* matrix) {
  if (matrix == nullptr) return;
  std::free(matrix->panels);
  std::free(const_cast<float*>(matrix->bias));
  std::free(const_cast<float*>(matrix->scales));
  delete matrix;
}

void row_of(const Matrix& m, int output, float* row) {
  int group = group_of(m.stored, m.arithmetic);
  const char* column = start_of(m, output);
  if (m.stored == F32) return gather(reinterpret_cast<const float*>(column), m.in, group, row);
  if (m.stored == I8) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(column);
    float scale = m.scales[column_of(m, output)];
    for (int k = 0; k < m.in; ++k) row[k] = static_cast<float>(codes[k / group * group * kPanel + k % group]) * scale;
    return;
  }
  const auto* halves = reinterpret_cast<const std::uint16_t*>(column);
  std::uint16_t near[256];
  for (int k = 0; k < m.in; k += 256) {
    int count = std::min(256, m.in - k);
    gather(halves + static_cast<std::size_t>(k) * kPanel, count, group, near);
    widen(reinterpret_cast<const char*>(near), m.stored, count, row + k);
  }
}

}  // namespace pagemill
