#include "coordinator/core/job_filter.h"

#include <google/protobuf/util/field_mask_util.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "common/spec/labels.h"
#include "common/spec/scheduling.h"
#include "coordinator/core/state.h"

namespace milepost::coordinator {
namespace {

constexpr int kMostStates = 64;
constexpr size_t kMostPrefixBytes = 63;
constexpr int kMostFields = 100;

bool Holds(const v1::LabelRequirement& requirement, const v1::Job& job) {
  const auto found = job.labels().find(requirement.key());
  const bool there = found != job.labels().end();
  switch (requirement.operator_()) {
    case v1::LabelRequirement::OPERATOR_EQUALS:
      return there && found->second == requirement.value();
    case v1::LabelRequirement::OPERATOR_NOT_EQUALS:
      return !there || found->second != requirement.value();
    case v1::LabelRequirement::OPERATOR_EXISTS:
      return there;
    case v1::LabelRequirement::OPERATOR_ABSENT:
      return !there;
    default:
      return false;  // CheckFilter refuses it
  }
}

absl::Status CheckRequirement(const v1::LabelRequirement& requirement, int index) {
  const std::string field = absl::StrCat("label_requirements[", index, "]");
  if (!IsLabelKey(requirement.key())) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".key: not the key of a label (letters, digits, '-', '_', '.', '/')"));
  }
  const auto op = requirement.operator_();
  if (op < v1::LabelRequirement::OPERATOR_EQUALS || op > v1::LabelRequirement::OPERATOR_ABSENT) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".operator: must be EQUALS, NOT_EQUALS, EXISTS or ABSENT"));
  }
  if (!IsLabelValue(requirement.value())) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".value: not the value of a label (letters, digits, '-', '_', '.')"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFilter(const v1::ListJobsRequest& request) {
  if (request.states_size() > kMostStates) {
    return absl::InvalidArgumentError(absl::StrCat("states: at most ", kMostStates));
  }
  for (const int state : request.states()) {
    if (v1::JobState_IsValid(state) && state != v1::JOB_STATE_UNSPECIFIED) continue;
    return absl::InvalidArgumentError(absl::StrCat("states: ", state, " is not a job's state"));
  }
  if (!request.queue().empty() && !IsQueueId(request.queue())) {
    return absl::InvalidArgumentError(
        "queue: the name of a queue has 1 to 63 letters, digits, '-', '_' and '.'");
  }
  if (request.name_prefix().size() > kMostPrefixBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("name_prefix: at most ", kMostPrefixBytes, " characters"));
  }
  if (!request.array().empty() && ArrayNumber(request.array()) == 0) {
    return absl::InvalidArgumentError("array: expected a name such as arrays/12");
  }
  if (request.label_requirements_size() > kMostLabels) {
    return absl::InvalidArgumentError(absl::StrCat("label_requirements: at most ", kMostLabels));
  }
  const auto& fields = request.read_mask().paths();
  if (fields.size() > kMostFields) {
    return absl::InvalidArgumentError(absl::StrCat("read_mask: at most ", kMostFields));
  }
  for (const std::string& field : fields) {
    if (google::protobuf::util::FieldMaskUtil::IsValidPath<v1::Job>(field)) continue;
    return absl::InvalidArgumentError(absl::StrCat("read_mask: a job has no field '", field, "'"));
  }
  for (int i = 0; i < request.label_requirements_size(); ++i) {
    absl::Status status = CheckRequirement(request.label_requirements(i), i);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

bool Matches(const v1::ListJobsRequest& request, const v1::Job& job) {
  const auto& states = request.states();
  if (!states.empty() && std::find(states.begin(), states.end(), job.state()) == states.end()) {
    return false;
  }
  const std::string& queue = job.spec().scheduling().queue();
  if (!request.queue().empty() && request.queue() != (queue.empty() ? kDefaultQueue : queue)) {
    return false;
  }
  if (!request.array().empty() && request.array() != job.array().name()) return false;
  if (!absl::StartsWith(job.spec().name(), request.name_prefix())) return false;
  const auto& requirements = request.label_requirements();
  return std::all_of(requirements.begin(), requirements.end(),
                     [&](const v1::LabelRequirement& one) { return Holds(one, job); });
}

std::string FilterDigest(const v1::ListJobsRequest& request) {
  v1::ListJobsRequest filter = request;
  filter.clear_page_size();
  filter.clear_page_token();
  filter.clear_read_mask();
  // No map is in it: equal requests have equal bytes.
  const std::string bytes = filter.SerializeAsString();
  return absl::StrFormat("%016x", Xxh3(bytes.data(), bytes.size()));
}

}  // namespace milepost::coordinator
