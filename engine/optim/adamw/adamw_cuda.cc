#include "engine/optim/adamw/adamw_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::Segment;
using runtime::StepContext;

struct LaunchAdamW {
  template <typename Update>
  absl::Status operator()(const Update& update, cudaStream_t stream) const {
    return cuda::AdamW(update, stream);
  }
};

cuda::SegmentFactors AdamWFactors(const plan::FlatGroup&, const Segment& segment,
                                  const StepContext& c) {
  return cuda::SegmentFactorsOf(kernels::AdamWParams{.learning_rate = segment.LearningRate(c),
                                                     .beta1 = c.beta1,
                                                     .beta2 = c.beta2,
                                                     .epsilon = c.epsilon,
                                                     .weight_decay = segment.WeightDecay(c),
                                                     .step = c.update});
}

}  // namespace

constinit const CudaOptimizer kAdamW = {.bind = runtime::FlatOptimizer<LaunchAdamW>::Bind,
                                        .factors = AdamWFactors};

}  // namespace milepost::optim::gpu
