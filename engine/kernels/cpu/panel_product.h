// Products of fp32 panels that fit a core's caches, and their packing, for matmul_widened.cc.
// Serial; no allocation. Factors are widened to fp32 as they are packed, a block of up to
// kPanelRows by kPanelDepth of op(A), and kPanelDepth by kPanelGroup of op(B) at a time; how packed
// elements lie is the SIMD target's business.
#ifndef MILEPOST_ENGINE_KERNELS_CPU_PANEL_PRODUCT_H_
#define MILEPOST_ENGINE_KERNELS_CPU_PANEL_PRODUCT_H_

#include <cstdint>

#include "engine/dtype/half.h"

namespace milepost::kernels {

constexpr int64_t kPanelDepth = 128;
constexpr int64_t kPanelGroup = 64;
constexpr int64_t kPanelRows = 96;
// Of a packed block of A. Its rows are no multiple of 1 KiB apart, or they would meet in the same
// lines of the cache.
constexpr int64_t kPanelElements = kPanelRows * (kPanelDepth + 16);

// `a`: the first of `rows` rows and `depth` columns of op(A), whose stored rows are a_row apart;
// `more`: rows of op(A) behind them, which may be read too.
template <typename T>
void PackBlock(const T* a, int64_t a_row, bool transposed, int64_t rows, int64_t depth,
               int64_t more, float* to);

// to: kPanelGroup * depth floats. `b`: the group's first element of rows [0, depth) of op(B), whose
// stored rows are b_row apart; `columns` <= kPanelGroup of it exist, the others become zeros.
template <typename T>
void PackPanels(const T* b, int64_t b_row, bool transposed, int64_t depth, int64_t columns,
                float* to);

struct PanelOperands {
  const float* a;  // what PackBlock wrote
  bool transposed;
  const float* panels;  // what PackPanels wrote, groups of one depth side by side
  int64_t depth;
  float* c;
  int64_t c_row;
};

// C[rows, columns] (+)= A B; an element is summed in the order of the depth.
void MultiplyPanels(const PanelOperands& operands, int64_t rows, int64_t columns, bool accumulate);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_KERNELS_CPU_PANEL_PRODUCT_H_
