// An expert's rows are multiplied in pieces (experts_contract.h); in generation each row is
// multiplied as if it were alone.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/experts/experts_binding.h"
#include "engine/ops/experts/experts_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/linear_layer.h"

namespace milepost::ops::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using kernels::MatmulSpec;
using runtime::Binding;
using runtime::BoundOp;
using runtime::LinearLayer;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> RouteExpertsOf(const Binding& b) {
  return [routing = RoutingOf(b), apart = b.attributes().rows_apart, logits = b.Input<T>(0),
          weights = b.Output<float>(0), chosen = b.Output<int32_t>(1), slots = b.Output<int32_t>(2),
          offsets = b.Output<int32_t>(3), before = b.Input<float>(1),
          counts = b.Output<float>(4)](const StepContext& context) {
    const int64_t counted = apart ? std::min(routing.rows, context.position + 1) : routing.rows;
    kernels::RouteExperts<T>(routing, counted, logits, weights, chosen, slots, offsets);
    if (counts != nullptr) kernels::CountRows(routing, offsets, before, counts);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> RouteExpertsBackwardOf(const Binding& b) {
  return [routing = RoutingOf(b), logits = b.Input<T>(0), weights = b.Input<float>(1),
          chosen = b.Input<int32_t>(2), dweights = b.Input<float>(3), slopes = SlopesOf(b),
          dlogits = b.Output<T>(0)](const StepContext&) {
    kernels::RouteExpertsBackward<T>(routing, logits, weights, chosen, dweights, slopes, dlogits);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> DispatchRowsOf(const Binding& b) {
  return [shape = RoutedRowsOf(b, b.InputShape(0)), x = b.Input<T>(0), slots = b.Input<int32_t>(1),
          y = b.Output<T>(0)](const StepContext&) {
    kernels::DispatchRows<T>(shape, x, slots, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> DispatchRowsBackwardOf(const Binding& b) {
  return [shape = RoutedRowsOf(b, b.OutputShape(0)), dy = b.Input<T>(0),
          slots = b.Input<int32_t>(1), dx = b.Output<T>(0)](const StepContext&) {
    kernels::CombineRows<T>(shape, dy, nullptr, slots, dx);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> CombineRowsOf(const Binding& b) {
  return [shape = RoutedRowsOf(b, b.OutputShape(0)), y = b.Input<T>(0), weights = b.Input<float>(1),
          slots = b.Input<int32_t>(2), out = b.Output<T>(0)](const StepContext&) {
    kernels::CombineRows<T>(shape, y, weights, slots, out);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> CombineRowsBackwardOf(const Binding& b) {
  return [shape = RoutedRowsOf(b, b.InputShape(3)), y = b.Input<T>(0), weights = b.Input<float>(1),
          slots = b.Input<int32_t>(2), dout = b.Input<T>(3), dy = b.Output<T>(0),
          dweights = b.Output<float>(1)](const StepContext&) {
    kernels::CombineRowsBackward<T>(shape, y, weights, slots, dout, dy, dweights);
    return absl::OkStatus();
  };
}

// Of how many rows of targets there are, the share that has one is the micro-batch's share of the
// global batch's: the gradient's factor is one over these.
absl::StatusOr<BoundOp> BindExpertBalance(const Binding& b) {
  return
      [targets = b.Input<int32_t>(0), rows = b.InputShape(0)[0], counts = b.Input<float>(1),
       experts = b.attributes().experts, slopes = b.Output<float>(0)](const StepContext& context) {
        const auto valid = static_cast<double>(
            std::count_if(targets, targets + rows, [](int32_t target) { return target >= 0; }));
        const auto all = static_cast<double>(counts[experts.count]);
        const double factor = context.gradient_factors[0] * valid / all;
        for (int64_t e = 0; e < experts.count; ++e) {
          const double share = static_cast<double>(counts[e]) / all;
          slopes[e] = static_cast<float>(factor * experts.balance_loss *
                                         static_cast<double>(experts.count) * share);
        }
        slopes[experts.count] = static_cast<float>(factor * experts.z_loss);
        return absl::OkStatus();
      };
}

// ---- the products ----

LinearLayer LayerOfExpert(const Binding& b, int64_t expert) {
  return LinearLayer(b.program, OfExpert(b.planned.op, expert), /*with_biases=*/false);
}

// All that rows of one expert may need: those of the others have the same sizes.
std::vector<MatmulSpec> ExpertMatmulSpecs(const plan::StepPlan&, const plan::Program& program,
                                          const Op& op) {
  const Op own = OfExpert(op, 0);
  const LinearLayer layer(program, own, /*with_biases=*/false);
  std::vector<MatmulSpec> specs;
  for (const MatmulSpec& spec : runtime::LayerProducts(layer, own.kind)) {
    if (spec.rows_alone) {
      specs.push_back(spec);
      continue;
    }
    for (const int64_t size : kernels::ExpertPieceSizes(layer.rows)) {
      specs.push_back(spec);
      (spec.transpose_a ? specs.back().k : specs.back().m) = size;
    }
  }
  return specs;
}

// Asks for the primitives, so that none is created during a step.
absl::Status PrepareExperts(const Binding& b) {
  int64_t scratch = 0;
  for (const MatmulSpec& spec : ExpertMatmulSpecs(b.plan, b.program, b.planned.op)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  return b.RequireWorkspace(scratch);
}

// A product of one expert with its rows; `m` of the spec, or `k` of a weight's gradient, are those
// of a call.
struct ExpertProduct {
  MatmulSpec spec;
  int64_t segment;   // its first one; then every `experts`-th
  int64_t segments;  // of all experts
  int64_t experts;
  const char* a;    // of the first row of all experts
  int64_t a_bytes;  // of a row
  const char* b;    // the weights; of their gradient the first row
  int64_t b_bytes;  // of a row, or 0
  char* c;          // the first row, or the weights' gradient
  int64_t c_bytes;  // of a row, or 0
};

// fn(first, rows) for each piece of an expert's rows.
template <typename Fn>
absl::Status ForPieces(const int32_t* offsets, const ExpertProduct& p, const Fn& fn) {
  for (int64_t segment = p.segment; segment < p.segments; segment += p.experts) {
    const int64_t end = offsets[segment + 1];
    for (int64_t first = offsets[segment]; first < end;) {
      const int64_t left = end - first;
      const int64_t rows = p.spec.rows_alone ? left : kernels::ExpertPieceRows(left);
      MP_RETURN_IF_ERROR(fn(first, rows));
      first += rows;
    }
  }
  return absl::OkStatus();
}

bool HasRows(const int32_t* offsets, const ExpertProduct& p) {
  for (int64_t segment = p.segment; segment < p.segments; segment += p.experts) {
    if (offsets[segment] < offsets[segment + 1]) return true;
  }
  return false;
}

// kExpertLinear and kExpertLinearBackwardInput.
absl::StatusOr<BoundOp> BindExpertLinear(const Binding& b) {
  MP_RETURN_IF_ERROR(PrepareExperts(b));
  const bool forward = b.planned.op.kind == OpKind::kExpertLinear;
  std::vector<ExpertProduct> products;
  const int64_t experts = b.attributes().experts.count, segments = b.InputShape(1)[0] - 1;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const LinearLayer layer = LayerOfExpert(b, expert);
    const int64_t in = layer.in * layer.element, out = layer.out * layer.element;
    for (const LinearLayer::Run& run : layer.runs) {
      const int64_t column = layer.ColumnBytes(run);
      products.push_back({.spec = forward ? layer.Forward(run) : layer.InputGradient(run),
                          .segment = expert,
                          .segments = segments,
                          .experts = experts,
                          .a = b.Input<char>(0) + (forward ? 0 : column),
                          .a_bytes = forward ? in : out,
                          .b = b.ValueAt(layer.weights[run.first]),
                          .b_bytes = 0,
                          .c = b.Output<char>(0) + (forward ? column : 0),
                          .c_bytes = forward ? out : in});
    }
  }
  return [matmuls = &b.matmuls, products = std::move(products), offsets = b.Input<int32_t>(1),
          scratch = b.Workspace()](const StepContext&) -> absl::Status {
    for (const ExpertProduct& p : products) {
      MP_RETURN_IF_ERROR(ForPieces(offsets, p, [&](int64_t first, int64_t rows) {
        MatmulSpec spec = p.spec;
        spec.m = rows;
        return matmuls->Execute(spec, p.a + first * p.a_bytes, p.b, nullptr,
                                p.c + first * p.c_bytes, scratch);
      }));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindExpertLinearBackwardWeight(const Binding& b) {
  MP_RETURN_IF_ERROR(PrepareExperts(b));
  MP_RETURN_IF_ERROR(runtime::CheckOneMode(b.planned.op));
  std::vector<ExpertProduct> products;
  const int64_t experts = b.attributes().experts.count, segments = b.InputShape(2)[0] - 1;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const LinearLayer layer = LayerOfExpert(b, expert);
    for (const LinearLayer::Run& run : layer.runs) {
      products.push_back({.spec = layer.WeightGradient(run, false),
                          .segment = expert,
                          .segments = segments,
                          .experts = experts,
                          .a = b.Input<char>(1) + layer.ColumnBytes(run),
                          .a_bytes = layer.out * layer.element,
                          .b = b.Input<char>(0),
                          .b_bytes = layer.in * layer.element,
                          .c = b.ValueAt(layer.weights[run.first]),
                          .c_bytes = 0});
    }
  }
  return [matmuls = &b.matmuls, products = std::move(products), offsets = b.Input<int32_t>(2),
          scratch = b.Workspace(),
          accumulation = b.OutputAccumulation(0)](const StepContext& context) -> absl::Status {
    for (const ExpertProduct& p : products) {
      bool add = accumulation.At(context);
      if (!add && !HasRows(offsets, p)) {
        std::fill_n(reinterpret_cast<float*>(p.c), p.spec.m * p.spec.n, 0.0F);
      }
      MP_RETURN_IF_ERROR(ForPieces(offsets, p, [&](int64_t first, int64_t rows) {
        MatmulSpec spec = p.spec;
        spec.k = rows;
        spec.accumulate = std::exchange(add, true);
        return matmuls->Execute(spec, p.a + first * p.a_bytes, p.b + first * p.b_bytes, nullptr,
                                p.c, scratch);
      }));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kRouteExperts = {.bind = MP_BY_DTYPE(RouteExpertsOf)};
constinit const CpuOp kRouteExpertsBackward = {.bind = MP_BY_DTYPE(RouteExpertsBackwardOf)};
constinit const CpuOp kDispatchRows = {.bind = MP_BY_DTYPE(DispatchRowsOf)};
constinit const CpuOp kDispatchRowsBackward = {.bind = MP_BY_DTYPE(DispatchRowsBackwardOf)};
constinit const CpuOp kExpertLinear = {.bind = BindExpertLinear, .products = ExpertMatmulSpecs};
constinit const CpuOp kExpertLinearBackwardInput = {.bind = BindExpertLinear,
                                                    .products = ExpertMatmulSpecs};
constinit const CpuOp kExpertLinearBackwardWeight = {.bind = BindExpertLinearBackwardWeight,
                                                     .products = ExpertMatmulSpecs};
constinit const CpuOp kCombineRows = {.bind = MP_BY_DTYPE(CombineRowsOf)};
constinit const CpuOp kCombineRowsBackward = {.bind = MP_BY_DTYPE(CombineRowsBackwardOf)};
constinit const CpuOp kExpertBalance = {.bind = BindExpertBalance};

}  // namespace milepost::ops::cpu
