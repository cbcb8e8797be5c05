#include "engine/optim/adan/adan_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::Segment;
using runtime::StepContext;

struct LaunchAdan {
  template <typename Update>
  absl::Status operator()(const Update& update, cudaStream_t stream) const {
    return cuda::Adan(update, stream);
  }
};

cuda::SegmentFactors AdanFactors(const plan::FlatGroup&, const Segment& segment,
                                 const StepContext& c) {
  return cuda::SegmentFactorsOf(kernels::AdanParams{.learning_rate = segment.LearningRate(c),
                                                    .beta1 = c.beta1,
                                                    .weight_decay = segment.WeightDecay(c),
                                                    .step = c.update});
}

}  // namespace

constinit const CudaOptimizer kAdan = {.bind = runtime::FlatOptimizer<LaunchAdan>::Bind,
                                       .factors = AdanFactors};

}  // namespace milepost::optim::gpu
