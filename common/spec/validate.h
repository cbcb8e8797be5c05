// The meaning of a job spec: its defaults and its rules. They are the same in the client and in the
// coordinator.
//
//   NormalizeJobSpec(&spec);
//   MP_RETURN_IF_ERROR(ValidateJobSpec(spec));
//
// Pure and thread-safe. It opens no file: whether the data exists and fits is checked where it is
// read.
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

inline constexpr int kMostValidationSets = 16;
inline constexpr int64_t kMostSteps = 1'000'000'000;  // the limit of train.steps

// The default of train.max_skipped_steps.
inline constexpr int64_t kDefaultSkippedSteps = 20;

struct FieldViolation {
  std::string field;    // "train.batch.micro"
  std::string message;  // what was expected, what was given, what to do

  friend bool operator==(const FieldViolation&, const FieldViolation&) = default;
};

// Fills in every absent field with the default in job_spec.proto, and derives the third number of
// train.batch from the other two. Never fails: what cannot be derived stays absent, and
// CheckJobSpec says why. Idempotent.
void NormalizeJobSpec(v1::JobSpec* spec);

// Every broken rule of a normalised spec, in the order of the proto's fields. Empty: the spec is
// valid.
std::vector<FieldViolation> CheckJobSpec(const v1::JobSpec& normalized);

// INVALID_ARGUMENT has one line "field: message" for each violation, and a google.rpc.BadRequest
// (common/error_details.h). If there are very many, it has only the first ones.
absl::Status ValidateJobSpec(const v1::JobSpec& normalized);

// Whether each attempt reads train.init_from, also one that goes on from a checkpoint: adapters and
// preferences need the parameters that the job began with, and no checkpoint has them.
bool KeepsInitialWeights(const v1::JobSpec& spec);

// 32 hex digits of the whole normalised spec. They are equal if and only if the specs are.
std::string SpecDigest(const v1::JobSpec& normalized);

// Digest of what a trainer's state depends on: the model without the weights of its heads, the
// optimizer's type and state dtype, the seed and the sequence length. A checkpoint can be restored
// into any spec with its digest, even if ranks, stage, batch, steps, lr or paths differ.
std::string StateDigest(const v1::JobSpec& normalized);

// Digest of what makes two specs the same job. It leaves out `name`, `scheduling`, `train.steps`,
// `train.schedule.decay_steps`, `resources.device_model` and `resources.pool`. So a job that runs
// for longer, or elsewhere, stays the same job.
std::string LineageDigest(const v1::JobSpec& normalized);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_VALIDATE_H_
