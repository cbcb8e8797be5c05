#include "client/cli/run_choice.h"

#include "absl/strings/str_cat.h"
#include "client/api/clients.h"
#include "common/spec/validate.h"

namespace milepost::client {
namespace {

// `choice->job` is of this lineage.
void DecideForExisting(int64_t wanted_steps, RunChoice* choice) {
  const v1::Job& job = choice->job;
  const int64_t steps = job.spec().train().steps();
  if (!IsTerminal(job.state())) {
    choice->action = RunChoice::kAttach;
    choice->how = "continuing";
    if (wanted_steps != steps) {
      choice->note = absl::StrCat(job.name(), " goes on to the ", steps,
                                  " steps it was started with; run again afterwards to change "
                                  "train.steps to ",
                                  wanted_steps);
    }
    return;
  }
  const bool succeeded = job.state() == v1::JOB_STATE_SUCCEEDED;
  if (succeeded && wanted_steps <= steps) {
    choice->action = RunChoice::kDone;
    choice->how = "already finished";
    return;
  }
  choice->action = RunChoice::kResume;
  choice->how = succeeded ? "extending" : "resuming";
  if (wanted_steps == steps) return;
  if (wanted_steps > job.progress().step()) {
    choice->new_steps = wanted_steps;
  } else {
    choice->note = absl::StrCat(job.name(), " has already made ", job.progress().step(),
                                " steps; it goes on to its ", steps);
  }
}

}  // namespace

RunChoice ChooseRun(const v1::JobSpec& normalized, const std::vector<v1::Job>& newest_first) {
  RunChoice choice;
  const std::string lineage = LineageDigest(normalized);
  bool found = false;
  for (const v1::Job& job : newest_first) {
    // With what was left to choose still open, as in the file.
    const v1::JobSpec& submitted = job.has_submitted_spec() ? job.submitted_spec() : job.spec();
    if (!found && LineageDigest(submitted) == lineage) {
      found = true;
      choice.job = job;
    } else if (!IsTerminal(job.state())) {
      choice.cancel.push_back(job.name());
    }
  }
  if (found) {
    DecideForExisting(normalized.train().steps(), &choice);
  } else {
    choice.how = "started";
  }
  if (choice.action == RunChoice::kDone) choice.cancel.clear();
  return choice;
}

}  // namespace milepost::client
