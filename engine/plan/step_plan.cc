#include "engine/plan/step_plan.h"

#include "absl/strings/str_cat.h"

namespace milepost::plan {

const char* Name(BufferClass c) {
  switch (c) {
    case BufferClass::kParameters:
      return "parameters";
    case BufferClass::kGradients:
      return "gradients";
    case BufferClass::kOptimizer:
      return "optimizer";
    case BufferClass::kActivations:
      return "activations";
    case BufferClass::kWorkspace:
      return "workspace";
    case BufferClass::kCommunication:
      return "communication";
    case BufferClass::kInputs:
      return "inputs";
  }
  return "unknown";
}

const char* Name(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "compute";
    case Stream::kCommunication:
      return "communication";
    case Stream::kToHost:
      return "to_host";
    case Stream::kToDevice:
      return "to_device";
    case Stream::kHost:
      return "host";
    case Stream::kStageActivations:
      return "stage_activations";
    case Stream::kStageGradients:
      return "stage_gradients";
    case Stream::kDisk:
      return "disk 0";
    default:
      return stream == DiskStream(1) ? "disk 1" : "disk 2";
  }
}

const char* Name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kOneForwardOneBackward:
      return "1f1b";
    case PipelineSchedule::kZeroBubble:
      return "zero_bubble";
    case PipelineSchedule::kInterleaved:
      return "interleaved";
  }
  return "unknown";
}

std::string InputName(absl::string_view name, int64_t micro_batch) {
  return micro_batch == 0 ? std::string(name) : absl::StrCat(name, ", micro-batch ", micro_batch);
}

int FlatGroup::Alike(const PlanOptions& options) const {
  return divided ? sharers : options.tensor;
}

bool FlatGroup::IsCopy(const PlanOptions& options) const { return shared && options.stage > 0; }

const char* Name(Optimizer optimizer) { return optim::DefinitionOf(optimizer).name; }

std::vector<GroupState> StatesOf(const FlatGroup& group) {
  std::vector<GroupState> states = {
      {.kind = "master", .buffer = group.master_buffer, .dtype = group.master_dtype}};
  const optim::OptimizerDefinition& definition = optim::DefinitionOf(group.optimizer);
  for (int i = 0; i < definition.StateCount() && !group.frozen; ++i) {
    if (group.state_buffers[i] == kNoBuffer) continue;
    const char* kind = definition.states[i];
    const DType dtype = definition.quantized ? DType::kU8 : group.state_dtype;
    states.push_back({.kind = kind, .buffer = group.state_buffers[i], .dtype = dtype});
    if (!definition.quantized) continue;
    states.push_back({.kind = absl::StrCat(kind, ".scale"),
                      .buffer = group.scale_buffers[i],
                      .elements_per_item = kQuantizedBlock});
  }
  if (group.average_buffer != kNoBuffer) {
    states.push_back({.kind = "ema", .buffer = group.average_buffer});
  }
  if (group.Compressed()) states.push_back({.kind = "error", .buffer = group.error_buffer});
  if (group.outer_momentum_buffer != kNoBuffer) {
    states.push_back({.kind = "outer_momentum", .buffer = group.outer_momentum_buffer});
  }
  return states;
}

const char* Name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
    case Recompute::kBudget:
      return "budget";
  }
  return "unknown";
}

}  // namespace milepost::plan
