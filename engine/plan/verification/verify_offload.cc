// Verification, part 3: gradients, scalars, parameters and state between a device, its host and a
// disk.
#include "common/status_macros.h"
#include "engine/plan/verification/step_simulation.h"

namespace milepost::plan {

// What the host updates by is there.
absl::Status StepSimulation::CheckOnHost(int index) const {
  if (plan_.groups[index].disk_turn >= 0 && !HasState(index)) {
    return Violation("the state of ", plan_.groups[index].name,
                     " is not read, or its bytes are reused");
  }
  if (valid_[HostGradient(index)] && valid_[HostScalars()]) return absl::OkStatus();
  return Violation("the host has not got the gradient of ", plan_.groups[index].name,
                   " and the scalars, or their bytes are reused");
}

absl::Status StepSimulation::GradientToHost(int index) {
  MP_RETURN_IF_ERROR(CheckReduced(index));
  if (!plan_.groups[index].Offloaded()) return Violation("is not offloaded");
  HoldBytes(HostGradient(index), GroupBytes(plan_.groups[index].host_gradient_buffer));
  ++groups_[index].copies;
  return absl::OkStatus();
}

absl::Status StepSimulation::ScalarsToHost() {
  if (scalar_reductions_ != 1) return Violation("the scalars are not reduced");
  if (plan_.host_scalars == kNoBuffer || valid_[HostScalars()]) {
    return Violation("there is no place for the scalars on the host, or they are there");
  }
  HoldBytes(HostScalars(), GroupBytes(plan_.host_scalars));
  return absl::OkStatus();
}

// The group's state is in its place on the host.
bool StepSimulation::HasState(int index) const {
  int state = 0;
  for (const GroupState& s : StatesOf(plan_.groups[index])) {
    if (s.buffer != kNoBuffer && !valid_[State(index, state)]) return false;
    ++state;
  }
  return true;
}

absl::Status StepSimulation::ReadState(int index) {
  const FlatGroup& group = plan_.groups[index];
  if (group.disk_turn < 0 || groups_[index].reads + groups_[index].updates > 0) {
    return Violation("the state of ", group.name, " is read once too often, or is on no disk");
  }
  int state = 0;
  for (const GroupState& s : StatesOf(group)) {
    if (s.buffer != kNoBuffer) HoldBytes(State(index, state), GroupBytes(s.buffer));
    ++state;
  }
  ++groups_[index].reads;
  return absl::OkStatus();
}

absl::Status StepSimulation::WriteState(int index) {
  const FlatGroup& group = plan_.groups[index];
  if (group.disk_turn < 0 || groups_[index].updates != 1 || !HasState(index)) {
    return Violation("the updated state of ", group.name,
                     " is not there to be written, or its bytes are reused");
  }
  ++groups_[index].writes;
  return absl::OkStatus();
}

absl::Status StepSimulation::ParametersToDevice(int index) {
  const FlatGroup& group = plan_.groups[index];
  const bool staged = group.host_parameter_buffer != kNoBuffer;
  // What is not staged is the master.
  const bool there = staged                 ? valid_[HostParameters(index)]
                     : group.disk_turn >= 0 ? valid_[State(index, 0)]
                                            : true;
  if (groups_[index].updates != 1 || !there) {
    return Violation("the host has no updated parameters of ", group.name);
  }
  ++groups_[index].returns;
  return absl::OkStatus();
}

}  // namespace milepost::plan
