// What resources.mesh.tensor: auto, and the other fields that are auto with it, become, and why.
#ifndef MILEPOST_ENGINE_PLAN_FIT_MESH_CHOICE_H_
#define MILEPOST_ENGINE_PLAN_FIT_MESH_CHOICE_H_

#include "absl/status/statusor.h"
#include "engine/plan/fit/fit.h"

namespace milepost::plan {

// ResolveAuto (fit.h) for a spec whose number of tensor ranks is auto, in a place of known memory.
absl::StatusOr<Resolved> ResolveMesh(const v1::JobSpec& spec, const RankPlace& place);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_MESH_CHOICE_H_
