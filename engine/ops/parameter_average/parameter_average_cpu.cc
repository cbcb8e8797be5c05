#include "engine/kernels/cpu/elementwise.h"
#include "engine/ops/parameter_average/parameter_average_binding.h"
#include "engine/ops/parameter_average/parameter_average_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::GroupOf;
using runtime::ShardMaster;
using runtime::ShardParameters;
using runtime::StepContext;

// T: of the master.
template <typename T>
BoundOp AverageOf(const Binding& b, const T* master) {
  return [master, averages = BufferOf<float>(b, GroupOf(b).average_buffer),
          count = GroupOf(b).shard_elements](const StepContext& c) {
    if (!c.skip_update) kernels::AddToAverages(master, count, c.average_weight, averages);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindAverageParameters(const Binding& b) {
  if (GroupOf(b).master_dtype == DType::kBf16) return AverageOf(b, ShardParameters<bf16>(b));
  return AverageOf(b, ShardMaster(b));
}

void RoundValues(const float* values, int64_t n, bf16* to) { kernels::CastToBf16(values, n, to); }
void RoundValues(const float* values, int64_t n, f16* to) { kernels::CastToF16(values, n, to); }

// Both are kept in fp32 beside the parameters, which are made of either.
template <typename T>
BoundOp RoundedOf(const Binding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  return [master = BufferOf<float>(b, group.master_buffer),
          averages = BufferOf<float>(b, group.average_buffer), parameters = ShardParameters<T>(b),
          count = group.shard_elements](const StepContext& c) {
    RoundValues(c.take_averages ? averages : master, count, parameters);
    return absl::OkStatus();
  };
}

BoundOp SwappedOf(const Binding& b) {
  return [parameters = ShardParameters<float>(b),
          averages = BufferOf<float>(b, GroupOf(b).average_buffer),
          count = GroupOf(b).shard_elements](const StepContext&) {
    kernels::SwapAverages(count, parameters, averages);
    return absl::OkStatus();
  };
}

BoundOp ExchangedOf(const Binding& b) {
  return [parameters = ShardParameters<bf16>(b),
          averages = BufferOf<float>(b, GroupOf(b).average_buffer),
          count = GroupOf(b).shard_elements](const StepContext& c) {
    c.take_averages ? kernels::TakeAverages(count, parameters, averages)
                    : kernels::ReturnParameters(count, parameters, averages);
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindExchangeAverages(const Binding& b) {
  return ExchangeOf<Binding>(b, {ExchangedOf, SwappedOf, RoundedOf<bf16>, RoundedOf<f16>});
}

}  // namespace

constinit const CpuOp kAverageParameters = {.bind = BindAverageParameters};
constinit const CpuOp kExchangeAverages = {.bind = BindExchangeAverages};

}  // namespace milepost::ops::cpu
