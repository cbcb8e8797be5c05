// Which link a collective crosses, and how long it takes alone.
//
//   const double seconds = CollectiveSeconds(op.kind, op.wire_bytes, plan.options, profile);
//
// Tensor ranks are neighbours, and data ranks with the same tensor rank are `tensor` apart. A group
// within a host uses the host's links. Across hosts every rank uses its own part of the network, so
// that a group sends as many parts' bytes as it has ranks on a host; the host with the fewest of
// them holds up the others. Pure.
#ifndef MILEPOST_ENGINE_PLAN_ESTIMATES_LINKS_H_
#define MILEPOST_ENGINE_PLAN_ESTIMATES_LINKS_H_

#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// The ranks that take part in a collective, and how many of them are on the host that has fewest.
struct Participants {
  int ranks = 1;
  int on_a_host = 1;
};

// `ranks_per_host`: 0: all of them are on one. `of_experts`: on parameters of some experts, which
// fewer ranks have.
Participants ParticipantsOf(graph::OpKind kind, const PlanOptions& options, int ranks_per_host,
                            bool of_experts = false);

// How many of a stage's data ranks a host has at least, each by one of its tensor ranks.
int DataRanksOnAHost(const PlanOptions& options, int ranks_per_host);

// `wire_bytes`: that a rank sends. 0 seconds where it sends nothing.
double CollectiveSeconds(graph::OpKind kind, double wire_bytes, const PlanOptions& options,
                         const DeviceProfile& profile, bool of_experts = false);

// How much of the collective costs the computation beside it nothing: DeviceProfile::overlap. A
// CPU's says what it is within a host, where the cores that compute move the bytes. A collective
// between hosts may wait for their network: then the cores are busy for a part of its time only.
double OverlapOf(graph::OpKind kind, const PlanOptions& options, const DeviceProfile& profile,
                 bool of_experts = false);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_ESTIMATES_LINKS_H_
