#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// Of one rank.
void TensorReduce(const Run& run) {
  Array y = run.in(0);
  const auto width = static_cast<size_t>(run.in_shape(0).back());
  for (size_t i = 0; i < y.size(); ++i) {
    if (run.has_input(1)) y[i] += run.in(1)[i];
    if (run.has_input(2)) y[i] += run.in(2)[i % width];
  }
  run.Write(0, y);
}

// The rows of the first rank, of as many as there are of y's in x; it sums its own alone.
void OwnRows(const Run& run) {
  Array y = run.in(0);
  y.resize(static_cast<size_t>(graph::Elements(run.out_shape(0))));
  const bool scatters = run.op.kind == graph::OpKind::kTensorScatter;
  const auto width = static_cast<size_t>(run.in_shape(0).back());
  for (size_t i = 0; i < y.size(); ++i) {
    if (run.has_input(1)) y[i] += run.in(1)[i];
    if (scatters && run.has_input(2)) y[i] += run.in(2)[i % width];
  }
  run.Write(0, y);
}

void TensorGather(const Run& run) { run.Write(0, run.in(0)); }

void BiasBackward(const Run& run) { run.Write(0, ColumnSums(run.in(0), run.dim(0, 1))); }

}  // namespace

constinit const Rule kTensorReduce = TensorReduce;
constinit const Rule kTensorScatter = OwnRows;
constinit const Rule kTensorRows = OwnRows;
constinit const Rule kTensorGather = TensorGather;
constinit const Rule kBiasBackward = BiasBackward;

}  // namespace milepost::ops::reference
