#include "engine/optim/lion/lion_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::Segment;
using runtime::StepContext;

struct LaunchLion {
  template <typename Update>
  absl::Status operator()(const Update& update, cudaStream_t stream) const {
    return cuda::Lion(update, stream);
  }
};

cuda::SegmentFactors LionFactors(const plan::FlatGroup&, const Segment& segment,
                                 const StepContext& c) {
  return cuda::SegmentFactorsOf(kernels::LionParams{.learning_rate = segment.LearningRate(c),
                                                    .weight_decay = segment.WeightDecay(c)});
}

}  // namespace

constinit const CudaOptimizer kLion = {.bind = runtime::FlatOptimizer<LaunchLion>::Bind,
                                       .factors = LionFactors};

}  // namespace milepost::optim::gpu
