#include "engine/runtime/gpu/backend/step_control.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "common/philox.h"
#include "engine/optim/adamw/adamw_cuda_kernel.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/host_inputs.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/executor/randomness.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"
#include "engine/runtime/gpu/backend/documents.h"

namespace milepost::runtime {
namespace {

using kernels::cuda::SegmentFactors;
using kernels::cuda::StepFactors;

// Kernels read both in one access of 16 bytes.
static_assert(offsetof(StepControl, clip) % 16 == 0 && offsetof(StepControl, position) % 16 == 0);
static_assert(sizeof(SegmentFactors) % 8 == 0);

constexpr int64_t kAlignment = 256;

int64_t RoundUp(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

SegmentFactors FactorsOf(const plan::FlatGroup& group, const Segment& segment,
                         const StepContext& c) {
  SegmentFactors factors = CudaOptimizerOf(group.optimizer).factors(group, segment, c);
  factors.element_offset = segment.element - segment.begin;
  const auto key = [&](RandomPurpose purpose) {
    return PhiloxKey(c.seed, RandomStream(purpose, static_cast<uint32_t>(segment.parameter)));
  };
  factors.round_master = key(RandomPurpose::kRoundMaster);
  for (int i = 0; i < kernels::kMaxStates; ++i) factors.round_states[i] = key(RoundsState(i));
  return factors;
}

StepFactors StepFactorsOf(const StepContext& c) {
  StepFactors factors = kernels::cuda::StepFactorsOf(kernels::AdamWParams{
      .beta1 = c.beta1, .beta2 = c.beta2, .epsilon = c.epsilon, .step = c.update});
  factors.beta3 = c.beta3;
  factors.root3 =
      static_cast<float>(1.0 / std::sqrt(kernels::cuda::BiasCorrection(c.beta3, c.update)));
  factors.second = static_cast<float>(c.beta2 * kernels::cuda::BiasCorrection(c.beta1, c.update) /
                                      kernels::cuda::BiasCorrection(c.beta2, c.update));
  factors.past = c.update == 1 ? 0.0F : 1.0F;
  factors.momentum = c.momentum;
  factors.average_weight = c.average_weight;
  factors.step = static_cast<uint64_t>(c.step);
  return factors;
}

// Whose segments begin with the rank's shard.
template <typename Visit>
void ForSegmentsOfRank(const plan::StepPlan& plan, const plan::FlatGroup& group, int rank,
                       const Visit& visit) {
  if (group.frozen) return;
  const int64_t begin = group.shard_elements * group.ShardOf(plan.options, rank);
  ForSegments(group, begin, group.shard_elements, visit);
}

}  // namespace

ControlLayout ControlLayoutOf(const plan::StepPlan& plan, int rank) {
  ControlLayout layout;
  layout.bytes = RoundUp(sizeof(StepControl));
  for (const plan::FlatGroup& group : plan.groups) {
    int64_t count = 0;
    ForSegmentsOfRank(plan, group, rank, [&](const Segment&) { ++count; });
    layout.factors.push_back(layout.bytes);
    layout.segments.push_back(count);
    layout.bytes += RoundUp(count * static_cast<int64_t>(sizeof(SegmentFactors)));
  }
  layout.micro_batches = MicroBatchesOfRun(plan);
  layout.positions = layout.bytes;
  layout.bytes +=
      RoundUp((layout.micro_batches - 1) * static_cast<int64_t>(sizeof(StepControl::position)));
  if (const auto packed = PackedDocumentsOf(plan, plan.train); packed.has_value()) {
    layout.documents = packed->graph;
    layout.tables = layout.bytes;
    layout.table_bytes = RoundUp(kernels::cuda::DocumentTablesOf(packed->graph).entries *
                                 static_cast<int64_t>(sizeof(int32_t)));
    layout.bytes += layout.micro_batches * layout.table_bytes;
  }
  return layout;
}

void WriteControl(const plan::StepPlan& plan, int rank, const ControlLayout& layout,
                  const StepContext& context, const kernels::cuda::ClipArgs& clip, char* memory) {
  const StepControl control = {
      .position = {.step = static_cast<uint64_t>(context.step),
                   .first_sample = static_cast<uint64_t>(context.first_sample)},
      .gradient_factors = context.gradient_factors,
      .stop = context.stop_requested ? 1.0 : 0.0,
      .row = context.position,
      .clip = clip,
      .factors = StepFactorsOf(context)};
  std::memcpy(memory, &control, sizeof(control));
  for (int64_t i = 1; i < layout.micro_batches; ++i) {
    kernels::cuda::StepPosition position = control.position;
    position.first_sample += static_cast<uint64_t>(SamplesBefore(plan, i));
    std::memcpy(memory + layout.PositionOf(i), &position, sizeof(position));
  }
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    char* at = memory + layout.factors[g];
    ForSegmentsOfRank(plan, plan.groups[g], rank, [&](const Segment& segment) {
      const SegmentFactors factors = FactorsOf(plan.groups[g], segment, context);
      std::memcpy(at, &factors, sizeof(factors));
      at += sizeof(factors);
    });
  }
}

}  // namespace milepost::runtime
