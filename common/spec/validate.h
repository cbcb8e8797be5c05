// The meaning of a job spec: its defaults and its rules, the same in the client and the
// coordinator.
//
//   NormalizeJobSpec(&spec);
//   MP_RETURN_IF_ERROR(ValidateJobSpec(spec));
//
// Pure and thread-safe: no file is opened (that the data exists and fits is found where it is
// read).
#ifndef MILEPOST_COMMON_SPEC_VALIDATE_H_
#define MILEPOST_COMMON_SPEC_VALIDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace milepost::v1 {
class JobSpec;
}

namespace milepost {

inline constexpr int64_t kMostSteps = 1'000'000'000;  // of train.steps

// Of train.max_skipped_steps.
inline constexpr int64_t kDefaultSkippedSteps = 20;

struct FieldViolation {
  std::string field;    // "train.batch.micro"
  std::string message;  // what was expected, what was given, what to do

  friend bool operator==(const FieldViolation&, const FieldViolation&) = default;
};

// Fills in every absent field with the default that job_spec.proto gives, and derives the third of
// train.batch from the other two. Never fails: what cannot be derived stays absent, and
// CheckJobSpec says why. Idempotent.
void NormalizeJobSpec(v1::JobSpec* spec);

// Every broken rule of a normalised spec, in the order of the proto's fields; empty when it is
// valid.
std::vector<FieldViolation> CheckJobSpec(const v1::JobSpec& normalized);

// OK, or INVALID_ARGUMENT with one "field: message" line per violation and a
// google.rpc.BadRequest (common/error_details.h); of very many, the first.
absl::Status ValidateJobSpec(const v1::JobSpec& normalized);

// 32 hex digits over the whole normalised spec: equal if and only if the specs are.
std::string SpecDigest(const v1::JobSpec& normalized);

// Over what a trainer's state depends on only: model, optimizer type, seed and sequence length. A
// checkpoint can be restored into any spec with its digest: other ranks, stage, batch, steps, lr,
// paths.
std::string StateDigest(const v1::JobSpec& normalized);

// Over all but `name` and `train.steps`: specs that are the same job, perhaps run for longer.
std::string LineageDigest(const v1::JobSpec& normalized);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_VALIDATE_H_
