#include <vector>

#include "common/status_macros.h"
#include "engine/ops/dora/dora_binding.h"
#include "engine/ops/dora/dora_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using kernels::cuda::DeviceProducts;
using kernels::cuda::Product;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

std::vector<Product> DoraDeviceProducts(const plan::StepPlan&, const plan::Program& program,
                                        const graph::Op& op) {
  const DoraProducts products(program.graph, op);
  return {{.spec = products.with_weight}, {.spec = products.with_itself}};
}

// Its workspace holds both products, and behind them their scratch.
template <typename T>
absl::StatusOr<BoundOp> DoraNormsOf(const CudaBinding& b) {
  const DoraProducts products(b.program.graph, b.planned.op);
  DeviceProducts* const device = b.services.products;
  const int64_t before = b.BytesBeforeScratch();
  MP_RETURN_IF_ERROR(b.RequireWorkspace(before + device->WorkspaceBytes()));
  const int64_t gram_at = kernels::DoraProductBytes(products.out, products.rank).gram_at;
  return [device, products, args = DoraNormsArgsOf<T>(b, products), down = b.Input<char>(1),
          to = b.Workspace(), gram_at, scratch = b.Workspace() + before,
          stream = b.stream()](const StepContext&) -> absl::Status {
    MP_RETURN_IF_ERROR(device->Execute({.spec = products.with_weight},
                                       {.a = args.weight, .b = down, .c = to}, scratch, stream));
    MP_RETURN_IF_ERROR(device->Execute({.spec = products.with_itself},
                                       {.a = down, .b = down, .c = to + gram_at}, scratch, stream));
    return cuda::DoraNorms<T>(args, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> DoraOf(const CudaBinding& b) {
  const kernels::DoraForwardArgs<T> args = DoraForwardArgsOf<T>(b);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::DoraForwardWorkspaceBytes(args.width)));
  return [args, workspace = b.Workspace(), stream = b.stream()](const StepContext&) {
    return cuda::DoraForward<T>(args, workspace, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> DoraBackwardOf(const CudaBinding& b) {
  const DoraBackwardBinding<T> binding(b);
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(cuda::DoraBackwardWorkspaceBytes(binding.args.rows, binding.args.width)));
  return [binding, workspace = b.Workspace(), stream = b.stream()](const StepContext& context) {
    return cuda::DoraBackward<T>(binding.At(context), workspace, stream);
  };
}

}  // namespace

constinit const CudaOp kDoraNorms = {.bind = MP_BY_DTYPE(DoraNormsOf),
                                     .products = DoraDeviceProducts};
constinit const CudaOp kDora = {.bind = MP_BY_DTYPE(DoraOf)};
constinit const CudaOp kDoraBackward = {.bind = MP_BY_DTYPE(DoraBackwardOf)};

}  // namespace milepost::ops::gpu
