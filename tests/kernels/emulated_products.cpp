// The loops of amx.h with tiles of plain C++, for test_native_amx.py.
#include "amx.h"

using namespace pagemill;

extern "C" {

// sums float32 [rows, panels * 32] = x bfloat16 [rows, ldx] times panels; returns how many products of tiles that took.
__attribute__((visibility("default"))) int emulated_product(const char* panels, std::int64_t panel_bytes, int count, int int8,
                                                            const std::uint16_t* x, int ldx, int rows, int k, float* sums) {
  EmulatedTiles::products = 0;
  TileProduct product{panels, static_cast<std::size_t>(panel_bytes), count, int8 != 0, x, ldx, rows, k};
  TileLoops<EmulatedTiles>(product).run([&](int panel, int row, int n, const float* block) {
    for (int i = 0; i < n; ++i) {
      float* to = sums + static_cast<std::size_t>(row + i) * count * kTilePanel + panel * kTilePanel;
      for (int column = 0; column < kTilePanel; ++column) to[column] += block[i * kTilePanel + column];  // once: the test gives zeros
    }
  });
  return EmulatedTiles::products;
}
}
