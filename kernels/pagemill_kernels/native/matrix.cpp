// Matrix products: how the work is divided, and what is done with the sums. matrix_tile.h has the inner loops, matrix_pack.cpp the packing.
#include "matrix.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "amx.h"
#include "encoder.h"

namespace pagemill {
namespace {

using Run = void (*)(const Tile&);
constexpr int kWidest = 4;  // panels side by side, where rows are few

// Panels that a tile of so many rows may walk at once: enough chains to hide the latency of a multiply-add, few enough for the registers.
constexpr int side_by_side(int rows) {
  int panels = kWidest;
  while (panels > 1 && panels * rows > kRows) panels /= 2;
  return panels;
}

template <class Arithmetic, int rows, int panels>
constexpr Run tile_of() {
  if constexpr (panels <= side_by_side(rows)) return run_tile<Arithmetic, rows, panels>;
  return nullptr;
}

using Table = std::array<std::array<Run, 3>, kRows>;  // [rows - 1][log2 panels]

template <class Arithmetic, std::size_t... row>
constexpr Table table_of(std::index_sequence<row...>) {
  return {{{tile_of<Arithmetic, row + 1, 1>(), tile_of<Arithmetic, row + 1, 2>(), tile_of<Arithmetic, row + 1, 4>()}...}};
}

template <class Arithmetic>
const Table& tiles() {
  static constexpr Table table = table_of<Arithmetic>(std::make_index_sequence<kRows>());
  return table;
}

const Table& tiles_for(Type stored, bool pairs) {
#if defined(__AVX512BF16__)
  if (pairs) return stored == I8 ? tiles<Pairs<I8>>() : tiles<Pairs<BF16>>();
#else
  (void)pairs;
#endif
  switch (stored) {
    case BF16: return tiles<Float32<BF16>>();
    case F16: return tiles<Float32<F16>>();
    case I8: return tiles<Float32<I8>>();
    default: return tiles<Float32<F32>>();
  }
}

#if defined(__AMX_BF16__)
bool by_tiles(const Matrix& m) { return m.arithmetic == BF16 && tiles_work(); }
#else
constexpr bool by_tiles(const Matrix&) { return false; }
#endif

// How a product is divided: chunks of rows whose x stays in the second-level cache, each times groups of panels.
struct Division {
  int chunk_rows, chunks, panels;
};

Division division_of(const Product& product) {
  constexpr std::size_t kBytes = 384 << 10;
  const std::size_t element = product.weight->arithmetic == BF16 ? 2 : 4;
  int fit = static_cast<int>(kBytes / (product.weight->in * element));
  const int unit = by_tiles(*product.weight) ? kBlockRows : kRows;
  const int most = by_tiles(*product.weight) ? 6 * unit : 16 * unit;
  int rows = std::max(2, std::min(most / unit, fit / unit)) * unit;
  int chunks = (product.rows + rows - 1) / rows;
  int even = (product.rows + chunks - 1) / chunks;
  return {(even + unit - 1) / unit * unit, chunks, panels_of(*product.weight)};
}

Vec some(const float* p, int count) {
  float whole[kLanes] = {};
  std::memcpy(whole, p, sizeof(float) * count);
  return load(whole);
}

// Fewer than a vector of outputs, which end y's row.
[[gnu::noinline]] void put_some(const Product& product, std::size_t place, int count, Vec value) {
  if (product.y_type == BF16) {
    std::uint16_t whole[kLanes];
    store_halves(whole, value);
    std::memcpy(static_cast<std::uint16_t*>(product.y) + place, whole, 2 * count);
    return;
  }
  float* to = static_cast<float*>(product.y) + place;
  float whole[kLanes];
  store(whole, product.epilogue == Epilogue::add ? some(to, count) + value : value);
  std::memcpy(to, whole, sizeof(float) * count);
}

// Outputs [at, at + kLanes) of y's row, of which `count` are there.
inline void put(const Product& product, int row, int at, int count, Vec value) {
  if (count <= 0) return;
  std::size_t place = static_cast<std::size_t>(row) * product.ldy + at;
  if (count < kLanes) return put_some(product, place, count, value);
  if (product.y_type == BF16) return store_halves(static_cast<std::uint16_t*>(product.y) + place, value);
  float* to = static_cast<float*>(product.y) + place;
  store(to, product.epilogue == Epilogue::add ? load(to) + value : value);
}

// Calls take(row of y, first, second) for the sums [rows][kPanel] of one panel with their scales and biases, y's rows from `row` on.
template <class Take>
inline void each_sum(const Matrix& m, int panel, int row, int rows, const float* sums, Take&& take) {
  const std::size_t column = static_cast<std::size_t>(panel) * kPanel;
  auto two = [&](const float* of, float none, Vec (&to)[2]) {
    for (int i = 0; i < 2; ++i) to[i] = of == nullptr ? set1(none) : load(of + column + i * kLanes);
  };
  Vec scales[2], biases[2];
  two(m.scales, 1.0f, scales);
  two(m.bias, 0.0f, biases);
  for (int i = 0; i < rows; ++i, sums += kPanel) {
    Vec first = load(sums), second = load(sums + kLanes);
    if (m.scales != nullptr) first = first * scales[0], second = second * scales[1];
    if (m.bias != nullptr) first = first + biases[0], second = second + biases[1];
    take(row + i, first, second);
  }
}

// The sums of one panel, for y's rows from `row` on.
void finish(const Product& product, int panel, int row, int rows, const float* sums) {
  const Matrix& m = *product.weight;
  auto put_two = [&](auto&& change) {
    const int at = panel * kPanel;
    each_sum(m, panel, row, rows, sums, [&](int to, Vec first, Vec second) {
      put(product, to, at, m.out - at, change(first));
      put(product, to, at + kLanes, m.out - at - kLanes, change(second));
    });
  };
  if (m.paired) {
    const int at = panel * kLanes, count = std::min(kLanes, m.out / 2 - at);
    return each_sum(m, panel, row, rows, sums, [&](int to, Vec first, Vec second) {
      if (product.epilogue == Epilogue::swiglu) return put(product, to, at, count, silu(first) * second);
      put(product, to, at, count, first);
      put(product, to, m.out / 2 + at, count, second);
    });
  }
  switch (product.epilogue) {
    case Epilogue::gelu: return put_two([](Vec x) { return gelu(x); });
    case Epilogue::gelu_tanh: return put_two([](Vec x) { return gelu_tanh(x); });
    case Epilogue::relu: return put_two([](Vec x) { return relu(x); });
    default: return put_two([](Vec x) { return x; });
  }
}

// x of some rows, as the tiles take it.
struct Rows {
  const char* x;
  std::ptrdiff_t ldx;  // elements
  int element;         // bytes
  int first, count;    // which rows of y
};

// Rows times the panels from `panel` to `last`, tile by tile; a panel comes from memory once and stays near for all tiles.
void multiply(const Product& product, const Rows& rows, int panel, int last) {
  const Matrix& m = *product.weight;
  const Table& table = tiles_for(m.stored, takes_pairs(m.arithmetic));
  const std::size_t bytes = panel_bytes_of(m);
  const int group_bytes = kPanel * group_of(m.stored, m.arithmetic) * element_bytes(m.stored);
  const int tiles = (rows.count + kRows - 1) / kRows;
  alignas(64) float sums[kWidest * kRows * kPanel];
  while (panel < last) {
    int wide = side_by_side((rows.count + tiles - 1) / tiles);
    while (wide > last - panel) wide /= 2;
    const char* panels = static_cast<const char*>(m.panels) + panel * bytes;
    const char* next = panel + wide < last ? panels + wide * bytes : panels;
    for (int tile = 0; tile < tiles; ++tile) {
      int from = tile * rows.count / tiles, count = (tile + 1) * rows.count / tiles - from;
      const char* x = rows.x + static_cast<std::size_t>(from) * rows.ldx * rows.element;
      Tile told{panels, bytes, x, rows.ldx, m.in, sums, next + tile * bytes / tiles / 64 * 64, group_bytes / tiles, next};
      if (count <= kFewRows) told.ahead = panels + kNear, told.ahead_step = group_bytes;
      table[count - 1][wide / 2](told);
      for (int i = 0; i < wide; ++i) finish(product, panel + i, rows.first + from, count, sums + i * count * kPanel);
    }
    panel += wide;
  }
}

#if defined(__AMX_BF16__)
// The same by tiles.
void multiply_by_tiles(const Product& product, const Rows& rows, int panel, int last) {
  const Matrix& m = *product.weight;
  const std::size_t bytes = panel_bytes_of(m);
  const char* panels = static_cast<const char*>(m.panels) + panel * bytes;
  TileProduct told{panels, bytes, last - panel, m.stored == I8, reinterpret_cast<const std::uint16_t*>(rows.x), rows.ldx, rows.count, m.in};
  OwnShapes<AmxTiles> ours;
  TileLoops<AmxTiles>(told).run(
      [&](int at, int row, int count, const float* sums) { finish(product, panel + at, rows.first + row, count, sums); });
}
#endif

// Rows of x in float32 where they are bfloat16 and their products have no instruction.
Rows widened(const Product& product, Rows rows) {
  int in = product.weight->in, padded = (in + kLanes - 1) / kLanes * kLanes;
  thread_local std::vector<float> wide;
  wide.resize(std::max(wide.size(), static_cast<std::size_t>(rows.count) * padded));
  float* to = wide.data();
  for (int row = 0; row < rows.count; ++row) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(rows.x) + static_cast<std::size_t>(row) * rows.ldx;
    float* at = to + static_cast<std::size_t>(row) * padded;
    int i = 0;
    for (; i + kLanes <= in; i += kLanes) store(at + i, load_bf16(from + i));
    for (; i < in; ++i) {
      std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
      std::memcpy(at + i, &bits, 4);
    }
  }
  return {reinterpret_cast<const char*>(to), padded, 4, rows.first, rows.count};
}

}  // namespace

int pieces(const Product& product, int threads) {
  if (threads <= 1 || product.rows <= 0) return 1;
  Division division = division_of(product);
  const Matrix& m = *product.weight;
  // What one thread takes, about, on a server's core of 2024; a piece is worth waking a thread for, and 6 a thread even out the ends.
  double rate = by_tiles(m) ? 1e12 : kLanes * (takes_pairs(m.arithmetic) ? 28e9 : 14e9);
  double seconds = std::max(static_cast<double>(m.bytes) / 40e9, 2.0 * product.rows * m.out * m.in / rate);
  int most = static_cast<int>(std::min(seconds / 10e-6, 6.0 * threads));
  if (most < threads) most = seconds > 4e-6 ? threads : 1;
  if (most < 3 * threads) most = most / threads * threads;
  int splits = std::max(1, std::min(division.panels, (most + division.chunks - 1) / division.chunks));
  return std::max(1, splits * division.chunks);
}

void compute(const Product& product, int piece, int pieces) {
  if (product.rows <= 0) return;
  const Matrix& m = *product.weight;
  const bool pairs = takes_pairs(m.arithmetic);
  const int element = m.arithmetic == BF16 ? 2 : 4;
  Division division = division_of(product);
  // A piece is some of the (chunk of rows, group of panels), those of one group of panels together.
  int splits = std::max(1, std::min(division.panels, pieces / division.chunks));
  std::int64_t units = static_cast<std::int64_t>(splits) * division.chunks;
  for (std::int64_t unit = piece * units / pieces; unit < (piece + 1) * units / pieces; ++unit) {
    int split = static_cast<int>(unit / division.chunks), chunk = static_cast<int>(unit % division.chunks);
    int first = chunk * division.chunk_rows, count = std::min(division.chunk_rows, product.rows - first);
    if (count <= 0) continue;
    int panel = static_cast<int>(static_cast<std::int64_t>(split) * division.panels / splits);
    int last = static_cast<int>(static_cast<std::int64_t>(split + 1) * division.panels / splits);
    const char* x = static_cast<const char*>(product.x) + static_cast<std::size_t>(first) * product.ldx * element;
    Rows rows{x, product.ldx, element, first, count};
    if (m.arithmetic == BF16 && !pairs) rows = widened(product, rows);
#if defined(__AMX_BF16__)
    if (by_tiles(m)) {
      multiply_by_tiles(product, rows, panel, last);
      continue;
    }
#endif
    multiply(product, rows, panel, last);
  }
}

}  // namespace pagemill
