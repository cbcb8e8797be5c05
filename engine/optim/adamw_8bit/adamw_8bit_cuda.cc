#include "engine/optim/adamw/adamw_cuda_kernel.h"
#include "engine/optim/adamw_8bit/adamw_8bit_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::StepContext;

template <typename T, typename P, typename G>
struct Quantized {
  static absl::StatusOr<BoundOp> Run(const CudaBinding& b) {
    const plan::FlatGroup& group = GroupOf(b);
    using Update = cuda::QuantizedUpdate<T, P, G>;
    MP_ASSIGN_OR_RETURN(Update update, runtime::StartUpdate<Update>(b, runtime::ChunksOf(b)));
    MP_RETURN_IF_ERROR(runtime::SetParameters<T>(b, update));
    update.state = {
        BufferOf<uint8_t>(b, group.state_buffers[0]), BufferOf<float>(b, group.scale_buffers[0]),
        BufferOf<uint8_t>(b, group.state_buffers[1]), BufferOf<float>(b, group.scale_buffers[1])};
    update.g = runtime::ShardGradient<G>(b);
    return [update, stream = b.stream()](const StepContext&) {
      return cuda::AdamW8Bit(update, stream);
    };
  }
};

template <typename T>
absl::StatusOr<BoundOp> AdamW8BitOf(const CudaBinding& b) {
  return runtime::BindByMasterAndGradient<Quantized, T>(b);
}

cuda::SegmentFactors AdamW8BitFactors(const plan::FlatGroup&, const runtime::Segment& segment,
                                      const StepContext& c) {
  return cuda::SegmentFactorsOf(kernels::AdamWParams{.learning_rate = segment.LearningRate(c),
                                                     .beta1 = c.beta1,
                                                     .beta2 = c.beta2,
                                                     .epsilon = c.epsilon,
                                                     .weight_decay = segment.WeightDecay(c),
                                                     .step = c.update});
}

}  // namespace

constinit const CudaOptimizer kAdamW8Bit = {.bind = MP_BY_DTYPE(AdamW8BitOf),
                                            .factors = AdamW8BitFactors};

}  // namespace milepost::optim::gpu
