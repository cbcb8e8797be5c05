// Single fields of a job spec, set by their paths: `--set train.optimizer.lr=1e-4`.
//
//   Overrides overrides;
//   MP_ASSIGN_OR_RETURN(*overrides.Add(), ParseOverride("train.optimizer.lr=1e-4"));
//   MP_RETURN_IF_ERROR(ApplyOverrides(overrides, "--set", &spec));
//   NormalizeJobSpec(&spec);  // and check it
//
// The value is what YAML has behind the colon, in one line: `bf16`, `90m`, `auto`, `[jobs/1]`,
// `{layers: 2, width: 64}`. `null` takes the field out, so that it has its default again. A list is
// given as a whole. Pure.
#ifndef MILEPOST_COMMON_SPEC_OVERRIDES_H_
#define MILEPOST_COMMON_SPEC_OVERRIDES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

inline constexpr int kMostOverrides = 100;

using Overrides = google::protobuf::RepeatedPtrField<v1::SpecOverride>;

// "path=value".
absl::StatusOr<v1::SpecOverride> ParseOverride(absl::string_view text);

// Changes the spec, which need not be normalised: all of them in order, or nothing and
// INVALID_ARGUMENT "where: path: what is wrong". Where one of train.batch's numbers or
// resources.ranks is given, one that is not is taken out, to be derived anew: accumulation, or
// where that is given, global.
absl::Status ApplyOverrides(const Overrides& overrides, absl::string_view where, v1::JobSpec* spec);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_OVERRIDES_H_
