// Sets single fields of a job spec by their paths: `--set train.optimizer.lr=1e-4`.
//
//   Overrides overrides;
//   MP_ASSIGN_OR_RETURN(*overrides.Add(), ParseOverride("train.optimizer.lr=1e-4"));
//   MP_RETURN_IF_ERROR(ApplyOverrides(overrides, "--set", &spec));
//   NormalizeJobSpec(&spec);  // then check it
//
// The value is written as in YAML behind the colon, on one line: `bf16`, `90m`, `auto`, `[jobs/1]`,
// `{layers: 2, width: 64}`. `null` removes the field, which then has its default again. A list is
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

// Parses "path=value".
absl::StatusOr<v1::SpecOverride> ParseOverride(absl::string_view text);

// Changes the spec, which need not be normalised. It applies all overrides in order, or none:
// INVALID_ARGUMENT says "where: path: what is wrong".
//
// The three numbers of train.batch, resources.ranks and resources.mesh depend on each other. When
// one of them is overridden, accumulation is cleared, unless it is overridden too. When
// accumulation is overridden, global is cleared, unless it is overridden too. NormalizeJobSpec then
// derives the cleared number.
absl::Status ApplyOverrides(const Overrides& overrides, absl::string_view where, v1::JobSpec* spec);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_OVERRIDES_H_
