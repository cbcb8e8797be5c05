#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/parameter_average/parameter_average_binding.h"
#include "engine/ops/parameter_average/parameter_average_cuda_kernel.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::ShardMaster;
using runtime::ShardParameters;
using runtime::StepContext;

// T: of the master.
template <typename T>
BoundOp AverageOf(const CudaBinding& b, const T* master) {
  return [master, averages = BufferOf<float>(b, GroupOf(b).average_buffer),
          count = GroupOf(b).shard_elements, weight = &b.control()->factors.average_weight,
          update = b.memory.update, stream = b.stream()](const StepContext&) {
    return cuda::AddToAverages(master, count, weight, update, averages, stream);
  };
}

absl::StatusOr<BoundOp> BindAverageParameters(const CudaBinding& b) {
  if (GroupOf(b).master_dtype == DType::kBf16) return AverageOf(b, ShardParameters<bf16>(b));
  return AverageOf(b, ShardMaster(b));
}

// Both are kept in fp32 beside the parameters, which are made of either.
template <typename T>
BoundOp RoundedOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  return [master = BufferOf<float>(b, group.master_buffer),
          averages = BufferOf<float>(b, group.average_buffer), parameters = ShardParameters<T>(b),
          count = group.shard_elements, stream = b.stream()](const StepContext& c) {
    return cuda::Cast(c.take_averages ? averages : master, count, parameters, stream);
  };
}

BoundOp SwappedOf(const CudaBinding& b) {
  return [parameters = ShardParameters<float>(b),
          averages = BufferOf<float>(b, GroupOf(b).average_buffer),
          count = GroupOf(b).shard_elements, stream = b.stream()](const StepContext&) {
    return cuda::SwapAverages(count, parameters, averages, stream);
  };
}

BoundOp ExchangedOf(const CudaBinding& b) {
  return [parameters = ShardParameters<bf16>(b),
          averages = BufferOf<float>(b, GroupOf(b).average_buffer),
          count = GroupOf(b).shard_elements, stream = b.stream()](const StepContext& c) {
    return c.take_averages ? cuda::TakeAverages(count, parameters, averages, stream)
                           : cuda::ReturnParameters(count, parameters, averages, stream);
  };
}

absl::StatusOr<BoundOp> BindExchangeAverages(const CudaBinding& b) {
  return ExchangeOf<CudaBinding>(b, {ExchangedOf, SwappedOf, RoundedOf<bf16>, RoundedOf<f16>});
}

}  // namespace

constinit const CudaOp kAverageParameters = {.bind = BindAverageParameters};
constinit const CudaOp kExchangeAverages = {.bind = BindExchangeAverages};

}  // namespace milepost::ops::gpu
