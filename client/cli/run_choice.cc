#include "client/cli/run_choice.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/api/clients.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"

namespace milepost::client {
namespace {

// What of a changed spec does not reach `job`, which goes on as it was submitted.
void NoteScheduling(const v1::JobSpec& wanted, RunChoice* choice) {
  const v1::Job& job = choice->job;
  if (wanted.scheduling().SerializeAsString() == job.spec().scheduling().SerializeAsString()) {
    return;
  }
  absl::StrAppend(&choice->note, choice->note.empty() ? "" : "; ", job.name(),
                  " keeps its own `scheduling`: milepost job update ", job.name(), " changes it");
}

void DecideSteps(int64_t wanted_steps, RunChoice* choice) {
  const v1::Job& job = choice->job;
  const int64_t steps = job.spec().train().steps();
  if (wanted_steps == steps) return;
  if (wanted_steps > job.progress().step()) {
    choice->new_steps = wanted_steps;
  } else {
    choice->note = absl::StrCat(job.name(), " has already made ", job.progress().step(),
                                " steps; it goes on to its ", steps);
  }
}

// `choice->job` is of this lineage.
void DecideForExisting(const v1::JobSpec& wanted, RunChoice* choice) {
  const v1::Job& job = choice->job;
  const int64_t steps = job.spec().train().steps();
  const int64_t wanted_steps = wanted.train().steps();
  const bool suspended = IsSuspended(job.state());
  if (!suspended && !IsTerminal(job.state())) {
    choice->action = RunChoice::kAttach;
    choice->how = "continuing";
    if (wanted_steps != steps) {
      choice->note = absl::StrCat(job.name(), " goes on to the ", steps,
                                  " steps it was started with; run again afterwards to change "
                                  "train.steps to ",
                                  wanted_steps);
    }
    return NoteScheduling(wanted, choice);
  }
  const bool succeeded = job.state() == v1::JOB_STATE_SUCCEEDED;
  if (EndedEarly(job)) {  // its next attempt would end at once
    choice->action = RunChoice::kDone;
    choice->how = "already finished";
    choice->note = EndedEarlyText(job);
    return;
  }
  if (succeeded && wanted_steps <= steps) {
    choice->action = RunChoice::kDone;
    choice->how = "already finished";
    if (wanted_steps < steps) {
      choice->note =
          absl::StrCat(job.name(), " has made ", steps, " steps, more than the ", wanted_steps,
                       " of the spec; --fresh makes as few, from new "
                       "parameters, as a job of its own");
    }
    return;
  }
  choice->action = RunChoice::kResume;
  choice->how = succeeded ? "extending" : "resuming";
  DecideSteps(wanted_steps, choice);
  NoteScheduling(wanted, choice);
}

// Of a job of another spec: whether it would take slots.
bool IsInTheWay(const v1::Job& job) {
  return !IsTerminal(job.state()) && !IsSuspended(job.state()) &&
         job.state() != v1::JOB_STATE_CANCELLING;
}

// What the job waits for, which neither has succeeded nor runs here; empty: nothing.
std::string AwaitedElsewhere(const v1::Job& job,
                             const std::map<std::string, const v1::Job*>& by_name,
                             const std::map<std::string, bool>& runs) {
  for (const std::string& name : job.spec().scheduling().depends_on()) {
    const auto other = by_name.find(name);
    if (other == by_name.end() || other->second->state() == v1::JOB_STATE_SUCCEEDED) continue;
    const auto waits = runs.find(name);
    if (waits == runs.end() || !waits->second) return name;
  }
  return "";
}

std::string WhyNotHere(const v1::Job& job, const RunSlots& slots,
                       const std::set<std::string>& before,
                       const std::map<std::string, const v1::Job*>& by_name,
                       const std::map<std::string, bool>& runs) {
  if (IsSuspended(job.state())) return "suspended";
  if (before.contains(job.name())) return "there before this run";
  if (job.spec().resources().device() != slots.device) return "for another kind of device";
  const int ranks = LeastRanks(job.spec().resources());
  if (ranks > slots.count) {
    return absl::StrCat("needs ", ranks, " slots, and there are ", slots.count);
  }
  const std::string awaited = AwaitedElsewhere(job, by_name, runs);
  return awaited.empty() ? "" : absl::StrCat("depends on ", awaited, ", which has not succeeded");
}

}  // namespace

bool EndedEarly(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_SUCCEEDED && !job.spec().has_script() &&
         job.spec().train().validation().patience() > 0 &&
         job.progress().step() < job.spec().train().steps();
}

std::string EndedEarlyText(const v1::Job& job) {
  return absl::StrCat(job.name(), " ended after ", job.progress().step(), " of ",
                      job.spec().train().steps(), " steps, as train.validation.patience says; to ",
                      "go on from there: milepost job fork --from ", job.name(),
                      " --set train.validation.patience=0");
}

bool IsSuspended(v1::JobState state) {
  return state == v1::JOB_STATE_SUSPENDED || state == v1::JOB_STATE_SUSPENDING;
}

RunChoice ChooseRun(const v1::JobSpec& normalized, const std::vector<v1::Job>& newest_first,
                    bool fresh) {
  RunChoice choice;
  const std::string lineage = LineageDigest(normalized);
  bool found = false;
  for (const v1::Job& job : newest_first) {
    // With what was left to choose still open, as in the file.
    const v1::JobSpec& submitted = job.has_submitted_spec() ? job.submitted_spec() : job.spec();
    // What a script does may have changed: one that has ended well runs anew.
    const bool over = normalized.has_script() && job.state() == v1::JOB_STATE_SUCCEEDED;
    const bool same = !over && LineageDigest(submitted) == lineage;
    if (same && fresh) {
      choice.replaced.push_back(job);
    } else if (same && !found) {
      found = true;
      choice.job = job;
    } else if (IsInTheWay(job)) {
      choice.set_aside.push_back(job.name());
    }
  }
  if (found) {
    DecideForExisting(normalized, &choice);
  } else {
    choice.how = "started";
  }
  if (choice.action == RunChoice::kDone) choice.set_aside.clear();
  return choice;
}

absl::StatusOr<RunChoice> ChooseJobs(const std::vector<std::string>& names,
                                     const std::vector<v1::Job>& newest_first) {
  RunChoice choice;
  const auto find = [&](const std::string& name) {
    return std::find_if(newest_first.begin(), newest_first.end(),
                        [&](const v1::Job& job) { return job.name() == name; });
  };
  for (const std::string& name : names) {
    const auto found = find(name);
    if (found == newest_first.end()) {
      return absl::NotFoundError(absl::StrCat("there is no job ", name));
    }
    if (name == names.front()) {
      choice.job = *found;
    } else {
      choice.also.push_back(*found);
    }
  }
  const v1::JobState state = choice.job.state();
  const bool ended = IsTerminal(state);
  choice.action = state == v1::JOB_STATE_SUCCEEDED ? RunChoice::kDone
                  : ended || IsSuspended(state)    ? RunChoice::kResume
                                                   : RunChoice::kAttach;
  choice.how = choice.action == RunChoice::kDone     ? "already finished"
               : choice.action == RunChoice::kResume ? "resuming"
                                                     : "continuing";
  for (const v1::Job& job : newest_first) {
    const bool named = std::find(names.begin(), names.end(), job.name()) != names.end();
    if (!named && IsInTheWay(job)) choice.set_aside.push_back(job.name());
  }
  return choice;
}

std::vector<WaitingJob> WaitingJobs(const std::vector<v1::Job>& newest_first, const RunSlots& slots,
                                    const std::set<std::string>& before) {
  std::map<std::string, const v1::Job*> by_name;
  for (const v1::Job& job : newest_first) by_name[job.name()] = &job;
  std::map<std::string, bool> runs;
  std::vector<WaitingJob> waiting;
  // One that depends on a newer one has its turn once that has ended.
  for (auto job = newest_first.rbegin(); job != newest_first.rend(); ++job) {
    if (IsTerminal(job->state()) || job->state() == v1::JOB_STATE_CANCELLING) continue;
    waiting.push_back({*job, WhyNotHere(*job, slots, before, by_name, runs)});
    runs[job->name()] = waiting.back().why.empty();
  }
  return waiting;
}

}  // namespace milepost::client
