#include "client/cli/stored_job.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/api/clients.h"

namespace milepost::client {
namespace {

constexpr char kNotRunning[] = "not running";

}  // namespace

bool MarkNotRunning(v1::Job* job) {
  if (IsTerminal(job->state()) || job->state() == v1::JOB_STATE_SUSPENDED) return false;
  const int64_t step = job->progress().step();
  job->set_reason_detail(step > 0 ? absl::StrCat(kNotRunning, "; last seen at step ", step)
                                  : kNotRunning);
  job->clear_reason();
  job->clear_placements();
  job->clear_stragglers();
  const bool leaves =
      job->state() == v1::JOB_STATE_SUSPENDING || job->state() == v1::JOB_STATE_CANCELLING;
  if (!leaves) job->set_state(v1::JOB_STATE_QUEUED);
  return true;
}

std::string NotRunningText(const std::vector<v1::Job>& marked, const std::string& flags) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names;
  std::vector<std::string> arguments;
  size_t more = 0;
  for (auto job = marked.rbegin(); job != marked.rend(); ++job) {
    if (!absl::StartsWith(job->reason_detail(), kNotRunning)) continue;
    if (names.size() == kShown) {
      ++more;
      continue;
    }
    const int64_t step = job->progress().step();
    names.push_back(
        absl::StrCat(job->name(), step > 0 ? absl::StrCat(" (last seen at step ", step, ")") : ""));
    arguments.push_back(absl::StrCat(" --job ", job->name()));
  }
  if (names.empty()) return "";
  if (more > 0) names.push_back(absl::StrCat(more, " more"));
  return absl::StrCat(absl::StrJoin(names, ", "), names.size() == 1 ? " is" : " are",
                      " not running; to go on: milepost run", absl::StrJoin(arguments, ""), flags,
                      more > 0 ? ", then the others: milepost job list" : "");
}

}  // namespace milepost::client
