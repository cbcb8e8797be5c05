// Internal to the CUDA backend and to the rooms of optimizers: what a GPU does for each optimizer,
// and what the updates of flat shards share.
//
//   constinit const CudaOptimizer kLion = {.bind = BindLion, .factors = LionFactors};
//
// An optimizer without one does not link.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_OPTIMIZER_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_OPTIMIZER_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/optim/optimizer_definition.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::runtime {

// The shard's segments, cut into chunks: chunk.segment is one's place among them.
struct Chunks {
  std::vector<Segment> segments;
  std::vector<kernels::cuda::FlatChunk> chunks;
};
inline Chunks ChunksOf(const OpBinding& b) {
  Chunks out = {.segments = SegmentsOf(GroupOf(b), ShardBegin(b), GroupOf(b).shard_elements)};
  std::vector<kernels::cuda::FlatRange> ranges;
  for (const Segment& s : out.segments) ranges.push_back({s.begin, s.end});
  out.chunks = kernels::cuda::MakeChunks(ranges);
  return out;
}

// Everything but where the parameters, their gradients and states lie. Update: FlatUpdate or
// QuantizedUpdate.
template <typename Update>
absl::StatusOr<Update> StartUpdate(const CudaBinding& b, const Chunks& chunks) {
  Update update;
  MP_ASSIGN_OR_RETURN(update.chunks, b.services.tables->Upload(chunks.chunks));
  update.chunk_count = static_cast<int64_t>(chunks.chunks.size());
  const int64_t offset = ControlLayoutOf(b.plan, b.rank).factors[b.attributes().group];
  update.factors =
      reinterpret_cast<const kernels::cuda::SegmentFactors*>(b.memory.control + offset);
  update.step = &b.control()->factors;
  update.control = b.memory.update;
  return update;
}

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

// The parameter's type T, its masters' P and its gradient's G, as the plan has them:
// Bind<T, P, G>::Run(b) for those.
template <template <typename, typename, typename> typename Bind, typename T>
absl::StatusOr<BoundOp> BindByMasterAndGradient(const CudaBinding& b) {
  const bool masters = GroupOf(b).master_dtype == DType::kF32;
  const bool rounds = b.plan.options.RoundsGradients();
  if (masters && !rounds) return Bind<T, float, float>::Run(b);
  if constexpr (std::is_same_v<T, bf16>) {
    if (masters) return Bind<T, float, bf16>::Run(b);
    return rounds ? Bind<T, bf16, bf16>::Run(b) : Bind<T, bf16, float>::Run(b);
  }
  return absl::InternalError("masters or gradients in bf16, but parameters in another type");
}

// Of an optimizer that changes each element by itself: Launch()(update, stream).
template <typename Launch>
struct FlatOptimizer {
  template <typename T, typename P, typename G>
  struct Typed {
    static absl::StatusOr<BoundOp> Run(const CudaBinding& b) {
      return GroupOf(b).state_dtype == DType::kBf16 ? WithStates<bf16>(b) : WithStates<float>(b);
    }
    template <typename S>
    static absl::StatusOr<BoundOp> WithStates(const CudaBinding& b) {
      using Update = kernels::cuda::FlatUpdate<T, S, P, G>;
      MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
      MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
      for (int i = 0; i < kernels::kMaxStates; ++i) {
        update.states[i] = BufferOf<S>(b, GroupOf(b).state_buffers[i]);
      }
      update.g = ShardGradient<G>(b);
      return [update, stream = b.stream()](const StepContext&) { return Launch()(update, stream); };
    }
  };
  template <typename T>
  static absl::StatusOr<BoundOp> Of(const CudaBinding& b) {
    return BindByMasterAndGradient<Typed, T>(b);
  }
  static absl::StatusOr<BoundOp> Bind(const CudaBinding& b) { return MP_BIND_BY_DTYPE(Of, b); }
};

// What a GPU does for one optimizer: its room defines it (engine/optim/<room>/<room>_cuda.cc).
struct CudaOptimizer {
  // Of kOptimizer on the device.
  absl::StatusOr<BoundOp> (*bind)(const CudaBinding& b) = nullptr;
  // What a step's update is for a segment, but for its place and its random keys.
  kernels::cuda::SegmentFactors (*factors)(const plan::FlatGroup& group, const Segment& segment,
                                           const StepContext& step) = nullptr;
};
const CudaOptimizer& CudaOptimizerOf(plan::Optimizer optimizer);

}  // namespace milepost::runtime

namespace milepost::optim::gpu {

using runtime::CudaOptimizer;

#define MP_OPTIMIZER(name, type) extern const CudaOptimizer k##name;
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER

}  // namespace milepost::optim::gpu

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_OPTIMIZER_H_
