#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/cpu_optimizer.h"
#include "engine/runtime/cpu/host_optimizer.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/randomness.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::ops::cpu {
namespace {

using runtime::AfterItsState;
using runtime::Binding;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CpuUpdate;
using runtime::GroupOf;
using runtime::NormsOf;
using runtime::OpBinding;
using runtime::PaddingOf;
using runtime::RandomPurpose;
using runtime::RandomStream;
using runtime::Segment;
using runtime::SegmentsOf;
using runtime::ShardBegin;
using runtime::ShardGradient;
using runtime::ShardParameters;
using runtime::StepContext;

constexpr int64_t kUpdateGrain = 4096;  // elements

template <typename T>
using States = std::array<T*, kernels::kMaxStates>;

template <typename T>
States<T> StatesIn(const OpBinding& b, const plan::StateBuffers& buffers) {
  States<T> states = {};
  for (size_t i = 0; i < states.size(); ++i) states[i] = BufferOf<T>(b, buffers[i]);
  return states;
}

template <typename T>
T* Past(T* place, int64_t by) {
  return place == nullptr ? place : place + by;
}
template <typename T>
States<T> Past(States<T> states, int64_t by) {
  for (T*& state : states) state = Past(state, by);
  return states;
}

// Where one group's update works: element 0 of each is the shard's first.
template <typename T>
struct UpdatePlaces {
  float* master;
  States<float> states;  // null where the optimizer has no more
  const float* gradient;
  T* copy;  // null: the parameter is its own master
  // Where IsQuantized.
  States<uint8_t> codes;
  States<float> scales;
  const double* norms;  // StepNeeds::kTensorNorms: a pair for each tensor of the group
};

const runtime::CpuOptimizer& CpuOptimizerOf(plan::Optimizer optimizer) {
  static constexpr const runtime::CpuOptimizer* kOptimizers[] = {
#define MP_OPTIMIZER(name, type) &optim::cpu::k##name,
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER
  };
  return *kOptimizers[static_cast<int>(optimizer)];
}

// Elements [from, to) of a segment.
template <typename T>
void Update(const plan::FlatGroup& group, const StepContext& c, const Segment& segment,
            int64_t from, int64_t to, const UpdatePlaces<T>& at) {
  const int64_t block = from / plan::kQuantizedBlock;
  CpuOptimizerOf(group.optimizer)(CpuUpdate<T>{.step = c,
                                               .group = group,
                                               .segment = segment,
                                               .n = to - from,
                                               .master = Past(at.master, from),
                                               .states = Past(at.states, from),
                                               .gradient = Past(at.gradient, from),
                                               .copy = Past(at.copy, from),
                                               .codes = Past(at.codes, from),
                                               .scales = Past(at.scales, block),
                                               .norms = at.norms});
}

// What of a group is in bf16: widened piece by piece, updated in fp32, and rounded back at random
// (the gradient is only read). Null where it is in another type, or is not there.
struct Bf16Places {
  // Elements [from, to) of a segment; `at` has what is not in bf16.
  template <typename T>
  void Update(const plan::FlatGroup& group, const StepContext& c, const Segment& segment,
              int64_t from, int64_t to, const UpdatePlaces<T>& at) const {
    constexpr int64_t kPiece = 1024;  // whole blocks of quantized states
    static_assert(kPiece % plan::kQuantizedBlock == 0);
    float values[2 + kernels::kMaxStates][kPiece];
    for (int64_t i = from; i < to; i += kPiece) {
      const int64_t n = std::min(kPiece, to - i);
      UpdatePlaces<T> here = From(at, i);
      const auto widen = [&](const bf16* bits, int which) -> float* {
        kernels::CastToFloat(bits + i, n, values[which]);
        return values[which];
      };
      if (gradient != nullptr) here.gradient = widen(gradient, 0);
      if (master != nullptr) here.master = widen(master, 1);
      for (int s = 0; s < kernels::kMaxStates; ++s) {
        if (states[s] != nullptr) here.states[s] = widen(states[s], 2 + s);
      }
      cpu::Update(group, c, segment, 0, n, here);
      const auto round = [&](RandomPurpose purpose, int which, bf16* bits) {
        const auto tensor = static_cast<uint32_t>(segment.parameter);
        const int64_t element = segment.element + i - segment.begin;
        if (bits == nullptr) return;
        kernels::RoundToBf16AtRandom(values[which], n,
                                     {.seed = c.seed,
                                      .stream = RandomStream(purpose, tensor),
                                      .step = static_cast<uint64_t>(c.step),
                                      .first_element = static_cast<uint64_t>(element)},
                                     bits + i);
      };
      round(RandomPurpose::kRoundMaster, 1, master);
      for (int s = 0; s < kernels::kMaxStates; ++s) {
        round(runtime::RoundsState(s), 2 + s, states[s]);
      }
    }
  }

  bool any() const { return master != nullptr || states[0] != nullptr || gradient != nullptr; }

  bf16* master = nullptr;
  States<bf16> states = {};
  const bf16* gradient = nullptr;

 private:
  // The same places from element `i` on, which is the first of a block where states are quantized.
  template <typename T>
  static UpdatePlaces<T> From(const UpdatePlaces<T>& at, int64_t i) {
    const int64_t block = i / plan::kQuantizedBlock;
    return {.master = Past(at.master, i),
            .states = Past(at.states, i),
            .gradient = Past(at.gradient, i),
            .copy = Past(at.copy, i),
            .codes = Past(at.codes, i),
            .scales = Past(at.scales, block),
            .norms = at.norms};
  }
};

Bf16Places Bf16PlacesOf(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  Bf16Places places;
  if (group.state_dtype == DType::kBf16) {
    places.states = StatesIn<bf16>(b, group.state_buffers);
  }
  if (group.master_dtype == DType::kBf16) places.master = ShardParameters<bf16>(b);
  if (b.plan.options.RoundsGradients()) places.gradient = ShardGradient<bf16>(b);
  return places;
}

// What an update by the host leaves for the device. The buffer is other groups' too, so that its
// padding has to be made zero every time.
template <typename T>
struct HostParameters {
  explicit HostParameters(const OpBinding& b)
      : master(BufferOf<float>(b, GroupOf(b).master_buffer)),
        parameters(BufferOf<T>(b, GroupOf(b).host_parameter_buffer)),
        count(GroupOf(b).shard_elements) {
    if (parameters == nullptr) return;
    const int64_t first = ShardBegin(b);
    for (const Segment& all : PaddingOf(GroupOf(b))) {
      const Segment part = {.begin = std::max<int64_t>(all.begin - first, 0),
                            .end = std::min(all.end - first, count)};
      if (part.begin < part.end) padding.push_back(part);
    }
  }

  void ZeroPadding() const {
    for (const Segment& s : padding) std::fill(parameters + s.begin, parameters + s.end, T{});
  }
  // As they were: of a step that is skipped.
  void Restore() const {
    if (parameters == nullptr) return;
    if constexpr (std::is_same_v<T, bf16>) {
      kernels::CastToBf16(master, count, parameters);
    } else if constexpr (std::is_same_v<T, f16>) {
      kernels::CastToF16(master, count, parameters);
    }
  }

  const float* master;
  T* parameters;  // null: the device's are updated, or the master is copied
  int64_t count;
  std::vector<Segment> padding;  // of the shard
};

template <typename T>
T* UpdatedParameters(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  if (group.Offloaded()) return BufferOf<T>(b, group.host_parameter_buffer);
  return ShardParameters<T>(b);
}

const float* UpdateGradient(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  if (group.Offloaded()) return BufferOf<float>(b, group.host_gradient_buffer);
  if (group.Needs() != optim::StepNeeds::kWholeMatrices) return ShardGradient(b);
  return BufferOf<float>(b, group.update_buffer) + ShardBegin(b);
}

template <typename T>
absl::StatusOr<BoundOp> OptimizerOf(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const int64_t begin = ShardBegin(b);
  T* parameter = UpdatedParameters<T>(b);
  UpdatePlaces<T> at = {.master = BufferOf<float>(b, group.master_buffer),
                        .states = StatesIn<float>(b, group.state_buffers),
                        .gradient = UpdateGradient(b),
                        .copy = parameter,
                        .codes = StatesIn<uint8_t>(b, group.state_buffers),
                        .scales = StatesIn<float>(b, group.scale_buffers),
                        .norms = NormsOf(b)};
  if constexpr (std::is_same_v<T, float>) {
    if (at.master == nullptr) {  // the parameter is its own master
      at.master = parameter;
      at.copy = nullptr;
    }
  }
  const Bf16Places bf16 = Bf16PlacesOf(b);
  if (bf16.master != nullptr) {
    at.copy = nullptr;
  } else if (at.master == nullptr) {
    return absl::InternalError("a 16-bit group has no master buffer");
  }
  return [at, bf16, rounded = bf16.any(), group, count = group.shard_elements,
          staged = HostParameters<T>(b),
          segments = SegmentsOf(group, begin, group.shard_elements)](const StepContext& c) {
    if (c.skip_update) {
      staged.Restore();
      return absl::OkStatus();
    }
    staged.ZeroPadding();
    // One fork for the whole group: biases and norms are far too short for one each. Inside it the
    // kernel stays on its thread.
    kernels::ParallelFor(0, count, kUpdateGrain, [&](int64_t first, int64_t last) {
      for (const Segment& s : segments) {
        const int64_t from = std::max(s.begin, first);
        const int64_t to = std::min(s.end, last);
        if (from >= to) continue;
        rounded ? bf16.Update(group, c, s, from, to, at) : Update(group, c, s, from, to, at);
      }
    });
    return absl::OkStatus();
  };
}

absl::StatusOr<BoundOp> BindOptimizer(const Binding& b) {
  return AfterItsState(b, MP_BIND_BY_DTYPE(OptimizerOf, b));
}

}  // namespace

constinit const CpuOp kOptimizer = {.bind = BindOptimizer};

}  // namespace milepost::ops::cpu

namespace milepost::runtime {

absl::StatusOr<BoundOp> BindHostOptimizer(const OpBinding& b) {
  if (!GroupOf(b).Offloaded()) return absl::InternalError("the group is not offloaded");
  return MP_BIND_BY_DTYPE(ops::cpu::OptimizerOf, b);
}

}  // namespace milepost::runtime
