#include <algorithm>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/compression/compression_binding.h"
#include "engine/ops/compression/compression_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using plan::FactoredMatrix;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::DeviceCallOf;
using runtime::StepContext;
using runtime::WholeGradientOf;

// In fp32, as on the CPU. A factor may begin at any element.
cuda::Product FactorProductOf(OpKind kind, const FactoredMatrix& m) {
  const bool aligned = m.left % 4 == 0 && m.right % 4 == 0;
  return {.spec = FactorProduct(kind, m), .alignment = aligned ? 16 : 4};
}

std::vector<cuda::Product> FactorProducts(const plan::StepPlan& plan, const plan::Program&,
                                          const graph::Op& op) {
  std::vector<cuda::Product> products;
  for (const FactoredMatrix& m : plan::LayOutFactors(plan.groups[op.attributes.group]).matrices) {
    products.push_back(FactorProductOf(op.kind, m));
  }
  return products;
}

struct DeviceFactors : GroupFactors {
  explicit DeviceFactors(const CudaBinding& b)
      : GroupFactors(b),
        kind(b.planned.op.kind),
        products(b.services.products),
        scratch(b.Workspace()),
        position(b.position()),
        stream(b.stream()) {}

  // Of the ops that multiply.
  static absl::StatusOr<DeviceFactors> Of(const CudaBinding& b);
  // Of those that make the right factors orthonormal, or the left ones.
  absl::Status UploadRows(const CudaBinding& b, bool of_right);
  // Of those that copy what travels whole to where it travels, or back.
  absl::Status UploadCopies(const CudaBinding& b, bool back);

  absl::Status Orthonormal() const {
    return cuda::MakeOrthonormal(rows, static_cast<int64_t>(matrices.size()), position, stream);
  }
  absl::Status Multiply(const Matrix& m, const float* a, const float* b, float* out) const {
    return products->Execute(FactorProductOf(kind, m.shape), {.a = a, .b = b, .c = out}, scratch,
                             stream);
  }
  absl::Status CopyWhole() const {
    return cuda::CopyTensors(copies, static_cast<int64_t>(whole.size()), largest, stream);
  }

  OpKind kind;
  cuda::DeviceProducts* products;
  char* scratch;
  const cuda::StepPosition* position;
  cudaStream_t stream;
  const cuda::FactorRows* rows = nullptr;
  const cuda::CopiedTensor* copies = nullptr;
  int64_t largest = 0;  // elements of the largest of these
};

absl::StatusOr<DeviceFactors> DeviceFactors::Of(const CudaBinding& b) {
  MP_RETURN_IF_ERROR(b.RequireWorkspace(b.services.products->WorkspaceBytes()));
  return DeviceFactors(b);
}

absl::Status DeviceFactors::UploadRows(const CudaBinding& b, bool of_right) {
  std::vector<cuda::FactorRows> table;
  for (const Matrix& m : matrices) {
    table.push_back({.rows = of_right ? m.right : m.left,
                     .n = of_right ? m.shape.cols : m.shape.rows,
                     .count = m.shape.rank,
                     .key = PhiloxKey(b.memory.seed, FactorStream(of_right, m.parameter))});
  }
  MP_ASSIGN_OR_RETURN(rows, b.services.tables->Upload(table));
  return absl::OkStatus();
}

absl::Status DeviceFactors::UploadCopies(const CudaBinding& b, bool back) {
  std::vector<cuda::CopiedTensor> table;
  for (const Whole& w : whole) {
    table.push_back({.from = back ? w.left : w.gradient,
                     .to = back ? w.gradient : w.left,
                     .elements = w.elements});
    largest = std::max(largest, w.elements);
  }
  MP_ASSIGN_OR_RETURN(copies, b.services.tables->Upload(table));
  return absl::OkStatus();
}

absl::StatusOr<BoundOp> BindCompressGradients(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(DeviceFactors bound, DeviceFactors::Of(b));
  MP_RETURN_IF_ERROR(bound.UploadRows(b, /*of_right=*/true));
  MP_RETURN_IF_ERROR(bound.UploadCopies(b, /*back=*/false));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (!f.Compresses(c)) return absl::OkStatus();
    if (!f.warm) {  // all are drawn
      MP_RETURN_IF_ERROR(cuda::Fill(f.right, f.right_elements, 0, f.stream));
    }
    MP_RETURN_IF_ERROR(f.Orthonormal());
    for (const GroupFactors::Matrix& m : f.matrices) {
      MP_RETURN_IF_ERROR(cuda::AddScaled(static_cast<float>(f.world), m.gradient, m.elements(),
                                         m.error, f.stream));
      MP_RETURN_IF_ERROR(f.Multiply(m, m.right, m.error, m.left));
    }
    return f.CopyWhole();
  };
}

absl::StatusOr<BoundOp> BindReduceLeftFactors(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall factors, DeviceCallOf(b));
  DeviceCall whole = factors;
  MP_ASSIGN_OR_RETURN(whole.call, WholeGradientOf(b.plan, b.program, b.planned, b.RankOfJob()));
  return [factors, whole, start = b.plan.options.powersgd_start](const StepContext& c) {
    return c.step < start ? whole.Enqueue() : factors.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindProjectGradients(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(DeviceFactors bound, DeviceFactors::Of(b));
  MP_RETURN_IF_ERROR(bound.UploadRows(b, /*of_right=*/false));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (!f.Compresses(c)) return absl::OkStatus();
    MP_RETURN_IF_ERROR(f.Orthonormal());
    for (const GroupFactors::Matrix& m : f.matrices) {
      MP_RETURN_IF_ERROR(f.Multiply(m, m.left, m.error, m.right));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindReduceRightFactors(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, DeviceCallOf(b));
  return [call, start = b.plan.options.powersgd_start](const StepContext& c) {
    return c.step < start ? absl::OkStatus() : call.Enqueue();
  };
}

absl::StatusOr<BoundOp> BindExpandGradients(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(DeviceFactors bound, DeviceFactors::Of(b));
  MP_RETURN_IF_ERROR(bound.UploadCopies(b, /*back=*/true));
  return [f = std::move(bound)](const StepContext& c) -> absl::Status {
    if (!f.Compresses(c)) return absl::OkStatus();
    if (f.world > 1) {
      MP_RETURN_IF_ERROR(cuda::Scale(f.right, f.right_elements, f.mean(), f.stream));
    }
    for (const GroupFactors::Matrix& m : f.matrices) {
      MP_RETURN_IF_ERROR(f.Multiply(m, m.left, m.right, m.gradient));
      MP_RETURN_IF_ERROR(cuda::AddScaled(-1, m.gradient, m.elements(), m.error, f.stream));
    }
    return f.CopyWhole();
  };
}

absl::StatusOr<BoundOp> BindForgetErrors(const CudaBinding& b) {
  return [f = GroupFactors(b), control = b.memory.update,
          stream = b.stream()](const StepContext&) -> absl::Status {
    MP_RETURN_IF_ERROR(cuda::ZeroIfSkipped(control, f.error_elements, f.error, stream));
    if (!f.warm) return absl::OkStatus();
    return cuda::ZeroIfSkipped(control, f.right_elements, f.right, stream);
  };
}

}  // namespace

constinit const CudaOp kCompressGradients = {.bind = BindCompressGradients,
                                             .products = FactorProducts};
constinit const CudaOp kReduceLeftFactors = {.bind = BindReduceLeftFactors};
constinit const CudaOp kProjectGradients = {.bind = BindProjectGradients,
                                            .products = FactorProducts};
constinit const CudaOp kReduceRightFactors = {.bind = BindReduceRightFactors};
constinit const CudaOp kExpandGradients = {.bind = BindExpandGradients, .products = FactorProducts};
constinit const CudaOp kForgetErrors = {.bind = BindForgetErrors};

}  // namespace milepost::ops::gpu
