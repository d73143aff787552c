// Tiles of plain C++: what TDPBF16PS and its like do, for any processor. tiles.h includes it where PAGEMILL_EMULATED_TILES is set.
//
// A tile's register keeps what lies outside its shape at zero, and a number that is used outside of it ends the process: so does a load
// or store of a tile that has no rows.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tiles.h"

namespace pagemill {

struct EmulatedTiles {
  inline static thread_local TileShapes shapes;
  inline static thread_local unsigned char tiles[8][16][kTileBytes];
  inline static thread_local int products;

  static void require(bool met) {
    if (!met) std::abort();
  }

  static void shape(const TileShapes& given) {
    if (given.palette == 0) return;  // as it was before anyone used tiles
    require(given.palette == 1);
    for (int tile = 0; tile < 8; ++tile) require(given.rows[tile] >= 1 && given.rows[tile] <= 16 && given.bytes[tile] == kTileBytes);
    shapes = given;
    std::memset(tiles, 0, sizeof(tiles));
  }

  static void shapes_now(TileShapes& to) { to = shapes; }

  template <int tile>
  static void zero() {
    std::memset(tiles[tile], 0, sizeof(tiles[tile]));
  }

  template <int tile>
  static void load(const void* from, std::ptrdiff_t stride) {
    zero<tile>();
    for (int row = 0; row < shapes.rows[tile]; ++row) {
      std::memcpy(tiles[tile][row], static_cast<const char*>(from) + row * stride, shapes.bytes[tile]);
    }
  }

  template <int tile>
  static void store(void* to, std::ptrdiff_t stride) {
    for (int row = 0; row < shapes.rows[tile]; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile][row], shapes.bytes[tile]);
    }
  }

  static float wide(const unsigned char* half) {
    std::uint16_t low;
    std::memcpy(&low, half, 2);
    std::uint32_t bits = static_cast<std::uint32_t>(low) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
  }

  // Intel's SDM, TDPBF16PS: even and odd k are added up apart, then to the sum.
  template <int sums, int x, int columns>
  static void multiply() {
    require(shapes.rows[sums] == shapes.rows[x] && shapes.bytes[x] / 4 == shapes.rows[columns]);
    ++products;
    for (int row = 0; row < shapes.rows[sums]; ++row) {
      for (int column = 0; column < shapes.bytes[columns] / 4; ++column) {
        float even = 0.0f, odd = 0.0f, sum;
        for (int pair = 0; pair < shapes.bytes[x] / 4; ++pair) {
          even = std::fma(wide(&tiles[x][row][4 * pair]), wide(&tiles[columns][pair][4 * column]), even);
          odd = std::fma(wide(&tiles[x][row][4 * pair + 2]), wide(&tiles[columns][pair][4 * column + 2]), odd);
        }
        std::memcpy(&sum, &tiles[sums][row][4 * column], 4);
        sum += even + odd;
        std::memcpy(&tiles[sums][row][4 * column], &sum, 4);
      }
    }
  }
};

using ProcessorTiles = EmulatedTiles;
inline bool tiles_work() { return true; }

}  // namespace pagemill
