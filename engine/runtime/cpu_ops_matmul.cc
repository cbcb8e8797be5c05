// The language-model head on the CPU. An op's workspace holds its fixed part (the chunk of logits)
// and behind it the product's own scratch.
#include <algorithm>

#include "common/status_macros.h"
#include "engine/kernels/cpu/classifier.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/runtime/cpu_ops.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using kernels::MatmulSpec;

constexpr int64_t kAlignment = 64;
int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// rows x V logits of the head and the three products around them. `first`: whether the weight
// gradient is assigned.
struct HeadProducts {
  HeadProducts(int64_t rows, int64_t width, int64_t vocabulary, kernels::DType t)
      : logits{.m = rows, .n = vocabulary, .k = width, .transpose_b = true, .a = t, .b = t, .c = t},
        dx{.m = rows, .n = width, .k = vocabulary, .a = t, .b = t, .c = t},
        dw_assign{.m = vocabulary, .n = width, .k = rows, .transpose_a = true, .a = t, .b = t},
        dw_add(dw_assign) {
    dw_add.accumulate = true;
  }
  MatmulSpec logits, dx, dw_assign, dw_add;
};

struct HeadSizes {
  HeadSizes(const graph::Graph& graph, const graph::Op& op)
      : rows(graph.values[op.inputs[0]].shape[0]),
        width(graph.values[op.inputs[0]].shape[1]),
        vocabulary(graph.values[op.inputs[1]].shape[0]),
        chunk(op.attributes.chunk_rows > 0 ? std::min(op.attributes.chunk_rows, rows) : rows),
        dtype(graph.values[op.inputs[0]].dtype) {}
  int64_t LogitsBytes() const { return Align(chunk * vocabulary * graph::ByteSize(dtype)); }
  int64_t ClassifierBytes() const {
    return Align(static_cast<int64_t>(kernels::ClassifierWorkspaceBytes(chunk)));
  }

  int64_t rows, width, vocabulary, chunk;
  graph::DType dtype;
};

MatmulSpec LogitsOfOneRow(const graph::Graph& graph, const graph::Op& op) {
  const HeadSizes sizes(graph, op);
  MatmulSpec spec = HeadProducts(1, sizes.width, sizes.vocabulary, KernelDType(sizes.dtype)).logits;
  spec.c = kernels::DType::kF32;
  return spec;
}

// Asks for the primitives, so that none is created during a step.
absl::Status Prepare(const Binding& b) {
  int64_t scratch = 0;
  for (const MatmulSpec& spec : MatmulSpecsOf(b.plan, b.program, b.planned.op)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  return b.RequireWorkspace(MatmulOpFixedBytes(b.plan, b.program, b.planned.op) + scratch);
}

}  // namespace

std::vector<MatmulSpec> MatmulSpecsOf(const plan::StepPlan& plan, const plan::Program& program,
                                      const graph::Op& op) {
  const graph::Graph& graph = program.graph;
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLinearBackwardWeight:
      return LinearMatmulSpecs(program, op);
    case OpKind::kOrthogonalize:
      return OrthogonalizeMatmulSpecs(plan.groups[op.attributes.group]);
    case OpKind::kLmHeadLogits:
      return {LogitsOfOneRow(graph, op)};
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward: {
      const HeadSizes sizes(graph, op);
      std::vector<MatmulSpec> specs;
      for (int64_t rows : {sizes.chunk, sizes.rows % sizes.chunk}) {
        if (rows == 0) continue;
        const HeadProducts p(rows, sizes.width, sizes.vocabulary, KernelDType(sizes.dtype));
        specs.push_back(p.logits);
        if (op.kind == OpKind::kLmHeadLoss) continue;
        specs.insert(specs.end(), {p.dx, p.dw_assign, p.dw_add});
      }
      return specs;
    }
    default:
      return {};
  }
}

int64_t MatmulOpFixedBytes(const plan::StepPlan& plan, const plan::Program& program,
                           const graph::Op& op) {
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLinearBackwardWeight:
      return LinearFixedBytes(program, op);
    case OpKind::kOrthogonalize:
      return OrthogonalizeFixedBytes(plan.groups[op.attributes.group]);
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward: {
      const HeadSizes sizes(program.graph, op);
      return sizes.LogitsBytes() + sizes.ClassifierBytes();
    }
    default:
      return 0;
  }
}

namespace {

// The head over one micro-batch, chunk by chunk of rows.
template <typename T>
struct Head {
  explicit Head(const Binding& b)
      : sizes(b.program.graph, b.planned.op),
        whole(sizes.chunk, sizes.width, sizes.vocabulary, kernels::kDTypeOf<T>),
        tail(sizes.rows % sizes.chunk, sizes.width, sizes.vocabulary, kernels::kDTypeOf<T>),
        matmuls(&b.matmuls),
        x(b.Input<T>(0)),
        wte(b.Input<T>(1)),
        targets(b.Input<int32_t>(2)),
        head(b.attributes().head),
        sums(b.Output<double>(0)),
        sums_accumulation(b.OutputAccumulation(0)),
        dx(b.Output<T>(1)),
        dwte(b.Output<float>(2)),
        logits(reinterpret_cast<T*>(b.Workspace())),
        classifier(b.Workspace() + sizes.LogitsBytes()),
        scratch(classifier + sizes.ClassifierBytes()) {
    if (dwte != nullptr) dwte_accumulation = b.OutputAccumulation(2);
  }

  absl::Status Run(const StepContext& context) const {
    kernels::LossSum sum;
    for (int64_t row = 0; row < sizes.rows; row += sizes.chunk) {
      const int64_t rows = std::min(sizes.chunk, sizes.rows - row);
      MP_RETURN_IF_ERROR(RunChunk(row, rows, context, &sum));
    }
    if (!sums_accumulation.At(context)) std::fill(sums, sums + graph::kLossSums, 0.0);
    sums[graph::kLossSum] += sum.loss;
    sums[graph::kLossTargets] += static_cast<double>(sum.targets);
    sums[graph::kLossCorrect] += static_cast<double>(sum.correct);
    return absl::OkStatus();
  }

  absl::Status RunChunk(int64_t row, int64_t rows, const StepContext& context,
                        kernels::LossSum* sum) const {
    const HeadProducts& p = rows == sizes.chunk ? whole : tail;
    const T* rows_x = x + row * sizes.width;
    MP_RETURN_IF_ERROR(matmuls->Execute(p.logits, rows_x, wte, nullptr, logits, scratch));
    if (dwte == nullptr) {
      kernels::ClassifierForward<T>(logits, targets + row, rows, sizes.vocabulary, classifier, sum);
      return absl::OkStatus();
    }
    kernels::ClassifierForwardBackward<T>(logits, targets + row, rows, sizes.vocabulary,
                                          context.gradient_factors[head], classifier, sum);
    // dwte first: dx may lie over x.
    const bool add = row > 0 || dwte_accumulation.At(context);
    MP_RETURN_IF_ERROR(
        matmuls->Execute(add ? p.dw_add : p.dw_assign, logits, rows_x, nullptr, dwte, scratch));
    return matmuls->Execute(p.dx, logits, wte, nullptr, dx + row * sizes.width, scratch);
  }

  HeadSizes sizes;
  HeadProducts whole, tail;
  kernels::MatmulCache* matmuls;
  const T* x;
  const T* wte;
  const int32_t* targets;
  int32_t head;
  double* sums;
  Binding::Accumulation sums_accumulation;
  T* dx;
  float* dwte;  // null: the loss alone
  Binding::Accumulation dwte_accumulation;
  T* logits;
  char* classifier;
  char* scratch;
};

template <typename T>
absl::StatusOr<BoundOp> LmHeadLossOf(const Binding& b) {
  MP_RETURN_IF_ERROR(Prepare(b));
  return [head = Head<T>(b)](const StepContext& context) { return head.Run(context); };
}

}  // namespace

absl::StatusOr<BoundOp> BindLmHeadLoss(const Binding& b) {
  return MP_BIND_BY_DTYPE(LmHeadLossOf, b);
}

absl::StatusOr<BoundOp> BindLmHeadLogits(const Binding& b) {
  MP_RETURN_IF_ERROR(Prepare(b));
  const graph::Attributes& a = b.attributes();
  const HeadSizes sizes(b.program.graph, b.planned.op);
  const int64_t row_bytes = sizes.width * graph::ByteSize(sizes.dtype);
  return [matmuls = &b.matmuls, spec = LogitsOfOneRow(b.program.graph, b.planned.op),
          x = b.Input<char>(0), wte = b.Input<char>(1), logits = b.Output<float>(0),
          batch = a.batch, sequence = a.sequence, vocabulary = sizes.vocabulary, row_bytes,
          workspace = b.Workspace()](const StepContext& context) -> absl::Status {
    for (int64_t s = 0; s < batch; ++s) {
      const char* row = x + (s * sequence + context.position) * row_bytes;
      MP_RETURN_IF_ERROR(
          matmuls->Execute(spec, row, wte, nullptr, logits + s * vocabulary, workspace));
    }
    return absl::OkStatus();
  };
}

}  // namespace milepost::runtime
