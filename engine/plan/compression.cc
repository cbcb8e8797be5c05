#include "engine/plan/compression.h"

#include <algorithm>

namespace milepost::plan {
namespace {

constexpr int64_t kLeastSaving = 2;  // PyTorch's min_compression_rate

int64_t ColumnsOf(const graph::Shape& shape) {
  return shape.size() < 2 ? 1 : graph::Elements(shape) / shape[0];
}

}  // namespace

int64_t FactorRank(const graph::Shape& shape, int64_t rank) {
  if (shape.empty()) return 0;
  const int64_t rows = shape[0], cols = ColumnsOf(shape);
  const int64_t possible = std::min({rows, cols, rank});
  return (rows + cols) * possible * kLeastSaving < rows * cols ? possible : 0;
}

FactorLayout LayOutFactors(const FlatGroup& group) {
  FactorLayout layout;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const GroupParameter& p = group.parameters[i];
    if (p.rank == 0) continue;
    const int64_t rows = p.shape[0], cols = ColumnsOf(p.shape);
    layout.matrices.push_back({i, rows, cols, p.rank, layout.left_elements, layout.right_elements});
    layout.left_elements += p.rank * rows;
    layout.right_elements += p.rank * cols;
  }
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    if (group.parameters[i].rank > 0) continue;
    layout.whole.push_back({i, layout.left_elements});
    layout.left_elements += group.parameters[i].elements;
  }
  return layout;
}

bool IsCompression(graph::OpKind kind) {
  return kind == graph::OpKind::kCompressGradients || kind == graph::OpKind::kReduceLeftFactors ||
         kind == graph::OpKind::kProjectGradients || kind == graph::OpKind::kReduceRightFactors ||
         kind == graph::OpKind::kExpandGradients || kind == graph::OpKind::kForgetErrors;
}

}  // namespace milepost::plan
