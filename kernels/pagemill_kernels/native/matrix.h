// What matrix.cpp and matrix_pack.cpp share: where an output lies in its panel.
#pragma once

#include "matrix_tile.h"

namespace pagemill {

inline int panels_of(const Matrix& m) {
  int across = m.paired ? m.out / 2 : m.out, each = m.paired ? kLanes : kPanel;
  return (across + each - 1) / each;
}

inline std::size_t panel_bytes_of(const Matrix& m) {
  int group = group_of(m.stored, m.arithmetic);
  return static_cast<std::size_t>((m.in + group - 1) / group) * group * kPanel * element_bytes(m.stored);
}

// The place of an output among all panels' columns: panel * kPanel + column. A panel of a paired matrix is kLanes gates, then their ups.
inline std::size_t column_of(const Matrix& m, int output) {
  if (!m.paired) return output;
  int half = m.out / 2, second = output >= half, i = output - second * half;
  return static_cast<std::size_t>(i / kLanes) * kPanel + second * kLanes + i % kLanes;
}

Matrix* pack(const void* weight, Type type, int out, int in, const float* bias, Type stored, Type arithmetic, bool paired);
void release(Matrix* matrix);

}  // namespace pagemill
