#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/compression/compression_binding.h"
#include "engine/ops/compression/compression_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using kernels::MatmulSpec;
using plan::FactoredMatrix;
using runtime::Binding;
using runtime::BoundCall;
using runtime::BoundOp;
using runtime::CallOf;
using runtime::StepContext;
using runtime::WholeGradientOf;

std::vector<MatmulSpec> FactorProducts(const plan::StepPlan& plan, const plan::Program&,
                                       const graph::Op& op) {
  std::vector<MatmulSpec> specs;
  for (const FactoredMatrix& m : plan::LayOutFactors(plan.groups[op.attributes.group]).matrices) {
    specs.push_back(FactorProduct(op.kind, m));
  }
  return specs;
}

struct BoundFactors : GroupFactors {
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
  BoundFactors bound = {GroupFactors(b), &b.matmuls, b.Workspace()};
  if (!product) return bound;
  int64_t scratch = 0;
  for (const Matrix& m : bound.matrices) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(m.product));
    scratch = std::max(scratch, static_cast<int64_t>(bytes));
  }
  MP_RETURN_IF_ERROR(b.RequireWorkspace(scratch));
  return bound;
}

void BoundFactors::Orthonormal(bool of_right, const StepContext& c) const {
  kernels::ParallelTasks(static_cast<int64_t>(matrices.size()), [&](int64_t task, int) {
    const Matrix& m = matrices[static_cast<size_t>(task)];
    const int64_t n = of_right ? m.shape.cols : m.shape.rows;
    kernels::MakeOrthonormal(
        m.shape.rank, n, of_right ? m.right : m.left, [&](int64_t row, float* at) {
          kernels::NormalInit(at, n, 0.0F, 1.0F, c.seed, FactorStream(of_right, m.parameter),
                              static_cast<uint64_t>((c.step * m.shape.rank + row) * n));
        });
  });
}

absl::StatusOr<BoundOp> BindCompressGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(BoundFactors bound, BoundFactors::Of(b, /*product=*/true));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (!f.Compresses(c)) return absl::OkStatus();
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

absl::StatusOr<BoundOp> BindReduceLeftFactors(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall factors, CallOf(b));
  BoundCall whole = factors;
  MP_ASSIGN_OR_RETURN(whole.call, WholeGradientOf(b.plan, b.program, b.planned, b.RankOfJob()));
  if (whole.call.has_value()) whole.data = b.arena + whole.call->offset;
  return [factors, whole, start = b.plan.options.powersgd_start](const StepContext& c) {
    return c.step < start ? whole.Run(c) : factors.Run(c);
  };
}

absl::StatusOr<BoundOp> BindProjectGradients(const Binding& b) {
  MP_ASSIGN_OR_RETURN(BoundFactors bound, BoundFactors::Of(b, /*product=*/true));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (!f.Compresses(c)) return absl::OkStatus();
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
    if (!f.Compresses(c)) return absl::OkStatus();
    if (f.world > 1) kernels::Scale(f.right, f.right_elements, f.mean());
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
