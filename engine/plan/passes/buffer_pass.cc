#include "engine/plan/passes/buffer_pass.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/round_up.h"
#include "engine/plan/accesses.h"
#include "engine/plan/compression.h"
#include "engine/plan/scalings.h"
#include "engine/plan/statistics.h"
#include "engine/plan/workspace.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

BufferId AddBuffer(StepPlan& plan, std::string name, BufferClass buffer_class, int64_t bytes,
                   bool persistent, Memory memory = Memory::kDevice) {
  plan.buffers.push_back({.name = std::move(name),
                          .buffer_class = buffer_class,
                          .bytes = bytes,
                          .persistent = persistent,
                          .memory = memory});
  return static_cast<BufferId>(plan.buffers.size()) - 1;
}

BufferId AddPersistent(StepPlan& plan, std::string name, BufferClass buffer_class, int64_t bytes,
                       Memory memory = Memory::kDevice) {
  return AddBuffer(plan, std::move(name), buffer_class, bytes, true, memory);
}

// Between micro-steps gradients must stay. With a single micro-step a group's gradient lives from
// its first writer to its update only, and activations may use its bytes before that; but padding
// is written by nobody and must stay zero.
bool GradientsPersist(const FlatGroup& group, const PlanOptions& options) {
  if (options.GradientsPass()) return false;  // reduced, padding and all, in each micro-step
  return options.MicroSteps() > 1 || group.elements != group.padded_elements;
}

int64_t Bytes(const Value& value) { return graph::Elements(value.shape) * ByteSize(value.dtype); }

class BufferAssignment {
 public:
  BufferAssignment(StepPlan& plan, Program& program) : plan_(plan), program_(program) {}

  void Run() && {
    program_.places.assign(program_.graph.values.size(), Place{});
    PlaceParameters();
    PlaceStatistics();
    PlaceScalings();
    for (const ValueId input : program_.graph.inputs) PlaceShared(input, BufferClass::kInputs);
    PlaceCaches();
    FindLastReads();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      PlannedOp& planned = program_.ops[i];
      PlaceOutputs(planned.op, static_cast<int>(i));
      AddWorkspace(planned);
      planned.accesses = OpAccesses(plan_, program_, planned);
    }
  }

 private:
  const Value& ValueOf(ValueId id) const { return program_.graph.values[id]; }

  void PlaceParameters() {
    for (const FlatGroup& group : plan_.groups) {
      for (const GroupParameter& p : group.parameters) {
        const graph::Parameter& parameter = program_.graph.parameters[p.parameter];
        const int64_t size = ByteSize(ValueOf(parameter.value).dtype);
        if (!group.ShardsParameters(plan_.options)) {
          program_.places[parameter.value] = {group.parameter_buffer, p.begin * size};
        }
        if (parameter.gradient == kNoValue) continue;
        program_.places[parameter.gradient] = {group.gradient_buffer,
                                               p.begin * ByteSize(DType::kF32)};
      }
    }
  }

  void PlaceStatistics() {
    const StatisticsLayout layout = LayOutStatistics(program_.graph);
    for (size_t i = 0; i < layout.offsets.size(); ++i) {
      program_.places[program_.graph.statistics[i].value] = {plan_.statistics, layout.offsets[i]};
    }
  }

  void PlaceScalings() {
    int64_t i = 0;
    for (const graph::Scaling& scaling : program_.graph.scalings) {
      program_.places[scaling.scaling] = {plan_.scalings, i * kScalingBytes};
      program_.places[scaling.amax] = {plan_.amaxes, i * kAmaxBytes};
      ++i;
    }
  }

  // In the persistent buffer of its name, which another program may have brought. It is as large as
  // the largest of them.
  void PlaceShared(ValueId id, BufferClass buffer_class) {
    const Value& value = ValueOf(id);
    for (size_t i = 0; i < plan_.buffers.size(); ++i) {
      Buffer& buffer = plan_.buffers[i];
      if (buffer.persistent && buffer.buffer_class == buffer_class && buffer.name == value.name) {
        buffer.bytes = std::max(buffer.bytes, Bytes(value));
        program_.places[id] = {static_cast<BufferId>(i), 0};
        return;
      }
    }
    program_.places[id] = {AddPersistent(plan_, value.name, buffer_class, Bytes(value)), 0};
  }

  void PlaceCaches() {
    for (size_t id = 0; id < program_.graph.values.size(); ++id) {
      if (program_.graph.values[id].kind != ValueKind::kCache) continue;
      PlaceShared(static_cast<ValueId>(id), BufferClass::kActivations);
    }
  }

  void FindLastReads() {
    last_read_.assign(program_.graph.values.size(), -1);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      for (ValueId input : program_.ops[i].op.inputs) {
        if (input != kNoValue) last_read_[input] = static_cast<int>(i);
      }
    }
  }

  // True when `output` of op `index` can lie where one of the op's inputs lies.
  bool CanOverwrite(const graph::Op& op, const graph::Output& output, int index) const {
    const ValueId victim = output.may_overwrite;
    if (victim == kNoValue || last_read_[victim] != index) return false;
    const Value& value = ValueOf(victim);
    if (value.kind != ValueKind::kActivation || Bytes(value) != Bytes(ValueOf(output.value))) {
      return false;
    }
    return std::none_of(op.outputs.begin(), op.outputs.end(), [&](const graph::Output& other) {
      return other.value != kNoValue && other.value != output.value &&
             program_.places[other.value].buffer == program_.places[victim].buffer;
    });
  }

  // Gathered parameters lie as in their flat group.
  void PlaceGathered(const graph::Op& op) {
    const FlatGroup& group = plan_.groups[op.attributes.group];
    const int64_t size = ByteSize(group.parameter_dtype);
    const BufferId buffer =
        AddBuffer(plan_, absl::StrCat("gathered parameters of ", group.name),
                  BufferClass::kCommunication, group.padded_elements * size, false);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      program_.places[op.outputs[i].value] = {buffer, group.parameters[i].begin * size};
    }
  }

  // One behind the other, aligned: where their sizes allow it one product serves them all.
  void PlaceUnpacked(const graph::Op& op) {
    int64_t bytes = 0;
    for (const graph::Output& output : op.outputs) {
      program_.places[output.value].offset = bytes;
      bytes += RoundUp(Bytes(ValueOf(output.value)), kBufferAlignment);
    }
    const BufferId buffer =
        AddBuffer(plan_, ValueOf(op.outputs[0].value).name, BufferClass::kWorkspace, bytes, false);
    for (const graph::Output& output : op.outputs) program_.places[output.value].buffer = buffer;
  }

  void PlaceOutputs(const graph::Op& op, int index) {
    if (op.kind == graph::OpKind::kGatherParameters && !op.outputs.empty()) PlaceGathered(op);
    if (op.kind == graph::OpKind::kUnpackNf4) PlaceUnpacked(op);
    for (const graph::Output& output : op.outputs) {
      if (output.value == kNoValue || program_.places[output.value].buffer != kNoBuffer) continue;
      const Value& value = ValueOf(output.value);
      Place& place = program_.places[output.value];
      if (value.kind == ValueKind::kStepAccumulator) {
        place = {plan_.scalars, LossScalar(op.attributes.head) * ByteSize(DType::kF64)};
      } else if (CanOverwrite(op, output, index)) {
        place = program_.places[output.may_overwrite];
      } else {
        const BufferClass kept = value.kind == ValueKind::kDiscarded ? BufferClass::kWorkspace
                                                                     : BufferClass::kActivations;
        const Memory memory =
            op.kind == graph::OpKind::kCopyToHost ? Memory::kHost : Memory::kDevice;
        place.buffer = AddBuffer(plan_, value.name, kept, Bytes(value), false, memory);
      }
    }
  }

  void AddWorkspace(PlannedOp& planned) {
    planned.workspace_bytes =
        WorkspaceBytes(program_.graph, plan_.groups, planned.op, plan_.options);
    if (planned.workspace_bytes == 0) return;
    planned.workspace =
        AddBuffer(plan_, absl::StrCat("workspace of ", graph::Name(planned.op.kind)),
                  BufferClass::kWorkspace, planned.workspace_bytes, false);
  }

  StepPlan& plan_;
  Program& program_;
  std::vector<int> last_read_;  // by value: index of the last op that reads it
};

}  // namespace

namespace {

Memory MemoryOfState(const PlanOptions& options) {
  return options.offload_optimizer ? Memory::kHost : Memory::kDevice;
}

// Where master, m, v and scales lie: each in memory of its own or, where they are on disk, in what
// groups of the same turn share.
class PersistentStates {
 public:
  explicit PersistentStates(StepPlan& plan) : plan_(plan) {
    if (!plan.options.offload_disk) return;
    int updated = 0;
    for (FlatGroup& group : plan.groups)
      group.disk_turn = group.frozen ? 0 : updated++ % kDiskTurns;
  }

  // States of a group in the order of StatesOf.
  BufferId Add(const FlatGroup& group, absl::string_view kind, int64_t bytes) {
    if (group.disk_turn < 0) {
      return AddPersistent(plan_, absl::StrCat(kind, " of ", group.name), BufferClass::kOptimizer,
                           bytes, MemoryOfState(plan_.options));
    }
    const std::string name = absl::StrCat(kind, " on the host, turn ", group.disk_turn);
    BufferId& buffer = shared_.try_emplace(name, kNoBuffer).first->second;
    if (buffer == kNoBuffer) {
      buffer = AddPersistent(plan_, name, BufferClass::kOptimizer, 0, Memory::kHost);
    }
    const int64_t on_disk = DiskBytes(bytes);
    plan_.buffers[buffer].bytes = std::max(plan_.buffers[buffer].bytes, on_disk);
    const auto index = static_cast<int32_t>(&group - plan_.groups.data());
    plan_.disk_regions.push_back({.group = index, .buffer = buffer, .bytes = on_disk});
    plan_.disk_bytes += on_disk;
    return buffer;
  }

 private:
  StepPlan& plan_;
  std::map<std::string, BufferId> shared_;
};

// Those of its optimizer.
void AddOptimizerStates(FlatGroup& group, PersistentStates& states) {
  const optim::OptimizerDefinition& definition = optim::DefinitionOf(group.optimizer);
  const int64_t item = definition.quantized ? 1 : ByteSize(group.state_dtype);
  for (int i = 0; i < definition.StateCount(); ++i) {
    const char* kind = definition.states[i];
    group.state_buffers[i] = states.Add(group, kind, group.shard_elements * item);
    if (!definition.quantized) continue;
    const int64_t scales = group.shard_elements / kQuantizedBlock * ByteSize(DType::kF32);
    group.scale_buffers[i] = states.Add(group, absl::StrCat(kind, ".scale"), scales);
  }
}

void AddFactors(StepPlan& plan, FlatGroup& group) {
  const FactorLayout layout = LayOutFactors(group);
  if (layout.matrices.empty()) return;
  const int64_t size = ByteSize(DType::kF32);
  group.error_buffer = AddPersistent(plan, absl::StrCat("error of ", group.name),
                                     BufferClass::kOptimizer, group.padded_elements * size);
  group.left_buffer = AddBuffer(plan, absl::StrCat("left factors of ", group.name),
                                BufferClass::kCommunication, layout.left_elements * size, false);
  const bool warm = plan.options.powersgd_warm;
  group.right_buffer = AddBuffer(plan, absl::StrCat("right factors of ", group.name),
                                 warm ? BufferClass::kOptimizer : BufferClass::kCommunication,
                                 layout.right_elements * size, warm);
}

void AddStates(StepPlan& plan) {
  PersistentStates states(plan);
  for (FlatGroup& group : plan.groups) {
    const bool on_the_host = plan.options.offload_optimizer && !group.frozen;
    const bool beside = plan.options.HasMasters() && group.master_dtype == DType::kF32;
    if (beside || on_the_host) {
      group.master_buffer =
          states.Add(group, "master", group.shard_elements * ByteSize(DType::kF32));
    }
    if (group.frozen) continue;
    AddOptimizerStates(group, states);
    if (plan.options.averages) {
      group.average_buffer =
          states.Add(group, "average", group.shard_elements * ByteSize(DType::kF32));
    }
    if (plan.options.outer_every > 0) {
      const int64_t bytes = group.shard_elements * ByteSize(DType::kF32);
      group.anchor_buffer = states.Add(group, "anchor", bytes);
      group.outer_momentum_buffer = states.Add(group, "outer momentum", bytes);
    }
    AddFactors(plan, group);
  }
}

// The host's side of offloaded updates: gradients in, parameters out. While a group's parameters
// are copied the next one's are made, so two buffers in turn are enough.
void AddHostBuffers(StepPlan& plan) {
  plan.host_scalars = AddPersistent(plan, "scalars on the host", BufferClass::kCommunication,
                                    ByteSize(DType::kF64) * plan.ReducedScalars(), Memory::kHost);
  const int64_t compute_size = ByteSize(plan.options.compute_dtype);
  const bool copies = plan.options.compute_dtype != DType::kF32;
  BufferId turns[2] = {kNoBuffer, kNoBuffer};
  int turn = 0;
  for (FlatGroup& group : plan.groups) {
    if (group.frozen) continue;
    group.host_gradient_buffer = AddPersistent(
        plan, absl::StrCat("gradients of ", group.name, " on the host"), BufferClass::kGradients,
        group.shard_elements * ByteSize(DType::kF32), Memory::kHost);
    if (!copies) continue;
    BufferId& buffer = turns[turn++ % 2];
    if (buffer == kNoBuffer) {
      buffer = AddPersistent(plan, absl::StrCat("parameters on the host, turn ", turn),
                             BufferClass::kCommunication, 0, Memory::kHost);
    }
    int64_t& bytes = plan.buffers[buffer].bytes;
    bytes = std::max(bytes, group.shard_elements * compute_size);
    group.host_parameter_buffer = buffer;
  }
}

// What lives during the update only.
void AddUpdateBuffers(StepPlan& plan) {
  int64_t norms = 0;
  for (FlatGroup& group : plan.groups) {
    if (group.frozen) continue;
    if (group.Needs() == optim::StepNeeds::kWholeMatrices) {
      group.update_buffer =
          AddBuffer(plan, absl::StrCat("update of ", group.name), BufferClass::kCommunication,
                    group.padded_elements * ByteSize(DType::kF32), false);
    }
    if (group.Needs() == optim::StepNeeds::kTensorNorms)
      norms += static_cast<int64_t>(group.parameters.size());
  }
  if (norms == 0) return;
  plan.update_norms = AddBuffer(plan, "norms of updates", BufferClass::kCommunication,
                                norms * 2 * ByteSize(DType::kF64), false);
}

void AddScalingBuffers(StepPlan& plan) {
  const auto tensors = static_cast<int64_t>(plan.train.graph.scalings.size());
  if (tensors == 0) return;
  plan.scalings = AddPersistent(plan, "scalings of 8-bit tensors", BufferClass::kParameters,
                                tensors * kScalingBytes);
  plan.amaxes = AddPersistent(plan, "largest magnitudes of 8-bit tensors",
                              BufferClass::kCommunication, tensors * kAmaxBytes);
  plan.gathered_amaxes =
      AddBuffer(plan, "largest magnitudes of all ranks", BufferClass::kCommunication,
                plan.options.world * tensors * ByteSize(DType::kF32), false);
}

}  // namespace

void AddPersistentBuffers(StepPlan& plan, bool training) {
  const int64_t f32_size = ByteSize(DType::kF32);
  for (FlatGroup& group : plan.groups) {
    const int64_t held =
        plan.options.ShardsParameters() ? group.shard_elements : group.padded_elements;
    group.parameter_buffer =
        AddPersistent(plan, absl::StrCat("parameters of ", group.name), BufferClass::kParameters,
                      held * ByteSize(group.parameter_dtype));
  }
  const int64_t statistics = LayOutStatistics(plan.evaluate.graph).bytes;
  if (statistics > 0) {
    plan.statistics =
        AddPersistent(plan, "running statistics", BufferClass::kParameters, statistics);
  }
  plan.scalars = AddPersistent(
      plan, "scalars", BufferClass::kCommunication,
      ByteSize(DType::kF64) * (plan.ReducedScalars() + static_cast<int64_t>(plan.groups.size())));
  if (!training) return;
  const bool passes = plan.options.GradientsPass();
  for (FlatGroup& group : plan.groups) {
    if (group.frozen) continue;
    group.gradient_buffer =
        AddBuffer(plan, absl::StrCat("gradients of ", group.name),
                  passes ? BufferClass::kCommunication : BufferClass::kGradients,
                  group.padded_elements * f32_size, GradientsPersist(group, plan.options));
    if (!passes) continue;
    group.gradient_shard_buffer = AddBuffer(
        plan, absl::StrCat("gradient shard of ", group.name), BufferClass::kGradients,
        group.shard_elements * ByteSize(plan.options.grad_dtype), plan.options.MicroSteps() > 1);
  }
  AddStates(plan);
  AddUpdateBuffers(plan);
  if (plan.options.offload_optimizer) AddHostBuffers(plan);
  AddScalingBuffers(plan);
}

void AssignBuffers(StepPlan& plan, Program& program) { BufferAssignment(plan, program).Run(); }

}  // namespace milepost::plan
