// Tiles of bfloat16 (AMX): shapes, loads, stores, products. For the loops of amx.h and attention_amx.h, which are plain C++ over `Tiles`, so that
// tests run them with tiles of plain C++ (tests/kernels/emulated_tiles.h) wherever there is a compiler. The instructions themselves, and
// asking the kernel for them (amx.cpp), are tested only where a processor has them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagemill {

constexpr int kTileRows = 16;   // rows in a tile, and columns of sums
constexpr int kTileK = 32;      // k in a tile
constexpr int kTileBytes = 64;  // of a tile's row

// What LDTILECFG reads.
struct alignas(64) TileShapes {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64, "as the processor reads it");

// While it lives the shapes are ours; then again those of whoever else computes in this thread (oneDNN's, or none).
template <class Tiles>
class OwnShapes {
 public:
  OwnShapes() { Tiles::shapes_now(before_); }
  ~OwnShapes() { Tiles::shape(before_); }
  OwnShapes(const OwnShapes&) = delete;
  OwnShapes& operator=(const OwnShapes&) = delete;

 private:
  TileShapes before_;
};

}  // namespace pagemill

#if defined(PAGEMILL_EMULATED_TILES)  // a test's build: ProcessorTiles and tiles_work
#include "emulated_tiles.h"
#else
namespace pagemill {

#if defined(__AMX_BF16__)
bool tiles_work();  // the kernel lets us have them, and they compute what vectors do; asked once

// The processor's own. Numbers of tiles are in the instruction, which the compiler's intrinsics make of macros' arguments alone.
struct AmxTiles {
  static void shape(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  static void shapes_now(TileShapes& shapes) { asm volatile("sttilecfg %0" : "=m"(shapes)); }
  template <int tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
  }
  template <int tile>
  static void load(const void* from, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
  }
  template <int tile>
  static void store(void* to, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
  }
  template <int sums, int x, int columns>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(columns));
  }
};
using ProcessorTiles = AmxTiles;
#else
constexpr bool tiles_work() { return false; }

// Where there are none nothing comes to these.
struct NoTiles {
  static void shape(const TileShapes&) {}
  static void shapes_now(TileShapes&) {}
  template <int tile>
  static void zero() {}
  template <int tile>
  static void load(const void*, std::ptrdiff_t) {}
  template <int tile>
  static void store(void*, std::ptrdiff_t) {}
  template <int sums, int x, int columns>
  static void multiply() {}
};
using ProcessorTiles = NoTiles;
#endif

}  // namespace pagemill
#endif
