// Gradients that travel as factors of a low rank (Vogels et al., "PowerSGD: Practical low-rank
// gradient compression for distributed optimization", 2019).
//
//   const FactorLayout layout = LayOutFactors(group);
//   for (const FactoredMatrix& matrix : layout.matrices) { ... left + matrix.left ... }
//
// A gradient counts as a matrix of its first dimension by the rest. Its left factor is stored as
// rank rows of `rows` elements, its right factor as rank rows of `cols`. One behind the other the
// factors of a group's matrices lie in two buffers, which are each reduced by one call; the group's
// other gradients travel whole, behind the left factors.
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_COMPRESSION_H_
#define MILEPOST_ENGINE_PLAN_COMPRESSION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/plan/step_plan.h"

namespace milepost::plan {

// The rank of the factors of a gradient of this shape; 0: it is no matrix, or the factors would not
// have less than half of its elements, as in PyTorch's hook.
int64_t FactorRank(const graph::Shape& shape, int64_t rank);

struct FactoredMatrix {
  size_t parameter;  // of group.parameters
  int64_t rows;
  int64_t cols;
  int64_t rank;
  int64_t left;   // first element in the left buffer
  int64_t right;  // and in the right one
};

struct FactorLayout {
  std::vector<FactoredMatrix> matrices;
  struct Whole {
    size_t parameter;  // of group.parameters
    int64_t left;      // first element in the left buffer
  };
  std::vector<Whole> whole;
  int64_t left_elements = 0;
  int64_t right_elements = 0;
};
FactorLayout LayOutFactors(const FlatGroup& group);

// Of the ops that a group's reduction then consists of.
bool IsCompression(graph::OpKind kind);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_COMPRESSION_H_
