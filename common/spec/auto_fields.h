// Fields that a spec leaves to the planner. `train.batch.micro`, `train.zero.stage`,
// `train.recompute` and `resources.mesh.tensor` may be `auto`. With `train.memory: low` the planner
// may choose to store less.
#ifndef MILEPOST_COMMON_SPEC_AUTO_FIELDS_H_
#define MILEPOST_COMMON_SPEC_AUTO_FIELDS_H_

#include "milepost/v1/job_spec.pb.h"

namespace milepost {

// The value of `auto` in a numeric field.
inline constexpr int kAuto = -1;

inline bool MicroIsAuto(const v1::JobSpec& spec) { return spec.train().batch().micro() == kAuto; }
inline bool StageIsAuto(const v1::JobSpec& spec) { return spec.train().zero().stage() == kAuto; }
inline bool RecomputeIsAuto(const v1::JobSpec& spec) {
  return spec.train().recompute() == v1::RECOMPUTE_AUTO;
}
inline bool TensorIsAuto(const v1::JobSpec& spec) {
  return spec.resources().mesh().tensor() == kAuto;
}
inline bool MemoryIsLow(const v1::JobSpec& spec) {
  return spec.train().memory() == v1::MEMORY_USE_LOW;
}
inline bool HasAutoFields(const v1::JobSpec& spec) {
  return MicroIsAuto(spec) || StageIsAuto(spec) || RecomputeIsAuto(spec) || TensorIsAuto(spec) ||
         MemoryIsLow(spec);
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_AUTO_FIELDS_H_
