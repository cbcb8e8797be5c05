// An op's workspace holds its fixed part (the chunk of logits) and behind it the product's own
// scratch.
#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/ops/classifier/classifier_cpu_kernel.h"
#include "engine/ops/lm_head/lm_head_binding.h"
#include "engine/ops/lm_head/lm_head_workspace.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/linear_layer.h"

namespace milepost::ops::cpu {
namespace {

using graph::OpKind;
using kernels::MatmulSpec;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

// rows x V logits of the head and the three products around them. `adds`: dx is added to.
struct HeadProducts {
  HeadProducts(int64_t rows, int64_t width, int64_t vocabulary, DType t, bool bias, bool adds)
      : logits{.m = rows,
               .n = vocabulary,
               .k = width,
               .transpose_b = true,
               .a = t,
               .b = t,
               .c = t,
               .bias = bias,
               .bias_type = t},
        dx{.m = rows, .n = width, .k = vocabulary, .a = t, .b = t, .c = t, .accumulate = adds},
        dw_assign{.m = vocabulary, .n = width, .k = rows, .transpose_a = true, .a = t, .b = t},
        dw_add(dw_assign) {
    dw_add.accumulate = true;
  }
  MatmulSpec logits, dx, dw_assign, dw_add;
};

struct HeadSizes : CpuHeadLayout {
  using CpuHeadLayout::CpuHeadLayout;
  HeadProducts Products(int64_t rows_at_once) const {
    return HeadProducts(rows_at_once, width, vocabulary, dtype, bias, adds);
  }
};

// The logits of one row, or of every row.
MatmulSpec LogitsProduct(const graph::Graph& graph, const graph::Op& op) {
  const HeadSizes sizes(graph, op);
  MatmulSpec spec = sizes.Products(op.attributes.every_row ? sizes.rows : 1).logits;
  spec.c = DType::kF32;
  spec.rows_alone = op.attributes.rows_apart;
  return spec;
}

std::vector<MatmulSpec> HeadMatmulSpecs(const plan::StepPlan&, const plan::Program& program,
                                        const graph::Op& op) {
  const HeadSizes sizes(program.graph, op);
  std::vector<MatmulSpec> specs;
  if (HeadSizes::AddsUp(op)) return specs;
  for (int64_t rows : {sizes.chunk, sizes.gathers ? 0 : sizes.rows % sizes.chunk}) {
    if (rows == 0) continue;
    const HeadProducts p = sizes.Products(rows);
    if (!sizes.kept || !sizes.training) specs.push_back(p.logits);
    if (!sizes.training) continue;
    specs.push_back(p.dx);
    if (sizes.weight_gradient) specs.insert(specs.end(), {p.dw_assign, p.dw_add});
  }
  return specs;
}

std::vector<MatmulSpec> LogitsMatmulSpecs(const plan::StepPlan&, const plan::Program& program,
                                          const graph::Op& op) {
  return {LogitsProduct(program.graph, op)};
}

// Asks for the primitives, so that none is created during a step.
absl::Status PrepareProducts(const Binding& b, const std::vector<MatmulSpec>& specs,
                             int64_t fixed) {
  int64_t scratch = 0;
  for (const MatmulSpec& spec : specs) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  return b.RequireWorkspace(fixed + scratch);
}

// The head over one micro-batch, chunk by chunk of rows.
template <typename T>
struct Head {
  explicit Head(const Binding& b)
      : sizes(b.program.graph, b.planned.op),
        whole(sizes.Products(sizes.chunk)),
        tail(sizes.Products(sizes.rows % sizes.chunk)),
        matmuls(&b.matmuls),
        io(sizes, b),
        head(b.attributes().head),
        logits(io.kept_gradient != nullptr ? io.kept_gradient
               : io.own_logits != nullptr  ? io.own_logits
                                           : reinterpret_cast<T*>(b.Workspace())),
        classifier(b.Workspace() + sizes.LogitsBytes()),
        bias_sums(classifier + sizes.ClassifierBytes()),
        scratch(b.Workspace() + sizes.Bytes()) {
    io.columns.stride = sizes.vocabulary;
    char* gathered = bias_sums + sizes.BiasGradientBytes();
    rows_x = reinterpret_cast<T*>(gathered);
    numbers = reinterpret_cast<int32_t*>(gathered + sizes.RowsBytes());
    rows_targets = reinterpret_cast<int32_t*>(gathered + sizes.RowsBytes() + sizes.NumbersBytes());
  }

  absl::Status Run(const StepContext& context) const {
    kernels::LossSum sum;
    MP_RETURN_IF_ERROR(sizes.gathers ? RunGathered(context, &sum) : RunAll(context, &sum));
    if (io.sums == nullptr) return absl::OkStatus();
    if (sizes.divided) {
      kernels::ClassifierPartsLoss(io.targets, io.parts, /*with_correct=*/false, &sum);
    }
    if (!io.sums_accumulation.At(context)) std::fill_n(io.sums, graph::kLossSums, 0.0);
    io.sums[graph::kLossSum] += sum.loss;
    io.sums[graph::kLossTargets] += static_cast<double>(sum.targets);
    io.sums[graph::kLossCorrect] += static_cast<double>(sum.correct);
    return absl::OkStatus();
  }

  absl::Status RunAll(const StepContext& context, kernels::LossSum* sum) const {
    for (int64_t row = 0; row < sizes.rows; row += sizes.chunk) {
      const int64_t at = row * sizes.width;
      const Chunk chunk{std::min(sizes.chunk, sizes.rows - row),
                        io.x + at,
                        io.targets + row,
                        io.dx == nullptr ? nullptr : io.dx + at,
                        row > 0,
                        row,
                        nullptr};
      MP_RETURN_IF_ERROR(RunChunk(chunk, context, sum));
      if (io.dx == nullptr) continue;
      if (io.dsum != nullptr && io.dsum != io.dx) {
        std::copy_n(io.dsum + at, chunk.rows * sizes.width, chunk.dx);
      }
      MP_RETURN_IF_ERROR(InputGradient(chunk));
    }
    return absl::OkStatus();
  }

  // Chunks of rows that have a target; the last one is filled up with zeros. dx may lie over x: of
  // the rows behind those that were gathered nothing is written.
  absl::Status RunGathered(const StepContext& context, kernels::LossSum* sum) const {
    if (io.own_parts != nullptr) std::fill_n(io.own_parts, sizes.rows, kernels::LogitsPart{});
    for (int64_t row = 0, begin = 0; row < sizes.rows; begin = row) {
      int64_t count = 0;
      for (; row < sizes.rows && count < sizes.chunk; ++row) {
        if (io.targets[row] < 0) continue;
        numbers[count] = static_cast<int32_t>(row);
        rows_targets[count] = io.targets[row];
        std::copy_n(io.x + row * sizes.width, sizes.width, rows_x + count++ * sizes.width);
      }
      if (count > 0 || begin == 0) {  // without any, gradients still have to be assigned
        std::fill_n(rows_x + count * sizes.width, (sizes.chunk - count) * sizes.width, T{});
        std::fill_n(rows_targets + count, sizes.chunk - count, -1);
        const Chunk chunk{sizes.chunk, rows_x, rows_targets, rows_x, begin > 0, 0, numbers};
        MP_RETURN_IF_ERROR(RunChunk(chunk, context, sum));
        if (io.dx == nullptr) continue;
        for (int64_t i = 0; io.dsum != nullptr && i < count; ++i) {
          std::copy_n(io.dsum + numbers[i] * sizes.width, sizes.width, rows_x + i * sizes.width);
        }
        MP_RETURN_IF_ERROR(InputGradient(chunk));
      }
      if (io.dx != nullptr) Scatter(begin, row, count);
    }
    return absl::OkStatus();
  }

  // The gradients of rows [begin, end), `count` of which were gathered.
  void Scatter(int64_t begin, int64_t end, int64_t count) const {
    const int64_t at = begin * sizes.width;
    const int64_t elements = (end - begin) * sizes.width;
    if (io.dsum == nullptr) {
      std::fill_n(io.dx + at, elements, T{});
    } else if (io.dsum != io.dx) {
      std::copy_n(io.dsum + at, elements, io.dx + at);
    }
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows_x + i * sizes.width, sizes.width, io.dx + numbers[i] * sizes.width);
    }
  }

  struct Chunk {
    int64_t rows;
    const T* x;
    const int32_t* targets;
    T* dx;                             // may be x
    bool add;                          // the parameters' gradients hold those of other chunks
    int64_t first = 0;                 // of its rows, where they are not gathered
    const int32_t* numbers = nullptr;  // of its rows, where they are
    kernels::LogitsRows Rows() const { return {targets, rows, numbers, first}; }
  };
  // All but the gradient of x; `logits` then hold theirs.
  absl::Status RunChunk(const Chunk& chunk, const StepContext& context,
                        kernels::LossSum* sum) const {
    const HeadProducts& p = ProductsOf(chunk);
    if (io.kept == nullptr) {
      MP_RETURN_IF_ERROR(matmuls->Execute(p.logits, chunk.x, io.wte, io.bias, logits, scratch));
    }
    if (io.own_parts != nullptr) {
      kernels::ClassifierParts<T>(logits, chunk.Rows(), io.columns, io.own_parts);
      return absl::OkStatus();
    }
    if (io.log_probs != nullptr) {
      kernels::ClassifierLogProbs<T>(logits, chunk.targets, chunk.rows, sizes.vocabulary,
                                     io.log_probs + chunk.first);
      return absl::OkStatus();
    }
    if (!sizes.training) {
      kernels::ClassifierForward<T>(logits, chunk.targets, chunk.rows, sizes.vocabulary, classifier,
                                    sum);
      return absl::OkStatus();
    }
    if (io.gradients != nullptr) {
      kernels::ClassifierLogProbsBackward<T>(logits, chunk.targets, chunk.rows, sizes.vocabulary,
                                             io.gradients + chunk.first);
    } else if (sizes.divided) {
      kernels::ClassifierPartsGradient<T>(io.kept == nullptr ? logits : io.kept, chunk.Rows(),
                                          io.columns, io.parts, context.gradient_factors[head],
                                          logits);
    } else {
      kernels::ClassifierForwardBackward<T>(logits, chunk.targets, chunk.rows, sizes.vocabulary,
                                            context.gradient_factors[head], classifier, sum);
    }
    if (io.dbias != nullptr) {
      const bool add = chunk.add || io.dbias_accumulation.At(context);
      kernels::BiasGradient<T>(logits, chunk.rows, sizes.vocabulary, add, io.dbias, bias_sums);
    }
    if (io.dwte == nullptr) return absl::OkStatus();
    const bool add = chunk.add || io.dwte_accumulation.At(context);
    return matmuls->Execute(add ? p.dw_add : p.dw_assign, logits, chunk.x, nullptr, io.dwte,
                            scratch);
  }

  // After RunChunk, which has read the chunk's x: dx may lie over it.
  absl::Status InputGradient(const Chunk& chunk) const {
    return matmuls->Execute(ProductsOf(chunk).dx, logits, io.wte, nullptr, chunk.dx, scratch);
  }

  const HeadProducts& ProductsOf(const Chunk& chunk) const {
    return chunk.rows == sizes.chunk ? whole : tail;
  }

  HeadSizes sizes;
  HeadProducts whole, tail;
  kernels::MatmulCache* matmuls;
  HeadOperands<T> io;
  int32_t head;
  T* logits;
  char* classifier;
  char* bias_sums;
  char* scratch;
  // Of the rows that are gathered.
  T* rows_x;
  int32_t* numbers;
  int32_t* rows_targets;
};

template <typename T>
absl::StatusOr<BoundOp> LmHeadLossOf(const Binding& b) {
  MP_RETURN_IF_ERROR(
      PrepareProducts(b, HeadMatmulSpecs(b.plan, b.program, b.planned.op), b.BytesBeforeScratch()));
  return [head = Head<T>(b)](const StepContext& context) { return head.Run(context); };
}

// kLmHeadLoss where tensor ranks divide the vocabulary: the sums alone.
absl::StatusOr<BoundOp> SumsOfParts(const Binding& b) {
  const auto parts =
      GatheredPartsOf(b, HeadSizes::kGatheredPartsOfLoss, /*each=*/b.InputShape(1)[0]);
  return [targets = b.Input<int32_t>(2), parts, sums = b.Output<double>(0),
          accumulation = b.OutputAccumulation(0)](const StepContext& context) {
    kernels::LossSum sum;
    kernels::ClassifierPartsLoss(targets, parts, /*with_correct=*/true, &sum);
    if (!accumulation.At(context)) std::fill_n(sums, graph::kLossSums, 0.0);
    sums[graph::kLossSum] += sum.loss;
    sums[graph::kLossTargets] += static_cast<double>(sum.targets);
    sums[graph::kLossCorrect] += static_cast<double>(sum.correct);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindLmHeadLoss(const Binding& b) {
  return HeadSizes::AddsUp(b.planned.op) ? SumsOfParts(b) : MP_BIND_BY_DTYPE(LmHeadLossOf, b);
}

absl::StatusOr<BoundOp> BindLmHeadLogits(const Binding& b) {
  MP_RETURN_IF_ERROR(PrepareProducts(b, LogitsMatmulSpecs(b.plan, b.program, b.planned.op), 0));
  const graph::Attributes& a = b.attributes();
  const HeadSizes sizes(b.program.graph, b.planned.op);
  const int64_t row_bytes = sizes.width * ByteSize(sizes.dtype);
  const MatmulSpec product = LogitsProduct(b.program.graph, b.planned.op);
  const auto* x = b.Input<char>(0);
  if (a.every_row) {
    return [matmuls = &b.matmuls, product, x, wte = b.Input<char>(1), bias = b.Input<char>(2),
            logits = b.Output<float>(0), workspace = b.Workspace()](const StepContext& context) {
      return matmuls->Execute(runtime::OfRowsThatCount(product, context), x, wte, bias, logits,
                              workspace);
    };
  }
  return [matmuls = &b.matmuls, product, x, wte = b.Input<char>(1), bias = b.Input<char>(2),
          logits = b.Output<float>(0), batch = a.batch, sequence = a.sequence,
          vocabulary = sizes.vocabulary, row_bytes,
          workspace = b.Workspace()](const StepContext& context) -> absl::Status {
    for (int64_t s = 0; s < batch; ++s) {
      const char* row = x + (s * sequence + context.position) * row_bytes;
      MP_RETURN_IF_ERROR(
          matmuls->Execute(product, row, wte, bias, logits + s * vocabulary, workspace));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kLmHeadLoss = {.bind = BindLmHeadLoss, .products = HeadMatmulSpecs};
constinit const CpuOp kLmHeadParts = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                      .products = HeadMatmulSpecs};
constinit const CpuOp kLmHeadLossBackward = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                             .products = HeadMatmulSpecs};
constinit const CpuOp kLmHeadLogProbs = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                         .products = HeadMatmulSpecs};
constinit const CpuOp kLmHeadLogProbsBackward = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                                 .products = HeadMatmulSpecs};
constinit const CpuOp kLmHeadLogits = {.bind = BindLmHeadLogits, .products = LogitsMatmulSpecs};

}  // namespace milepost::ops::cpu
