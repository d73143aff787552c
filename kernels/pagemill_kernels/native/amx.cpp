// Whether this process may use tiles, and whether they compute what vectors do.
#include "amx.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>

#include "matrix_tile.h"

namespace pagemill {
namespace {

// The kernel keeps tiles' 8 KiB only for processes that ask (Linux 5.16: Documentation/x86/xstate.rst); the answer holds for all threads.
bool allowed() {
  constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

// 40 rows of k numbers times 64 outputs, by tiles and by vectors.
bool agree(int k) {
  constexpr int kCheckRows = 40, kCheckPanels = 2, kEach = 4;
  static_assert(kCheckRows % kEach == 0 && kPanel == kTilePanel, "whole tiles of vectors");
  const std::size_t panel = static_cast<std::size_t>(k + k % 2) * kPanel;
  std::vector<std::uint16_t> x(static_cast<std::size_t>(kCheckRows) * k), panels(kCheckPanels * panel);
  std::uint32_t state = 1;
  auto fill = [&](std::vector<std::uint16_t>& numbers) {  // of either sign, from 2^-3 to 2
    for (auto& number : numbers) {
      state = state * 1664525u + 1013904223u;
      number = static_cast<std::uint16_t>((state >> 31) << 15 | (124 + (state >> 28) % 4) << 7 | (state >> 16 & 127));
    }
  };
  fill(x), fill(panels);
  if (k % 2 != 0) {
    for (int i = 0; i < kCheckPanels; ++i) {
      for (int column = 0; column < kPanel; ++column) panels[(i + 1) * panel - 1 - 2 * column] = 0;
    }
  }
  std::vector<float> by_vectors(kCheckPanels * kCheckRows * kPanel);
  for (int i = 0; i < kCheckPanels; ++i) {
    const char* from = reinterpret_cast<const char*>(panels.data() + i * panel);
    for (int row = 0; row < kCheckRows; row += kEach) {
      float* sums = &by_vectors[(i * kCheckRows + row) * kPanel];
      run_tile<Pairs<BF16>, kEach, 1>({from, panel * 2, &x[static_cast<std::size_t>(row) * k], k, k, sums, from, 0, from});
    }
  }
  bool same = true;
  auto compare = [&](int at, int row, int rows, const float* sums) {
    for (int i = 0; i < rows * kPanel; ++i) {
      same = same && std::fabs(sums[i] - by_vectors[(at * kCheckRows + row) * kPanel + i]) < 1e-5f * k;  // terms are up to 4
    }
  };
  OwnShapes<AmxTiles> ours;
  TileProduct product{reinterpret_cast<const char*>(panels.data()), panel * 2, kCheckPanels, false, x.data(), k, kCheckRows, k};
  TileLoops<AmxTiles>(product).run(compare);
  product.rows = 7;  // two panels side by side
  TileLoops<AmxTiles>(product).run(compare);
  return same;
}

}  // namespace

bool tiles_work() {
  static const bool work = allowed() && agree(96) && agree(77);
  return work;
}

}  // namespace pagemill
#endif
