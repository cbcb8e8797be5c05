// An op's workspace holds its own part (the chunk of logits and
// what belongs to it, or the rows whose logits are wanted) and behind it the products' scratch.
//
// Where the op says `gathers`, its chunks are of rows that have a target: they are copied side by
// side and their gradients back to where they belong. Launches have fixed sizes, so that there is
// one chunk, filled up with rows that have none, whose gradients are zeros; or, where
// StepContext::many_targets, as many as all rows need. Evaluation takes all rows as they lie.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/rows.h"
#include "engine/ops/classifier/classifier_cuda_kernel.h"
#include "engine/ops/lm_head/lm_head_binding.h"
#include "engine/ops/lm_head/lm_head_workspace.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Product;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::OpBinding;
using runtime::StepContext;

using HeadSizes = GpuHeadLayout;

// rows x V logits of the head and the three products around them.
struct Products {
  Products(const HeadSizes& s, int64_t rows)
      : logits{.spec = {.m = rows,
                        .n = s.vocabulary,
                        .k = s.width,
                        .transpose_b = true,
                        .a = s.dtype,
                        .b = s.dtype,
                        .c = s.dtype,
                        .bias = s.bias,
                        .bias_type = s.dtype,
                        .c_row = s.Stride()}},
        dx{.spec = {.m = rows,
                    .n = s.width,
                    .k = s.vocabulary,
                    .a = s.dtype,
                    .b = s.dtype,
                    .c = s.dtype,
                    .accumulate = s.adds,
                    .a_row = s.Stride()}},
        dw_assign{.spec = {.m = s.vocabulary,
                           .n = s.width,
                           .k = rows,
                           .transpose_a = true,
                           .a = s.dtype,
                           .b = s.dtype,
                           .a_row = s.Stride()}},
        dw_add(dw_assign) {
    dw_add.spec.accumulate = true;
    // Where chunks begin.
    const bool aligned = s.chunk * s.width * s.Element() % 16 == 0;
    for (Product* p : {&logits, &dx, &dw_assign, &dw_add}) {
      p->alignment = aligned ? 16 : static_cast<int>(s.Element());
    }
  }
  Product logits, dx, dw_assign, dw_add;
};

// kLmHeadLogits. A bias is added to them afterwards, since they are fp32 and it is not.
Product LogitsOfRows(const HeadSizes& s, const graph::Attributes& a) {
  Product product = Products(s, a.every_row ? s.rows : a.batch).logits;
  product.spec.c = DType::kF32;
  product.spec.bias = false;
  product.spec.c_row = 0;
  product.alignment = 16;
  return product;
}

std::vector<Product> HeadProducts(const plan::StepPlan&, const plan::Program& program,
                                  const graph::Op& op) {
  const HeadSizes sizes(program.graph, op);
  if (op.kind == OpKind::kLmHeadLogits) return {LogitsOfRows(sizes, op.attributes)};
  std::vector<Product> products;
  if (HeadSizes::AddsUp(op)) return products;
  for (int64_t rows : {sizes.chunk, sizes.rows % sizes.chunk}) {
    if (rows == 0) continue;
    const Products p(sizes, rows);
    if (!sizes.kept || !sizes.training) products.push_back(p.logits);
    if (!sizes.training) continue;
    products.push_back(p.dx);
    if (sizes.weight_gradient) products.insert(products.end(), {p.dw_assign, p.dw_add});
  }
  return products;
}

// The head over one micro-batch, chunk by chunk of rows.
template <typename T>
struct Head {
  explicit Head(const CudaBinding& b)
      : sizes(b.program.graph, b.planned.op),
        whole(sizes, sizes.chunk),
        tail(sizes, sizes.rows % sizes.chunk),
        products(b.services.products),
        stream(b.stream()),
        io(sizes, b),
        factor(&b.control()->gradient_factors[b.attributes().head]),
        logits(io.kept_gradient != nullptr ? io.kept_gradient
               : io.own_logits != nullptr  ? io.own_logits
                                           : reinterpret_cast<T*>(b.Workspace())),
        classifier(b.Workspace() + sizes.LogitsBytes()),
        bias_sums(classifier + sizes.ClassifierBytes()),
        gathered(reinterpret_cast<T*>(bias_sums + sizes.BiasGradientBytes())),
        gathered_targets(
            reinterpret_cast<int32_t*>(bias_sums + sizes.BiasGradientBytes() + sizes.RowsBytes())),
        order(gathered_targets + sizes.TargetsBytes() / static_cast<int64_t>(sizeof(int32_t))),
        scratch(b.Workspace() + sizes.Bytes()) {
    io.columns.stride = sizes.Stride();
  }

  absl::Status Run(const StepContext& context) const {
    if (sizes.divided && sizes.training) {
      MP_RETURN_IF_ERROR(cuda::ClassifierPartsLoss(io.targets, io.parts, /*with_correct=*/false,
                                                   io.sums_accumulation.At(context), io.sums,
                                                   stream));
    }
    return sizes.gathers ? RunGathered(context) : RunAll(context);
  }

 private:
  absl::Status RunAll(const StepContext& context) const {
    for (int64_t row = 0; row < sizes.rows; row += sizes.chunk) {
      const int64_t at = row * sizes.width;
      const Chunk chunk = {.rows = std::min(sizes.chunk, sizes.rows - row),
                           .x = io.x + at,
                           .targets = io.targets + row,
                           .dx = io.dx == nullptr ? nullptr : io.dx + at,
                           .addend = io.dsum == nullptr ? nullptr : io.dsum + at,
                           .add = row > 0,
                           .first = row};
      MP_RETURN_IF_ERROR(RunChunk(chunk, context));
    }
    return absl::OkStatus();
  }

  struct Chunk {
    int64_t rows;
    const T* x;
    const int32_t* targets;
    T* dx;                             // or null; may be x
    const T* addend;                   // or null; may be dx
    bool add;                          // the parameters' gradients hold those of other chunks
    int64_t first = 0;                 // of its rows, where they are not gathered
    const int32_t* numbers = nullptr;  // of its rows, where they are
    kernels::LogitsRows Rows() const { return {targets, rows, numbers, first}; }
  };

  // dx may lie over x: a row of it is written once that of x has been read.
  absl::Status RunGathered(const StepContext& context) const {
    MP_RETURN_IF_ERROR(cuda::OrderByTarget(io.targets, sizes.rows, order, stream));
    if (io.own_parts != nullptr) {
      MP_RETURN_IF_ERROR(cuda::Fill(reinterpret_cast<float*>(io.own_parts),
                                    sizes.rows * kernels::kLogitsPartFloats, 0, stream));
    }
    const int64_t end = context.many_targets ? sizes.rows : sizes.chunk;
    for (int64_t row = 0; row < end; row += sizes.chunk) {
      const int64_t count = std::min(sizes.chunk, end - row);
      const int32_t* rows = order + row;
      MP_RETURN_IF_ERROR(cuda::GatherRows<T>(io.x, rows, count, sizes.width, gathered, io.targets,
                                             gathered_targets, stream));
      const Chunk chunk = {.rows = count,
                           .x = gathered,
                           .targets = gathered_targets,
                           .add = row > 0,
                           .numbers = rows};
      MP_RETURN_IF_ERROR(RunChunk(chunk, context));
      if (io.dx == nullptr) continue;
      if (io.dsum != nullptr) {
        MP_RETURN_IF_ERROR(cuda::GatherRows<T>(io.dsum, rows, count, sizes.width, gathered, nullptr,
                                               nullptr, stream));
      }
      MP_RETURN_IF_ERROR(InputGradient(count, io.dsum == nullptr ? nullptr : gathered, gathered));
      const int64_t total = context.many_targets ? count : sizes.rows;
      MP_RETURN_IF_ERROR(
          cuda::ScatterRows<T>(gathered, rows, count, total, sizes.width, io.dsum, io.dx, stream));
    }
    return absl::OkStatus();
  }

  const Products& ProductsOf(int64_t rows) const { return rows == sizes.chunk ? whole : tail; }

  absl::Status RunChunk(const Chunk& chunk, const StepContext& context) const {
    const Products& p = ProductsOf(chunk.rows);
    if (io.kept == nullptr) {
      MP_RETURN_IF_ERROR(
          Execute(p.logits, {.a = chunk.x, .b = io.wte, .bias = io.bias, .c = logits}));
    }
    if (io.own_parts != nullptr) {
      return cuda::ClassifierParts<T>(logits, chunk.Rows(), io.columns, io.own_parts, stream);
    }
    MP_RETURN_IF_ERROR(Classify(chunk, context));
    return sizes.training ? Gradients(chunk, context) : absl::OkStatus();
  }

  // The loss; `logits` then hold their gradients, if there are any.
  absl::Status Classify(const Chunk& chunk, const StepContext& context) const {
    if (sizes.divided) {
      return cuda::ClassifierPartsGradient<T>(io.kept == nullptr ? logits : io.kept, chunk.Rows(),
                                              io.columns, io.parts, factor, logits, stream);
    }
    const cuda::ClassifierArgs<T> args{
        .logits = logits,
        .targets = chunk.targets,
        .rows = chunk.rows,
        .vocabulary = sizes.vocabulary,
        .scale = factor,
        .sums = io.sums,
        .accumulate = chunk.add || io.sums_accumulation.At(context),
        .stride = sizes.Stride(),
        .gradients = io.gradients == nullptr ? nullptr : io.gradients + chunk.first};
    if (io.log_probs != nullptr) {
      return cuda::ClassifierLogProbs<T>(args, classifier, io.log_probs + chunk.first, stream);
    }
    return sizes.training ? cuda::ClassifierLossAndGradient<T>(args, classifier, stream)
                          : cuda::ClassifierLoss<T>(args, classifier, stream);
  }

  // Of the parameters and x, from those of the logits.
  absl::Status Gradients(const Chunk& chunk, const StepContext& context) const {
    const Products& p = ProductsOf(chunk.rows);
    if (io.dbias != nullptr) {
      const bool add = chunk.add || io.dbias_accumulation.At(context);
      MP_RETURN_IF_ERROR(cuda::BiasGradient<T>(logits, chunk.rows, sizes.vocabulary, sizes.Stride(),
                                               add, io.dbias, bias_sums, stream));
    }
    if (io.dwte != nullptr) {
      const bool add = chunk.add || io.dwte_accumulation.At(context);
      MP_RETURN_IF_ERROR(
          Execute(add ? p.dw_add : p.dw_assign, {.a = logits, .b = chunk.x, .c = io.dwte}));
    }
    return chunk.dx == nullptr ? absl::OkStatus()
                               : InputGradient(chunk.rows, chunk.addend, chunk.dx);
  }

  // Of what `logits` then hold; last, since dx may lie over x.
  absl::Status InputGradient(int64_t rows, const T* addend, T* to) const {
    return Execute(ProductsOf(rows).dx, {.a = logits, .b = io.wte, .c = to, .addend = addend});
  }

  absl::Status Execute(const Product& product, const cuda::ProductArguments& arguments) const {
    return products->Execute(product, arguments, scratch, stream);
  }

  HeadSizes sizes;
  Products whole, tail;
  DeviceProducts* products;
  cudaStream_t stream;
  HeadOperands<T> io;
  const float* factor;  // of gradients
  T* logits;
  char* classifier;
  char* bias_sums;
  T* gathered;
  int32_t* gathered_targets;
  int32_t* order;
  char* scratch;
};

absl::Status RequireHeadWorkspace(const CudaBinding& b) {
  return b.RequireWorkspace(b.BytesBeforeScratch() + b.services.products->WorkspaceBytes());
}

template <typename T>
absl::StatusOr<BoundOp> LmHeadLossOf(const CudaBinding& b) {
  MP_RETURN_IF_ERROR(RequireHeadWorkspace(b));
  return [head = Head<T>(b)](const StepContext& context) { return head.Run(context); };
}

// kLmHeadLoss where tensor ranks divide the vocabulary: the sums alone.
absl::StatusOr<BoundOp> SumsOfParts(const CudaBinding& b) {
  const auto parts =
      GatheredPartsOf(b, HeadSizes::kGatheredPartsOfLoss, /*each=*/b.InputShape(1)[0]);
  return [targets = b.Input<int32_t>(2), parts, sums = b.Output<double>(0),
          accumulation = b.OutputAccumulation(0), stream = b.stream()](const StepContext& context) {
    return cuda::ClassifierPartsLoss(targets, parts, /*with_correct=*/true,
                                     accumulation.At(context), sums, stream);
  };
}

absl::StatusOr<BoundOp> BindLmHeadLoss(const CudaBinding& b) {
  return HeadSizes::AddsUp(b.planned.op) ? SumsOfParts(b) : MP_BIND_BY_DTYPE(LmHeadLossOf, b);
}

template <typename T>
absl::StatusOr<BoundOp> LmHeadLogitsOf(const CudaBinding& b) {
  MP_RETURN_IF_ERROR(RequireHeadWorkspace(b));
  const graph::Attributes& a = b.attributes();
  const HeadSizes sizes(b.program.graph, b.planned.op);
  return [products = b.services.products, product = LogitsOfRows(sizes, a), sizes,
          x = b.Input<T>(0), wte = b.Input<T>(1), bias = b.Input<T>(2), logits = b.Output<float>(0),
          every_row = a.every_row, batch = a.batch, sequence = a.sequence, row = &b.control()->row,
          taken = reinterpret_cast<T*>(b.Workspace()),
          scratch = b.Workspace() + sizes.TakenRowsBytes(b.planned.op),
          stream = b.stream()](const StepContext&) -> absl::Status {
    const T* rows = every_row ? x : taken;
    if (!every_row) {
      MP_RETURN_IF_ERROR(cuda::TakeRow<T>(x, batch, sequence, sizes.width, row, taken, stream));
    }
    MP_RETURN_IF_ERROR(
        products->Execute(product, {.a = rows, .b = wte, .c = logits}, scratch, stream));
    if (bias == nullptr) return absl::OkStatus();
    return cuda::AddBias(bias, product.spec.m, sizes.vocabulary, logits, stream);
  };
}

}  // namespace

constinit const CudaOp kLmHeadLoss = {.bind = BindLmHeadLoss, .products = HeadProducts};
constinit const CudaOp kLmHeadParts = {.bind = MP_BY_DTYPE(LmHeadLossOf), .products = HeadProducts};
constinit const CudaOp kLmHeadLossBackward = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                              .products = HeadProducts};
constinit const CudaOp kLmHeadLogProbs = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                          .products = HeadProducts};
constinit const CudaOp kLmHeadLogProbsBackward = {.bind = MP_BY_DTYPE(LmHeadLossOf),
                                                  .products = HeadProducts};
constinit const CudaOp kLmHeadLogits = {.bind = MP_BY_DTYPE(LmHeadLogitsOf),
                                        .products = HeadProducts};

}  // namespace milepost::ops::gpu
