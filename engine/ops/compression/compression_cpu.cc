#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/compression/compression_cpu_kernel.h"
#include "engine/plan/compression.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/randomness.h"

namespace milepost::ops::cpu {
namespace {

using graph::OpKind;
using kernels::MatmulSpec;
using plan::FactoredMatrix;
using runtime::BindCall;
using runtime::Binding;
using runtime::BoundCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CallOf;
using runtime::CollectiveOf;
using runtime::GroupOf;
using runtime::RandomPurpose;
using runtime::StepContext;

// The one product of a matrix and its factors that each of the three ops makes.
MatmulSpec ProductOf(OpKind kind, const FactoredMatrix& m) {
  if (kind == OpKind::kCompressGradients) {  // right M^T
    return {.m = m.rank, .n = m.rows, .k = m.cols, .transpose_b = true};
  }
  if (kind == OpKind::kProjectGradients) return {.m = m.rank, .n = m.cols, .k = m.rows};  // left M
  return {.m = m.rows, .n = m.cols, .k = m.rank, .transpose_a = true};  // left^T right
}

std::vector<MatmulSpec> FactorProducts(const plan::StepPlan& plan, const plan::Program&,
                                       const graph::Op& op) {
  std::vector<MatmulSpec> specs;
  for (const FactoredMatrix& m : plan::LayOutFactors(plan.groups[op.attributes.group]).matrices) {
    specs.push_back(ProductOf(op.kind, m));
  }
  return specs;
}

// A group's matrices where they lie, bound once.
struct BoundFactors {
  struct Matrix {
    FactoredMatrix shape;
    MatmulSpec product;
    float* gradient;
    float* error;
    float* left;
    float* right;
    uint32_t parameter;
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
  kernels::MatmulCache* matmuls = nullptr;
  char* workspace = nullptr;

  // `product`: where the op makes one of each matrix.
  static absl::StatusOr<BoundFactors> Of(const Binding& b, bool product);
  // Of the right factors or the left ones, each matrix's by themselves.
  void Orthonormal(bool of_right, const StepContext& c) const;
  absl::Status Multiply(const Matrix& m, const float* a, const float* b, float* out) const {
    return matmuls->Execute(m.product, a, b, nullptr, out, workspace);
  }
};

absl::StatusOr<BoundFactors> BoundFactors::Of(const Binding& b, bool product) {
  const plan::FlatGroup& group = GroupOf(b);
  const plan::FactorLayout layout = plan::LayOutFactors(group);
  float* gradient = BufferOf<float>(b, group.gradient_buffer);
  float* left = BufferOf<float>(b, group.left_buffer);
  BoundFactors bound = {.right = BufferOf<float>(b, group.right_buffer),
                        .right_elements = layout.right_elements,
                        .error = BufferOf<float>(b, group.error_buffer),
                        .error_elements = group.padded_elements,
                        .warm = b.plan.options.powersgd_warm,
                        .start = b.plan.options.powersgd_start,
                        .world = b.plan.options.world,
                        .matmuls = &b.matmuls,
                        .workspace = b.Workspace()};
  int64_t scratch = 0;
  for (const FactoredMatrix& m : layout.matrices) {
    const plan::GroupParameter& p = group.parameters[m.parameter];
    const MatmulSpec spec = ProductOf(b.planned.op.kind, m);
    if (product) {
      MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
      scratch = std::max(scratch, static_cast<int64_t>(bytes));
    }
    bound.matrices.push_back({m, spec, gradient + p.begin, bound.error + p.begin, left + m.left,
                              bound.right + m.right, static_cast<uint32_t>(p.parameter)});
  }
  MP_RETURN_IF_ERROR(b.RequireWorkspace(scratch));
  for (const plan::FactorLayout::Whole& w : layout.whole) {
    const plan::GroupParameter& p = group.parameters[w.parameter];
    bound.whole.push_back({gradient + p.begin, left + w.left, p.elements});
  }
  return bound;
}

void BoundFactors::Orthonormal(bool of_right, const StepContext& c) const {
  const auto purpose = of_right ? RandomPurpose::kRightFactor : RandomPurpose::kLeftFactor;
  kernels::ParallelTasks(static_cast<int64_t>(matrices.size()), [&](int64_t task, int) {
    const Matrix& m = matrices[static_cast<size_t>(task)];
    const int64_t n = of_right ? m.shape.cols : m.shape.rows;
    kernels::MakeOrthonormal(
        m.shape.rank, n, of_right ? m.right : m.left, [&](int64_t row, float* at) {
          kernels::NormalInit(at, n, 0.0F, 1.0F, c.seed, RandomStream(purpose, m.parameter),
                              static_cast<uint64_t>((c.step * m.shape.rank + row) * n));
        });
  });
}

absl::StatusOr<BoundOp> BindCompressGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(BoundFactors bound, BoundFactors::Of(b, /*product=*/true));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (c.step < f.start) return absl::OkStatus();
    if (!f.warm) std::fill_n(f.right, f.right_elements, 0.0F);  // all are drawn
    f.Orthonormal(/*of_right=*/true, c);
    for (const BoundFactors::Matrix& m : f.matrices) {
      kernels::AddScaled(static_cast<float>(f.world), m.gradient, m.elements(), m.error);
      MP_RETURN_IF_ERROR(f.Multiply(m, m.right, m.error, m.left));
    }
    for (const BoundFactors::Whole& w : f.whole) std::copy_n(w.gradient, w.elements, w.left);
    return absl::OkStatus();
  };
}

// Before the first step that compresses: the gradient, as kReduceGradients does it.
absl::StatusOr<BoundOp> BindReduceLeftFactors(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall factors, CallOf(b));
  plan::PlannedOp reduction = b.planned;
  reduction.op.kind = OpKind::kReduceGradients;
  BoundCall whole = factors;
  MP_ASSIGN_OR_RETURN(whole.call, CollectiveOf(b.plan, b.program, reduction, b.RankOfJob()));
  if (whole.call.has_value()) whole.data = b.arena + whole.call->offset;
  return [factors, whole, start = b.plan.options.powersgd_start](const StepContext& c) {
    return c.step < start ? whole.Run(c) : factors.Run(c);
  };
}

absl::StatusOr<BoundOp> BindProjectGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(BoundFactors bound, BoundFactors::Of(b, /*product=*/true));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (c.step < f.start) return absl::OkStatus();
    f.Orthonormal(/*of_right=*/false, c);
    for (const BoundFactors::Matrix& m : f.matrices) {
      MP_RETURN_IF_ERROR(f.Multiply(m, m.left, m.error, m.right));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindReduceRightFactors(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, CallOf(b));
  return [call, start = b.plan.options.powersgd_start](const StepContext& c) {
    return c.step < start ? absl::OkStatus() : call.Run(c);
  };
}

absl::StatusOr<BoundOp> BindExpandGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(BoundFactors bound, BoundFactors::Of(b, /*product=*/true));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (c.step < f.start) return absl::OkStatus();
    if (f.world > 1) kernels::Scale(f.right, f.right_elements, 1.0F / static_cast<float>(f.world));
    for (const BoundFactors::Matrix& m : f.matrices) {
      MP_RETURN_IF_ERROR(f.Multiply(m, m.left, m.right, m.gradient));
      kernels::AddScaled(-1.0F, m.gradient, m.elements(), m.error);
    }
    for (const BoundFactors::Whole& w : f.whole) std::copy_n(w.left, w.elements, w.gradient);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindForgetErrors(const Binding& b) {
  MP_ASSIGN_OR_RETURN(BoundFactors bound, BoundFactors::Of(b, /*product=*/false));
  return [f = std::move(bound)](const StepContext& c) {
    if (!c.skip_update) return absl::OkStatus();
    kernels::Fill(f.error, f.error_elements, 0.0F);
    if (f.warm) kernels::Fill(f.right, f.right_elements, 0.0F);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kCompressGradients = {.bind = BindCompressGradients,
                                            .products = FactorProducts};
constinit const CpuOp kReduceLeftFactors = {.bind = BindReduceLeftFactors};
constinit const CpuOp kProjectGradients = {.bind = BindProjectGradients,
                                           .products = FactorProducts};
constinit const CpuOp kReduceRightFactors = {.bind = BindReduceRightFactors};
constinit const CpuOp kExpandGradients = {.bind = BindExpandGradients, .products = FactorProducts};
constinit const CpuOp kForgetErrors = {.bind = BindForgetErrors};

}  // namespace milepost::ops::cpu
