// What users type about jobs besides their names. Pure.
#ifndef MILEPOST_CLIENT_CLI_JOB_ARGUMENTS_H_
#define MILEPOST_CLIENT_CLI_JOB_ARGUMENTS_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/overrides.h"
#include "common/spec/parse.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {

// "team=vision" -> {"team", "vision"}.
absl::StatusOr<std::pair<std::string, std::string>> ParseLabel(const std::string& text);

// Puts "key=value" into the labels, and takes "key-" out.
absl::Status ChangeLabels(const std::vector<std::string>& texts,
                          google::protobuf::Map<std::string, std::string>* labels);

// "team=vision", "team!=vision", "team" (there is one) or "!team" (there is none); several of them
// with commas between.
absl::StatusOr<std::vector<v1::LabelRequirement>> ParseSelector(const std::string& text);

// "running" -> JOB_STATE_RUNNING, in any case. "active": all that have not ended; "ended": the
// others.
absl::StatusOr<std::vector<v1::JobState>> ParseState(const std::string& text);

// What ParseState knows: "active", "ended", "queued", ...
std::vector<std::string> JobStateNames();

// By "loss" or "validation" loss, the least first and those without one last; "newest": as they
// are.
void SortJobs(const std::string& order, std::vector<v1::Job>* jobs);

// {"train.optimizer.lr=1e-4,3e-4 train.seed=1,2"} -> four elements, the last path's values changing
// fastest. Values stand as they do in YAML: commas within brackets, braces and quotes separate
// nothing. INVALID_ARGUMENT when it is not of that form, or has more than 1000 elements.
absl::StatusOr<std::vector<v1::ArrayElement>> ExpandArray(const std::vector<std::string>& texts);

// Where a spec comes from: a file, laid over a template, and fields that count before both.
struct SpecSource {
  std::string path;                         // empty: the template alone
  std::optional<SpecTemplate> base;         // none: the file alone
  std::vector<std::string> overrides = {};  // "path=value"
};
// As it is written.
absl::StatusOr<v1::JobSpec> ReadSpec(const SpecSource& source);
// Normalised and checked.
absl::StatusOr<v1::JobSpec> LoadSpec(const SpecSource& source);
absl::StatusOr<Overrides> ParseOverrides(const std::vector<std::string>& texts);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_JOB_ARGUMENTS_H_
