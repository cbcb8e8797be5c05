// Internal to the room: what binders of both devices make of the ops.
#ifndef MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_BINDING_H_
#define MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_BINDING_H_

#include <cstdint>
#include <vector>

#include "engine/ops/linear/linear_contract.h"
#include "engine/plan/compression.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/executor/randomness.h"

namespace milepost::ops {

// The one product of a matrix and its factors that each of the three ops makes.
inline kernels::MatmulSpec FactorProduct(graph::OpKind kind, const plan::FactoredMatrix& m) {
  if (kind == graph::OpKind::kCompressGradients) {  // right M^T
    return {.m = m.rank, .n = m.rows, .k = m.cols, .transpose_b = true};
  }
  if (kind == graph::OpKind::kProjectGradients) {  // left M
    return {.m = m.rank, .n = m.cols, .k = m.rows};
  }
  return {.m = m.rows, .n = m.cols, .k = m.rank, .transpose_a = true};  // left^T right
}

// A group's matrices where they lie, and what travels whole.
struct GroupFactors {
  struct Matrix {
    plan::FactoredMatrix shape;
    kernels::MatmulSpec product;
    float* gradient;
    float* error;
    float* left;
    float* right;
    uint32_t parameter;  // of the graph
    int64_t elements() const { return shape.rows * shape.cols; }
  };
  struct Whole {
    float* gradient;
    float* left;
    int64_t elements;
  };
  std::vector<Matrix> matrices;
  std::vector<Whole> whole;
  float* right = nullptr;  // all of them
  int64_t right_elements = 0;
  float* error = nullptr;  // all of it
  int64_t error_elements = 0;
  bool warm = true;
  int64_t start = 0;
  int world = 1;

  explicit GroupFactors(const runtime::OpBinding& b);

  bool Compresses(const runtime::StepContext& c) const { return c.step >= start; }
  // Of the ranks' sum to their mean.
  float mean() const { return 1.0F / static_cast<float>(world); }
};

inline GroupFactors::GroupFactors(const runtime::OpBinding& b)
    : warm(b.plan.options.powersgd_warm),
      start(b.plan.options.powersgd_start),
      world(b.plan.options.world) {
  const plan::FlatGroup& group = runtime::GroupOf(b);
  const plan::FactorLayout layout = plan::LayOutFactors(group);
  auto* gradient = runtime::BufferOf<float>(b, group.gradient_buffer);
  auto* left = runtime::BufferOf<float>(b, group.left_buffer);
  right = runtime::BufferOf<float>(b, group.right_buffer);
  right_elements = layout.right_elements;
  error = runtime::BufferOf<float>(b, group.error_buffer);
  error_elements = group.padded_elements;
  for (const plan::FactoredMatrix& m : layout.matrices) {
    const plan::GroupParameter& p = group.parameters[m.parameter];
    matrices.push_back({m, FactorProduct(b.planned.op.kind, m), gradient + p.begin, error + p.begin,
                        left + m.left, right + m.right, static_cast<uint32_t>(p.parameter)});
  }
  for (const plan::FactorLayout::Whole& w : layout.whole) {
    const plan::GroupParameter& p = group.parameters[w.parameter];
    whole.push_back({gradient + p.begin, left + w.left, p.elements});
  }
}

// Rows of a factor that depend on those before them are drawn, each by its own numbers of the
// factor's stream: those of element (step * rank + row) * the row's length on.
inline uint64_t FactorStream(bool of_right, uint32_t parameter) {
  return runtime::RandomStream(
      of_right ? runtime::RandomPurpose::kRightFactor : runtime::RandomPurpose::kLeftFactor,
      parameter);
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_COMPRESSION_COMPRESSION_BINDING_H_
