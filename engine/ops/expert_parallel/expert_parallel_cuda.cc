#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/ops/expert_parallel/expert_parallel_cuda_kernel.h"
#include "engine/runtime/executor/row_transfers.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::DeviceCall;
using runtime::RowsByExpert;
using runtime::StepContext;

// With a communicator and other ranks: the pass plans these ops for no rank alone.
absl::StatusOr<DeviceCall> CallAmongRanks(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(DeviceCall call, runtime::DeviceCallOf(b));
  if (call.call.has_value()) return call;
  return absl::InternalError(
      absl::StrCat(graph::Name(b.planned.op.kind), " is planned on a rank alone"));
}

absl::StatusOr<BoundOp> BindExpertSegments(const CudaBinding& b) {
  const graph::ExpertsAttributes& experts = b.attributes().experts;
  MP_RETURN_IF_ERROR(b.RequireWorkspace(2 * kernels::ExpertCountsBytes(experts.count)));
  MP_ASSIGN_OR_RETURN(const DeviceCall call, CallAmongRanks(b));
  const int64_t own = call.call->among.IndexOf(b.RankOfJob());
  const int64_t own_experts = experts.count / experts.ranks;
  auto* const sent = reinterpret_cast<int32_t*>(b.Workspace());
  const cuda::ExpertCounts counts = {.experts = experts.count,
                                     .first = own * own_experts,
                                     .end = (own + 1) * own_experts,
                                     .sent = sent,
                                     .received = sent + experts.count};
  return [counts, call, offsets = b.Input<int32_t>(0), segments = b.Output<int32_t>(0),
          stream = b.stream()](const StepContext&) -> absl::Status {
    MP_RETURN_IF_ERROR(cuda::CountRowsForExperts(counts, offsets, stream));
    MP_RETURN_IF_ERROR(call.Enqueue());
    return cuda::SegmentsOfCounts(counts, segments, stream);
  };
}

// kRowsToExperts and kRowsFromExperts. How much goes where the host reads from its copies of both
// offsets and segments.
absl::StatusOr<BoundOp> BindRowsExchange(const CudaBinding& b) {
  MP_ASSIGN_OR_RETURN(const DeviceCall call, CallAmongRanks(b));
  const bool to_experts = b.planned.op.kind == OpKind::kRowsToExperts;
  runtime::RowTransfers moves;
  moves.among = call.call->among;
  moves.own = moves.among.IndexOf(b.RankOfJob());
  const int32_t* const offsets = b.OnHost(1);
  const int32_t* const segments = b.OnHost(2);
  const RowsByExpert<const char> from = {b.Input<char>(0), to_experts ? offsets : segments,
                                         b.InputShape(0)[0]};
  const RowsByExpert<char> to = {b.Output<char>(0), to_experts ? segments : offsets,
                                 b.OutputShape(0)[0]};
  return [shape = ExpertRowsOf(b.program.graph, b.planned.op), moves = std::move(moves), from, to,
          communicator = call.communicator,
          stream = b.stream()](const StepContext&) mutable -> absl::Status {
    const absl::Status status = moves.Set(shape, from, to);
    if (status.ok()) return communicator->EnqueueRows(moves, stream);
    communicator->Abort(status.message());  // or the others wait for this rank
    return status;
  };
}

}  // namespace

constinit const CudaOp kExpertSegments = {.bind = BindExpertSegments};
constinit const CudaOp kRowsToExperts = {.bind = BindRowsExchange};
constinit const CudaOp kRowsFromExperts = {.bind = BindRowsExchange};

}  // namespace milepost::ops::gpu
