#include "common/status_macros.h"
#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/context_parallel/context_parallel_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using kernels::HeadsExchangeShape;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::StepContext;

// One rank's part of an exchange: where the other ranks' pieces lie packed, as the workspace has
// them (context_parallel_contract.h).
struct HeadsExchange {
  HeadsExchangeShape shape;
  DeviceCall call;
  int64_t own = 0;  // index in the set
  char* of_tokens = nullptr;
  char* of_heads = nullptr;  // null: they lie in rows by heads
};

absl::StatusOr<HeadsExchange> HeadsExchangeFor(const CudaBinding& b) {
  HeadsExchange e = {.shape = HeadsExchangeOf(b.program.graph, b.planned.op)};
  MP_RETURN_IF_ERROR(b.RequireWorkspace(HeadsExchangeWorkspaceBytes(e.shape)));
  MP_ASSIGN_OR_RETURN(e.call, runtime::DeviceCallOf(b));
  if (!e.call.call.has_value()) return e;  // of one rank
  e.own = e.call.call->among.IndexOf(b.RankOfJob());
  e.of_tokens = b.Workspace();
  if (!e.shape.WholeByHeads()) e.of_heads = b.Workspace() + e.shape.PackedBytes();
  return e;
}

absl::StatusOr<BoundOp> BindTokensToHeads(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const HeadsExchange e, HeadsExchangeFor(b));
  return [e, x = b.Input<char>(0), y = b.Output<char>(0),
          stream = b.stream()](const StepContext&) -> absl::Status {
    MP_RETURN_IF_ERROR(cuda::TakeHeads(e.shape, x, {e.of_tokens, y, e.own}, stream));
    MP_RETURN_IF_ERROR(e.call.Enqueue());
    if (e.of_heads == nullptr) return absl::OkStatus();
    return cuda::UnpackPieces(e.shape, e.of_heads, e.own, y, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> HeadsToTokensOf(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const HeadsExchange e, HeadsExchangeFor(b));
  return [e, x = b.Input<char>(0), y = b.Output<T>(0),
          stream = b.stream()](const StepContext&) -> absl::Status {
    if (e.of_heads != nullptr) {
      MP_RETURN_IF_ERROR(cuda::PackPieces(e.shape, x, e.own, e.of_heads, stream));
    }
    MP_RETURN_IF_ERROR(e.call.Enqueue());
    const cuda::HeadPieces<const char> pieces = {e.of_tokens, x, e.own};
    MP_RETURN_IF_ERROR(cuda::PutHeads(e.shape, pieces, reinterpret_cast<char*>(y), stream));
    return cuda::SumSharedHeads<T>(e.shape, pieces, y, stream);
  };
}

}  // namespace

constinit const CudaOp kTokensToHeads = {.bind = BindTokensToHeads};
constinit const CudaOp kHeadsToTokens = {.bind = MP_BY_DTYPE(HeadsToTokensOf)};

}  // namespace milepost::ops::gpu
