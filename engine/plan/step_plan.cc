#include "engine/plan/step_plan.h"

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
    case Stream::kDisk:
      return "disk 0";
    default:
      return stream == DiskStream(1) ? "disk 1" : "disk 2";
  }
}

const char* Name(Optimizer optimizer) { return optim::DefinitionOf(optimizer).name; }

std::vector<GroupState> StatesOf(const FlatGroup& group) {
  std::vector<GroupState> states = {
      {.kind = "master", .buffer = group.master_buffer, .dtype = group.master_dtype}};
  if (IsQuantized(group.optimizer) && !group.frozen) {
    const auto codes = [](const char* kind, BufferId buffer) {
      return GroupState{.kind = kind, .buffer = buffer, .dtype = DType::kU8};
    };
    const auto scales = [](const char* kind, BufferId buffer) {
      return GroupState{.kind = kind, .buffer = buffer, .elements_per_item = kQuantizedBlock};
    };
    states.insert(states.end(),
                  {codes("m", group.m_buffer), scales("m.scale", group.m_scale_buffer),
                   codes("v", group.v_buffer), scales("v.scale", group.v_scale_buffer)});
    return states;
  }
  if (group.m_buffer != kNoBuffer) {
    states.push_back({.kind = "m", .buffer = group.m_buffer, .dtype = group.state_dtype});
  }
  if (group.v_buffer != kNoBuffer) {
    states.push_back({.kind = "v", .buffer = group.v_buffer, .dtype = group.state_dtype});
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
