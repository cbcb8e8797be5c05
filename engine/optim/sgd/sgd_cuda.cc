#include "engine/optim/sgd/sgd_cuda_kernel.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::Segment;
using runtime::StepContext;

struct LaunchSgd {
  template <typename Update>
  absl::Status operator()(const Update& update, cudaStream_t stream) const {
    return cuda::Sgd(update, stream);
  }
};

cuda::SegmentFactors SgdFactors(const plan::FlatGroup&, const Segment& segment,
                                const StepContext& c) {
  return cuda::SegmentFactorsOf(kernels::SgdParams{.learning_rate = segment.LearningRate(c),
                                                   .weight_decay = segment.WeightDecay(c)});
}

}  // namespace

constinit const CudaOptimizer kSgd = {.bind = runtime::FlatOptimizer<LaunchSgd>::Bind,
                                      .factors = SgdFactors};

}  // namespace milepost::optim::gpu
