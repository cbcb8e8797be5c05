#include "engine/ops/reference/reference_interpreter.h"

#include "common/check.h"
#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

constexpr const Rule* kRules[] = {
#define MP_OP(kind, name) &k##kind,
#include "engine/graph/op_kinds.inc"
#undef MP_OP
};

void Execute(const Run& run) {
  const Rule rule = *kRules[static_cast<size_t>(run.op.kind)];
  MP_CHECK(rule != kNotOnValues) << Name(run.op.kind) << " does not work on values";
  rule(run);
}

}  // namespace

Array MatMul(const Array& a, bool transpose_a, const Array& b, bool transpose_b, int64_t m,
             int64_t n, int64_t k) {
  Array out(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double left = transpose_a ? a[p * m + i] : a[i * k + p];
      for (int64_t j = 0; j < n; ++j) {
        out[i * n + j] += left * (transpose_b ? b[j * k + p] : b[p * n + j]);
      }
    }
  }
  return out;
}

Array ColumnSums(const Array& a, int64_t columns) {
  Array sums(columns, 0.0);
  for (size_t i = 0; i < a.size(); ++i) sums[i % columns] += a[i];
  return sums;
}

}  // namespace milepost::ops::reference

namespace milepost::graph {

ReferenceInterpreter::ReferenceInterpreter(const Graph& graph)
    : graph_(graph), values_(graph.values.size()), integers_(graph.values.size()) {
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.dtype == DType::kI32) {
      integers_[i].resize(Elements(value.shape), 0);
    } else {
      values_[i].resize(Elements(value.shape), 0.0);
    }
  }
}

void ReferenceInterpreter::Run(const ReferenceContext& context) {
  for (const Op& op : graph_.ops) RunOp(op, context);
}

void ReferenceInterpreter::RunOp(const Op& op, const ReferenceContext& context) {
  ops::reference::Execute({graph_, op, context, values_, integers_});
}

}  // namespace milepost::graph
