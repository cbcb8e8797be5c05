// Verification, part 1: what holds whatever the ops are.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/scalings.h"
#include "engine/plan/statistics.h"
#include "engine/plan/verification/group_sizes.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

template <typename... Parts>
absl::Status Violation(const Parts&... parts) {
  return absl::InternalError(absl::StrCat("plan: ", parts...));
}

absl::Status VerifyArena(const StepPlan& plan, Memory memory, int64_t arena_bytes) {
  std::vector<const Buffer*> persistent;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.memory != memory) continue;
    if (buffer.offset < 0 || buffer.offset % BufferAlignment(plan.options, memory) != 0) {
      return Violation(buffer.name, ": offset ", buffer.offset, " is not aligned");
    }
    if (buffer.bytes < 0 || buffer.offset + buffer.bytes > arena_bytes) {
      return Violation(buffer.name, ": ends at ", buffer.offset + buffer.bytes, " of ", arena_bytes,
                       " arena bytes");
    }
    if (buffer.persistent) persistent.push_back(&buffer);
  }
  const auto before = [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; };
  std::sort(persistent.begin(), persistent.end(), before);
  for (size_t i = 1; i < persistent.size(); ++i) {
    const Buffer& left = *persistent[i - 1];
    if (left.offset + left.bytes > persistent[i]->offset) {
      return Violation("persistent ", left.name, " overlaps ", persistent[i]->name);
    }
  }
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.persistent || buffer.memory != memory) continue;
    auto next = std::lower_bound(persistent.begin(), persistent.end(), &buffer, before);
    if (next != persistent.end() && (*next)->offset < buffer.offset + buffer.bytes) {
      return Violation(buffer.name, " overlaps persistent ", (*next)->name);
    }
    if (next == persistent.begin()) continue;
    --next;
    if ((*next)->offset + (*next)->bytes > buffer.offset) {
      return Violation(buffer.name, " overlaps persistent ", (*next)->name);
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyBytes(const int64_t (&bytes_by_class)[kBufferClasses], int64_t slack_bytes,
                         int64_t arena_bytes) {
  int64_t sum = slack_bytes;
  for (int64_t bytes : bytes_by_class) sum += bytes;
  if (sum != arena_bytes || slack_bytes < 0) {
    return Violation("bytes by class and slack add up to ", sum, ", the arena has ", arena_bytes);
  }
  return absl::OkStatus();
}

// Both memories.
absl::Status VerifyBuffers(const StepPlan& plan) {
  MP_RETURN_IF_ERROR(VerifyArena(plan, Memory::kDevice, plan.arena_bytes));
  MP_RETURN_IF_ERROR(VerifyBytes(plan.bytes_by_class, plan.slack_bytes, plan.arena_bytes));
  if (!plan.options.Offloads() && plan.host_arena_bytes != 0) {
    return Violation("nothing is offloaded, but there is an arena in host memory");
  }
  MP_RETURN_IF_ERROR(VerifyArena(plan, Memory::kHost, plan.host_arena_bytes));
  return VerifyBytes(plan.host_bytes_by_class, plan.host_slack_bytes, plan.host_arena_bytes);
}

absl::Status ExpectBuffer(const StepPlan& plan, const FlatGroup& group, absl::string_view what,
                          BufferId buffer, int64_t bytes) {
  if (buffer < 0 || buffer >= static_cast<BufferId>(plan.buffers.size())) {
    return Violation("group ", group.name, " has no buffer for ", what);
  }
  const Buffer& found = plan.buffers[buffer];
  const bool one_micro_step = plan.options.MicroSteps() == 1;
  const bool may_die = (buffer == group.gradient_buffer &&
                        (plan.options.GradientsPass() ||
                         (one_micro_step && group.elements == group.padded_elements))) ||
                       (buffer == group.gradient_shard_buffer && one_micro_step) ||
                       buffer == group.update_buffer || buffer == group.left_buffer ||
                       (buffer == group.right_buffer && !plan.options.powersgd_warm);
  if (!found.persistent && !may_die) {
    return Violation(found.name, " of a group must be persistent");
  }
  const bool state = found.buffer_class == BufferClass::kOptimizer;
  const bool offloaded = (state && plan.options.offload_optimizer) ||
                         buffer == group.host_gradient_buffer ||
                         buffer == group.host_parameter_buffer;
  if ((found.memory == Memory::kHost) != offloaded) {
    return Violation(found.name, " lies in the wrong memory");
  }
  const bool shared = state && group.disk_turn >= 0;
  if (found.bytes == bytes || (shared && found.bytes >= DiskBytes(bytes))) return absl::OkStatus();
  return Violation(found.name, " has ", found.bytes, " bytes, expected ", bytes);
}

// `bytes`: of each. There are no more of them than the optimizer keeps.
absl::Status VerifyStates(const StepPlan& plan, const FlatGroup& group, const StateBuffers& buffers,
                          absl::string_view what, int64_t bytes) {
  const int kept = StatesKept(group.optimizer);
  for (int i = 0; i < kernels::kMaxStates; ++i) {
    if (i < kept) {
      MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, absl::StrCat(what, " ", i), buffers[i], bytes));
    } else if (buffers[i] != kNoBuffer) {
      return Violation("group ", group.name, " has a ", what, " that its optimizer does not use");
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyQuantizedBuffers(const StepPlan& plan, const FlatGroup& group) {
  const int64_t blocks = group.shard_elements / kQuantizedBlock;
  MP_RETURN_IF_ERROR(VerifyStates(plan, group, group.state_buffers, "state", group.shard_elements));
  return VerifyStates(plan, group, group.scale_buffers, "scale of state", 4 * blocks);
}

absl::Status VerifyUpdateBuffers(const StepPlan& plan, const FlatGroup& group) {
  if (group.optimizer == Optimizer::kLamb) {
    const auto end = group.first_norm + static_cast<int64_t>(group.parameters.size());
    if (plan.update_norms == kNoBuffer || plan.buffers[plan.update_norms].bytes < 16 * end) {
      return Violation("group ", group.name, " has no place for the norms of its updates");
    }
  }
  if (group.optimizer != Optimizer::kMuon) return absl::OkStatus();
  for (const GroupParameter& p : group.parameters) {
    if (p.shape.size() != 2) return Violation(p.name, " is no matrix, but Muon is to update it");
  }
  return ExpectBuffer(plan, group, "its update", group.update_buffer,
                      group.padded_elements * ByteSize(DType::kF32));
}

// Where the host finds a gradient and leaves parameters.
absl::Status VerifyHostBuffers(const StepPlan& plan, const FlatGroup& group) {
  const bool offloads = plan.options.offload_optimizer;
  if (group.Offloaded() != offloads) {
    return Violation("group ", group.name, offloads ? " is not offloaded" : " is offloaded");
  }
  if (!offloads) return absl::OkStatus();
  if (plan.host_scalars == kNoBuffer || plan.buffers[plan.host_scalars].memory != Memory::kHost ||
      plan.buffers[plan.host_scalars].bytes != 8 * plan.ReducedScalars()) {
    return Violation("the host has no place for the scalars");
  }
  MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, "gradients on the host", group.host_gradient_buffer,
                                  group.shard_elements * ByteSize(DType::kF32)));
  const int64_t size = ByteSize(plan.options.compute_dtype);
  if (plan.options.compute_dtype == DType::kF32) return absl::OkStatus();
  if (group.host_parameter_buffer == kNoBuffer ||
      plan.buffers[group.host_parameter_buffer].memory != Memory::kHost ||
      plan.buffers[group.host_parameter_buffer].bytes < group.shard_elements * size) {
    return Violation("group ", group.name, " has no place on the host for its parameters");
  }
  return absl::OkStatus();
}

// Every state that is on disk has its part of the file and its place on the host, which it shares
// with no other of the group, nor with a group of another turn.
absl::Status VerifyDisk(const StepPlan& plan) {
  std::vector<DiskRegion> expected;
  std::map<BufferId, std::pair<int, std::string>> uses;  // turn and kind
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const FlatGroup& group = plan.groups[g];
    if (group.disk_turn >= kDiskTurns || (group.disk_turn >= 0) != plan.options.offload_disk) {
      return Violation("group ", group.name, " has no turn of the disk, or needs none");
    }
    for (const GroupState& state : StatesOf(group)) {
      if (group.disk_turn < 0 || state.buffer == kNoBuffer) continue;
      const int64_t bytes = group.shard_elements / state.elements_per_item * ByteSize(state.dtype);
      expected.push_back({static_cast<int32_t>(g), state.buffer, DiskBytes(bytes)});
      const std::pair<int, std::string> use = {group.disk_turn, state.kind};
      if (uses.try_emplace(state.buffer, use).first->second == use) continue;
      return Violation(plan.buffers[state.buffer].name, " is used for two states at once");
    }
  }
  int64_t bytes = 0;
  bool same = expected.size() == plan.disk_regions.size();
  for (size_t i = 0; same && i < expected.size(); ++i) {
    const DiskRegion& region = plan.disk_regions[i];
    same = region.group == expected[i].group && region.buffer == expected[i].buffer &&
           region.bytes == expected[i].bytes;
    bytes += region.bytes;
  }
  if (same && bytes == plan.disk_bytes) return absl::OkStatus();
  return Violation("the file on disk does not hold every state once");
}

absl::Status VerifyAverage(const StepPlan& plan, const FlatGroup& group) {
  if (plan.options.averages) {
    return ExpectBuffer(plan, group, "its average", group.average_buffer,
                        group.shard_elements * ByteSize(DType::kF32));
  }
  if (group.average_buffer == kNoBuffer) return absl::OkStatus();
  return Violation("group ", group.name, " has an average, but none is kept");
}

absl::Status VerifyOuterBuffers(const StepPlan& plan, const FlatGroup& group) {
  if (plan.options.outer_every == 0) {
    if (group.anchor_buffer == kNoBuffer && group.outer_momentum_buffer == kNoBuffer) {
      return absl::OkStatus();
    }
    return Violation("group ", group.name, " has an anchor, but there are no outer steps");
  }
  const int64_t bytes = group.shard_elements * ByteSize(DType::kF32);
  MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, "its anchor", group.anchor_buffer, bytes));
  return ExpectBuffer(plan, group, "its outer momentum", group.outer_momentum_buffer, bytes);
}

absl::Status VerifyFactors(const StepPlan& plan, const FlatGroup& group) {
  const FactorSizes sizes = FactorsOf(plan, group);
  if (sizes.left == 0) {
    if (!group.Compressed()) return absl::OkStatus();
    return Violation("group ", group.name, " has an error, but no gradient travels as factors");
  }
  MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, "its error", group.error_buffer,
                                  group.padded_elements * ByteSize(DType::kF32)));
  MP_RETURN_IF_ERROR(
      ExpectBuffer(plan, group, "left factors", group.left_buffer, 4 * (sizes.left + sizes.whole)));
  return ExpectBuffer(plan, group, "right factors", group.right_buffer, 4 * sizes.right);
}

absl::Status VerifyFrozenBuffers(const FlatGroup& group) {
  std::vector<BufferId> buffers = {group.gradient_buffer,      group.gradient_shard_buffer,
                                   group.host_gradient_buffer, group.average_buffer,
                                   group.error_buffer,         group.anchor_buffer,
                                   group.outer_momentum_buffer};
  for (const StateBuffers& more : {group.state_buffers, group.scale_buffers}) {
    buffers.insert(buffers.end(), more.begin(), more.end());
  }
  for (const BufferId buffer : buffers) {
    if (buffer != kNoBuffer) {
      return Violation("group ", group.name, " has a gradient or a state, but is frozen");
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyGroupBuffers(const StepPlan& plan, const FlatGroup& group) {
  if (group.parameter_dtype != plan.options.compute_dtype && !group.Packed()) {
    return Violation("group ", group.name, " is of another type than the plan computes in");
  }
  if (group.Packed() && !(group.base && group.frozen && plan.options.nf4_base)) {
    return Violation("group ", group.name, " is kept in 4 bits, but not what adapters adapt");
  }
  const int64_t compute = ByteSize(group.parameter_dtype);
  const int64_t held =
      plan.options.ShardsParameters() ? group.shard_elements : group.padded_elements;
  MP_RETURN_IF_ERROR(
      ExpectBuffer(plan, group, "parameters", group.parameter_buffer, held * compute));
  if (plan.train.ops.empty()) return absl::OkStatus();
  const int64_t shard = group.shard_elements * ByteSize(DType::kF32);
  const bool master = plan.options.offload_optimizer && !group.frozen;
  const DType master_dtype =
      group.Packed() ? DType::kU8 : plan.options.MasterDType(group.frozen, group.base);
  const bool own = master_dtype != DType::kF32;  // the parameters themselves
  if ((plan.options.HasMasters() && !own) || master) {
    MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, "master", group.master_buffer, shard));
  }
  if (group.master_dtype != master_dtype || (own && group.master_buffer != kNoBuffer)) {
    return Violation("group ", group.name, " has masters of another type than the options say");
  }
  if (group.frozen) return VerifyFrozenBuffers(group);
  if (plan.options.GradientsPass()) {
    MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, "its gradient shard", group.gradient_shard_buffer,
                                    group.shard_elements * ByteSize(plan.options.grad_dtype)));
  } else if (group.gradient_shard_buffer != kNoBuffer) {
    return Violation("group ", group.name, " has a gradient shard, but gradients are whole");
  }
  MP_RETURN_IF_ERROR(ExpectBuffer(plan, group, "gradients", group.gradient_buffer,
                                  group.padded_elements * ByteSize(DType::kF32)));
  MP_RETURN_IF_ERROR(VerifyUpdateBuffers(plan, group));
  MP_RETURN_IF_ERROR(VerifyHostBuffers(plan, group));
  MP_RETURN_IF_ERROR(VerifyAverage(plan, group));
  MP_RETURN_IF_ERROR(VerifyOuterBuffers(plan, group));
  MP_RETURN_IF_ERROR(VerifyFactors(plan, group));
  if (KeepsCodes(group.optimizer)) return VerifyQuantizedBuffers(plan, group);
  if (group.state_dtype != plan.options.state_dtype) {
    return Violation("group ", group.name, " keeps its state in another type than the options say");
  }
  if (group.optimizer == Optimizer::kMuon &&
      group.product_dtype != plan.options.orthogonalization) {
    return Violation("group ", group.name,
                     " is made orthogonal in another type than the options say");
  }
  const int64_t state = group.shard_elements * ByteSize(plan.options.state_dtype);
  if (group.scale_buffers != kNoBuffers) {
    return Violation("group ", group.name, " has scales, but its states are no codes");
  }
  return VerifyStates(plan, group, group.state_buffers, "state", state);
}

absl::Status VerifyGroup(const StepPlan& plan, const FlatGroup& group,
                         std::vector<int>& appearances) {
  const PlanOptions& options = plan.options;
  const int64_t alignment = ParameterAlignmentOf(group.optimizer);
  if (group.padded_elements % (options.world * std::max(options.shard_alignment, alignment)) != 0) {
    return Violation("group ", group.name, ": ", group.padded_elements,
                     " elements do not split into aligned shards");
  }
  if (options.Shards() * options.Replicas() != options.world && options.Shards() != 1) {
    return Violation(options.Shards(), " shards do not divide ", options.world, " ranks");
  }
  if (group.shard_elements * ShardsOf(group, options) != group.padded_elements) {
    return Violation("group ", group.name, ": a shard has ", group.shard_elements, " of ",
                     group.padded_elements, " elements");
  }
  int64_t end = 0;
  for (const GroupParameter& p : group.parameters) {
    if (p.parameter < 0 || p.parameter >= static_cast<int>(appearances.size())) {
      return Violation(p.name, " is no parameter of the graph");
    }
    ++appearances[p.parameter];
    if (p.begin < end || p.begin % alignment != 0 || p.elements != graph::Elements(p.shape)) {
      return Violation(p.name, " overlaps its neighbour in group ", group.name,
                       ", is not aligned, or has the wrong size");
    }
    end = p.begin + p.elements;
  }
  if (end > group.padded_elements) return Violation("group ", group.name, " is too small");
  return VerifyGroupBuffers(plan, group);
}

// Both programs have the same statistics, in a buffer that outlives the steps.
absl::Status VerifyStatistics(const StepPlan& plan) {
  const StatisticsLayout layout = LayOutStatistics(plan.evaluate.graph);
  if (layout.offsets.empty()) return absl::OkStatus();
  if (plan.statistics < 0 || plan.statistics >= static_cast<BufferId>(plan.buffers.size()) ||
      !plan.buffers[plan.statistics].persistent ||
      plan.buffers[plan.statistics].bytes != layout.bytes) {
    return Violation("the running statistics have no persistent buffer of ", layout.bytes,
                     " bytes");
  }
  if (plan.train.ops.empty()) return absl::OkStatus();
  if (LayOutStatistics(plan.train.graph).offsets != layout.offsets) {
    return Violation("training and evaluation have different running statistics");
  }
  return absl::OkStatus();
}

absl::Status VerifyScalings(const StepPlan& plan) {
  const auto tensors = static_cast<int64_t>(plan.train.graph.scalings.size());
  if (tensors == 0) return absl::OkStatus();
  const auto holds = [&](BufferId id, int64_t bytes, bool persistent) {
    return id >= 0 && id < static_cast<BufferId>(plan.buffers.size()) &&
           plan.buffers[id].bytes == bytes && plan.buffers[id].persistent == persistent;
  };
  if (holds(plan.scalings, tensors * kScalingBytes, true) &&
      holds(plan.amaxes, tensors * kAmaxBytes, true) &&
      holds(plan.gathered_amaxes, plan.options.world * tensors * 4, false)) {
    return absl::OkStatus();
  }
  return Violation("the scalings of ", tensors, " tensors have not the buffers that they need");
}

// What one program puts into a cache the others find.
absl::Status VerifyCaches(const StepPlan& plan) {
  std::map<std::string, Place> places;
  for (const Program* program : {&plan.prompt, &plan.next, &plan.score}) {
    if (program->ops.empty()) continue;
    size_t found = 0;
    for (size_t id = 0; id < program->graph.values.size(); ++id) {
      const graph::Value& value = program->graph.values[id];
      if (value.kind != graph::ValueKind::kCache || id >= program->places.size()) continue;
      const Place& place = program->places[id];
      if (place.buffer < 0 || place.buffer >= static_cast<BufferId>(plan.buffers.size()) ||
          !plan.buffers[place.buffer].persistent || place.offset != 0 ||
          plan.buffers[place.buffer].bytes !=
              graph::Elements(value.shape) * ByteSize(value.dtype)) {
        return Violation(value.name, " has no persistent buffer of its size");
      }
      const Place& first = places.try_emplace(value.name, place).first->second;
      if (first.buffer != place.buffer) return Violation("the programs differ in ", value.name);
      ++found;
    }
    if (found != places.size()) return Violation("a program lacks a cache of the other's");
  }
  return absl::OkStatus();
}

// What neighbouring tensor ranks have alike is summed over just these.
absl::Status VerifySharers(const StepPlan& plan, const graph::Graph& graph,
                           const FlatGroup& group) {
  if (group.sharers < 1 || plan.options.tensor % group.sharers != 0) {
    return Violation("group ", group.name, ": ", group.sharers, " tensor ranks are no part of ",
                     plan.options.tensor);
  }
  for (const GroupParameter& p : group.parameters) {
    const int64_t sharers = graph.parameters[p.parameter].division.sharers;
    if (sharers == group.sharers && (sharers == 1 || group.partial || group.frozen)) continue;
    return Violation(p.name, ": what ", sharers, " tensor ranks have is not summed over these");
  }
  return absl::OkStatus();
}

absl::Status VerifyGroups(const StepPlan& plan) {
  const graph::Graph& graph = plan.prompt.ops.empty() ? plan.evaluate.graph : plan.prompt.graph;
  std::vector<int> appearances(graph.parameters.size(), 0);
  for (const FlatGroup& group : plan.groups) {
    MP_RETURN_IF_ERROR(VerifyGroup(plan, group, appearances));
    MP_RETURN_IF_ERROR(VerifySharers(plan, graph, group));
  }
  for (const FlatGroup& group : plan.elsewhere) {
    for (const GroupParameter& p : group.parameters) ++appearances.at(p.parameter);
  }
  for (size_t i = 0; i < appearances.size(); ++i) {
    if (appearances[i] == 1) continue;
    return Violation(graph.values[graph.parameters[i].value].name, " is in ", appearances[i],
                     " flat groups");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyLayout(const StepPlan& plan) {
  MP_RETURN_IF_ERROR(VerifyBuffers(plan));
  MP_RETURN_IF_ERROR(VerifyStatistics(plan));
  MP_RETURN_IF_ERROR(VerifyScalings(plan));
  MP_RETURN_IF_ERROR(VerifyCaches(plan));
  MP_RETURN_IF_ERROR(VerifyGroups(plan));
  return VerifyDisk(plan);
}

}  // namespace milepost::plan
