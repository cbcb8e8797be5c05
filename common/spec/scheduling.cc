#include "common/spec/scheduling.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace milepost {
namespace {

constexpr int kMostDependencies = 64;
constexpr size_t kMostIdBytes = 63;
constexpr double kLongestTimeLimit = 10.0 * 366 * 86400;

bool IsJobName(absl::string_view name) {
  uint64_t number = 0;
  return absl::ConsumePrefix(&name, "jobs/") && absl::SimpleAtoi(name, &number) && number > 0;
}

}  // namespace

bool IsQueueId(absl::string_view id) {
  return !id.empty() && id.size() <= kMostIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

std::vector<FieldViolation> CheckScheduling(const v1::SchedulingSpec& normalized) {
  std::vector<FieldViolation> violations;
  const auto add = [&](std::string field, std::string message) {
    violations.push_back({std::move(field), std::move(message)});
  };
  if (!IsQueueId(normalized.queue())) {
    add("scheduling.queue",
        "the name of a queue has 1 to 63 letters, digits, '-', '_' and '.'; `milepost queue list` "
        "shows them");
  }
  if (normalized.priority() < kLowestPriority || normalized.priority() > kHighestPriority) {
    add("scheduling.priority", absl::StrCat("must be ", kLowestPriority, " to ", kHighestPriority,
                                            ", not ", normalized.priority()));
  }
  if (!(normalized.time_limit() >= 0 && normalized.time_limit() <= kLongestTimeLimit)) {
    add("scheduling.time_limit",
        absl::StrCat("must be 0 (none) to ten years, not ", normalized.time_limit(), " seconds"));
  }
  if (normalized.depends_on_size() > kMostDependencies) {
    add("scheduling.depends_on", absl::StrCat("at most ", kMostDependencies, " jobs"));
  }
  std::set<std::string> seen;
  for (int i = 0; i < std::min(normalized.depends_on_size(), kMostDependencies); ++i) {
    const std::string& name = normalized.depends_on(i);
    const std::string field = absl::StrCat("scheduling.depends_on[", i, "]");
    if (!IsJobName(name)) {
      add(field, "expected a job's name such as jobs/12; `milepost job list` shows them");
    } else if (!seen.insert(name).second) {
      add(field, absl::StrCat(name, " is there already"));
    }
  }
  return violations;
}

}  // namespace milepost
