// The optimizers on flat shards. What a step changes, and whether it updates at all, the kernels
// read from device memory (step_control.h, UpdateControl).
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/optimizer/adamw_8bit_cuda_kernel.h"
#include "engine/ops/optimizer/lamb_muon_cuda_kernel.h"
#include "engine/ops/optimizer/optimizer_chunks_cuda.h"
#include "engine/ops/optimizer/optimizer_cuda_kernel.h"
#include "engine/runtime/cuda_backend/cuda_op.h"
#include "engine/runtime/group_ops.h"
#include "engine/runtime/offload.h"
#include "engine/runtime/state_disk.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using plan::Optimizer;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::NormsOf;
using runtime::ShardBegin;
using runtime::ShardGradient;
using runtime::ShardMaster;
using runtime::ShardParameters;
using runtime::StepContext;

// In fp32, and where the parameter is another, that too.
template <typename T, typename Update>
absl::Status SetMaster(const CudaBinding& b, Update& update) {
  const plan::FlatGroup& group = GroupOf(b);
  update.p = ShardMaster(b);
  if (group.master_buffer == plan::kNoBuffer) {
    if constexpr (std::is_same_v<T, float>) return absl::OkStatus();
    return absl::InternalError("a 16-bit group has no master buffer");
  }
  update.copy = ShardParameters<T>(b);
  return absl::OkStatus();
}

// At fp32, and where masters are in bf16 (update.p's type), the parameter is its own master.
template <typename T, typename Update>
absl::Status SetParameters(const CudaBinding& b, Update& update) {
  if constexpr (std::is_same_v<decltype(update.p), bf16*>) {
    update.p = ShardParameters<bf16>(b);
    return absl::OkStatus();
  } else {
    return SetMaster<T>(b, update);
  }
}

template <typename T, typename S, typename P, typename G>
absl::StatusOr<BoundOp> FlatOptimizerOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  using Update = cuda::FlatUpdate<T, S, P, G>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.m = BufferOf<S>(b, group.m_buffer);
  update.v = BufferOf<S>(b, group.v_buffer);
  update.g = ShardGradient<G>(b);
  switch (group.optimizer) {
    case Optimizer::kAdamW:
      return
          [update, stream = b.stream()](const StepContext&) { return cuda::AdamW(update, stream); };
    case Optimizer::kSgd:
      return
          [update, stream = b.stream()](const StepContext&) { return cuda::Sgd(update, stream); };
    case Optimizer::kLion:
      return
          [update, stream = b.stream()](const StepContext&) { return cuda::Lion(update, stream); };
    default:
      return absl::InternalError(
          absl::StrCat(plan::Name(group.optimizer), " has no states in ", Name(group.state_dtype)));
  }
}

template <typename T>
absl::StatusOr<BoundOp> LambOf(const CudaBinding& b) {
  using Update = cuda::FlatUpdate<T>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.m = BufferOf<float>(b, GroupOf(b).m_buffer);
  update.v = BufferOf<float>(b, GroupOf(b).v_buffer);
  return [update, norms = NormsOf(b), stream = b.stream()](const StepContext&) {
    return cuda::LambApply(update, norms, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> MuonOf(const CudaBinding& b) {
  using Update = cuda::FlatUpdate<T>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.g = BufferOf<float>(b, GroupOf(b).update_buffer) + ShardBegin(b);
  return
      [update, stream = b.stream()](const StepContext&) { return cuda::MuonApply(update, stream); };
}

template <typename T, typename P, typename G>
absl::StatusOr<BoundOp> AdamW8BitOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  using Update = cuda::QuantizedUpdate<T, P, G>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.state = {BufferOf<uint8_t>(b, group.m_buffer), BufferOf<float>(b, group.m_scale_buffer),
                  BufferOf<uint8_t>(b, group.v_buffer), BufferOf<float>(b, group.v_scale_buffer)};
  update.g = ShardGradient<G>(b);
  return
      [update, stream = b.stream()](const StepContext&) { return cuda::AdamW8Bit(update, stream); };
}

// P: the masters' type, G: the gradient's.
template <typename T, typename P, typename G>
absl::StatusOr<BoundOp> ElementwiseOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  if (group.optimizer == Optimizer::kAdamW8Bit) return AdamW8BitOf<T, P, G>(b);
  return group.state_dtype == DType::kBf16 ? FlatOptimizerOf<T, bf16, P, G>(b)
                                           : FlatOptimizerOf<T, float, P, G>(b);
}

template <typename T>
absl::StatusOr<BoundOp> OptimizerOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const bool masters = group.master_dtype == DType::kF32;
  const bool rounds = b.plan.options.RoundsGradients();
  if (group.optimizer == Optimizer::kLamb) return LambOf<T>(b);
  if (group.optimizer == Optimizer::kMuon) return MuonOf<T>(b);
  if (masters && !rounds) return ElementwiseOf<T, float, float>(b);
  if constexpr (std::is_same_v<T, bf16>) {
    if (masters) return ElementwiseOf<T, float, bf16>(b);
    return rounds ? ElementwiseOf<T, bf16, bf16>(b) : ElementwiseOf<T, bf16, float>(b);
  }
  return absl::InternalError("masters or gradients in bf16, but parameters in another type");
}

// Offloaded: on the host, of what lies there.
absl::StatusOr<BoundOp> BindOptimizer(const CudaBinding& b) {
  if (b.planned.stream == plan::Stream::kHost) {
    return runtime::AfterItsState(b, runtime::BindDecidingHostOptimizer(b, b.memory.host_threads));
  }
  return MP_BIND_BY_DTYPE(OptimizerOf, b);
}

}  // namespace

constinit const CudaOp kOptimizer = {.bind = BindOptimizer};

}  // namespace milepost::ops::gpu
