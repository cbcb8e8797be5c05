// Internal to backends: what the ops on flat groups share.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_GROUP_OPS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_GROUP_OPS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

inline const plan::FlatGroup& GroupOf(const OpBinding& b) {
  return b.plan.groups[b.attributes().group];
}

// First element of this rank's shard within the group.
inline int64_t ShardBegin(const OpBinding& b) {
  return GroupOf(b).shard_elements * GroupOf(b).ShardOf(b.plan.options, b.rank);
}

template <typename T>
T* BufferOf(const OpBinding& b, plan::BufferId buffer) {
  return reinterpret_cast<T*>(b.BufferAt(buffer));
}

// The reduced gradient of this rank's shard; T: plan.options.grad_dtype.
template <typename T = float>
T* ShardGradient(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  if (group.gradient_shard_buffer != plan::kNoBuffer) {
    return BufferOf<T>(b, group.gradient_shard_buffer);
  }
  return BufferOf<T>(b, group.gradient_buffer) + ShardBegin(b);
}

// What the micro-steps' reduced gradients are summed in; null: they are not.
inline float* SummedShard(const OpBinding& b) {
  const bool sums = b.plan.options.ShardsGradients() && !b.plan.options.RoundsGradients();
  return sums ? ShardGradient(b) : nullptr;
}

// This rank's shard of the parameters on the device.
template <typename T>
T* ShardParameters(const OpBinding& b) {
  return BufferOf<T>(b, GroupOf(b).parameter_buffer) +
         (b.plan.options.ShardsParameters() ? 0 : ShardBegin(b));
}

// The fp32 parameters of this rank's shard.
inline float* ShardMaster(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  if (group.master_buffer != plan::kNoBuffer) return BufferOf<float>(b, group.master_buffer);
  return ShardParameters<float>(b);
}

// Muon's matrices of the groups before this one: they are dealt out over the whole plan, so that
// the ranks get about as many.
inline int64_t MuonMatricesBefore(const OpBinding& b) {
  int64_t matrices = 0;
  for (int32_t g = 0; g < b.attributes().group; ++g) {
    const plan::FlatGroup& group = b.plan.groups[g];
    if (group.Needs() != optim::StepNeeds::kWholeMatrices || group.frozen) continue;
    matrices += static_cast<int64_t>(group.parameters.size());
  }
  return matrices;
}

// The groups whose norms this rank adds to the step's: what several tensor ranks have alike counts
// once, and so does what several stages have. In group order.
inline std::vector<size_t> NormsOfRank(const OpBinding& b) {
  std::vector<size_t> groups;
  for (size_t g = 0; g < b.plan.groups.size(); ++g) {
    const plan::FlatGroup& group = b.plan.groups[g];
    if (group.frozen || group.IsCopy(b.plan.options)) continue;
    if (b.tensor_rank % group.Alike(b.plan.options) == 0) groups.push_back(g);
  }
  return groups;
}
// Whether its losses count: those of the last stage, likewise once.
inline bool HasLosses(const OpBinding& b) {
  return b.tensor_rank == 0 && b.plan.options.IsLastStage();
}

inline double* Scalars(const OpBinding& b) { return BufferOf<double>(b, b.plan.scalars); }

// LAMB: the pair of the group's first tensor.
inline double* NormsOf(const OpBinding& b) {
  if (b.plan.update_norms == plan::kNoBuffer) return nullptr;
  return BufferOf<double>(b, b.plan.update_norms) + 2 * GroupOf(b).first_norm;
}

// Elements [begin, end) of the shard's data, all updated alike.
struct Segment {
  int64_t begin;
  int64_t end;
  bool decay = false;
  float lr_scale = 1;
  std::optional<float> weight_decay = std::nullopt;  // instead of the step's
  int tensor = -1;  // in the group, where each tensor has a step of its own (StepsApart)
  // Where it starts: this element of this parameter. Of its first one, where several are joined.
  int parameter = -1;
  int64_t element = 0;

  bool Alike(const Segment& other) const {
    return decay == other.decay && lr_scale == other.lr_scale &&
           weight_decay == other.weight_decay && tensor == other.tensor;
  }
  float LearningRate(const StepContext& c) const { return c.learning_rate * lr_scale; }
  float WeightDecay(const StepContext& c) const {
    return weight_decay.value_or(decay ? c.weight_decay : 0.0F);
  }
};

// Muon: the update has the scale of AdamW's whatever the shape: root mean square 0.2 (Liu et al.,
// "Muon is scalable for LLM training", 2025). Times the learning rate.
inline float MuonFactor(const plan::GroupParameter& p) {
  const auto longer = static_cast<double>(std::max(p.shape[0], p.shape[1]));
  return static_cast<float>(0.2 * std::sqrt(longer));
}

// Steps of whole tensors and matrices; random rounding is keyed by the tensor.
inline bool StepsApart(const plan::FlatGroup& group) {
  return group.Needs() != optim::StepNeeds::kElement || group.state_dtype != DType::kF32 ||
         group.master_dtype != DType::kF32;
}

// visit(segment) for each of the parameters' pieces within the group's elements [begin, begin +
// count), in order and relative to `begin`, neighbours joined where they are updated alike. Padding
// belongs to none.
template <typename Visit>
void ForSegments(const plan::FlatGroup& group, int64_t begin, int64_t count, const Visit& visit) {
  const bool apart = StepsApart(group);
  Segment open = {.begin = 0, .end = 0};
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const plan::GroupParameter& p = group.parameters[i];
    const int64_t first = std::max<int64_t>(p.begin - begin, 0);
    const int64_t last = std::min<int64_t>(p.begin + p.elements - begin, count);
    if (first >= last) continue;
    const Segment segment = {.begin = first,
                             .end = last,
                             .decay = p.decay,
                             .lr_scale = p.lr_scale,
                             .weight_decay = p.weight_decay,
                             .tensor = apart ? static_cast<int>(i) : -1,
                             .parameter = p.parameter,
                             .element = begin + first - p.begin};
    if (open.end == first && open.end > 0 && open.Alike(segment)) {
      open.end = last;
      continue;
    }
    if (open.end > 0) visit(open);
    open = segment;
  }
  if (open.end > 0) visit(open);
}

inline std::vector<Segment> SegmentsOf(const plan::FlatGroup& group, int64_t begin, int64_t count) {
  std::vector<Segment> segments;
  ForSegments(group, begin, count, [&](const Segment& s) { segments.push_back(s); });
  return segments;
}

// The group's elements that belong to no parameter. Nobody writes the padding of a gradient that
// shares its bytes with activations, and a reduction in bf16 leaves anything in other ranks'
// shards: before a gradient is scattered its padding is zeroed, so that a shard is finite and its
// norm needs no exceptions.
inline std::vector<Segment> PaddingOf(const plan::FlatGroup& group) {
  std::vector<Segment> padding;
  int64_t end = 0;
  for (const plan::GroupParameter& p : group.parameters) {
    if (p.begin > end) padding.push_back({end, p.begin});
    end = p.begin + p.elements;
  }
  if (end < group.padded_elements) padding.push_back({end, group.padded_elements});
  return padding;
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_GROUP_OPS_H_
