// Parses what users type about jobs besides their names. Pure, except for ReadSpec and LoadSpec.
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

// Adds "key=value" to the labels, and removes the label of "key-".
absl::Status ChangeLabels(const std::vector<std::string>& texts,
                          google::protobuf::Map<std::string, std::string>* labels);

// Parses "team=vision", "team!=vision", "team" (the label exists) or "!team" (it does not exist).
// Several are separated by commas.
absl::StatusOr<std::vector<v1::LabelRequirement>> ParseSelector(const std::string& text);

// "running" -> JOB_STATE_RUNNING, in upper or lower case. "active" gives all states that have not
// ended, "ended" the others.
absl::StatusOr<std::vector<v1::JobState>> ParseState(const std::string& text);

// The words that ParseState knows: "active", "ended", "queued", ...
std::vector<std::string> JobStateNames();

// Sorts by "loss" or "validation" loss: lowest first, and jobs without one last. "newest" keeps the
// order.
void SortJobs(const std::string& order, std::vector<v1::Job>* jobs);

// {"train.optimizer.lr=1e-4,3e-4 train.seed=1,2"} -> four elements. The last path's values change
// fastest. Values are written as in YAML: commas within brackets, braces and quotes do not
// separate. INVALID_ARGUMENT: the form is wrong, or there are more than 1000 elements.
absl::StatusOr<std::vector<v1::ArrayElement>> ExpandArray(const std::vector<std::string>& texts);

// The source of a spec: a file, laid over a template, and fields that override both.
struct SpecSource {
  std::string path;                         // empty: only the template
  std::optional<SpecTemplate> base;         // absent: only the file
  std::vector<std::string> overrides = {};  // "path=value"
};
class ScriptFiles;
// Reads the spec as it is written, with the model of model.hugging_face in its place
// (hugging_face_model.h), and with script.files packed into `files`, for whoever submits it
// (script_files.h). Null: they are packed and forgotten.
absl::StatusOr<v1::JobSpec> ReadSpec(const SpecSource& source, ScriptFiles* files = nullptr);
// Reads the spec, normalises and checks it.
absl::StatusOr<v1::JobSpec> LoadSpec(const SpecSource& source, ScriptFiles* files = nullptr);
absl::StatusOr<Overrides> ParseOverrides(const std::vector<std::string>& texts);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_JOB_ARGUMENTS_H_
