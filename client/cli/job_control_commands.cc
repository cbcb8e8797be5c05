// milepost job cancel, delete, suspend, update, resume.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/job_answer.h"
#include "client/cli/job_arguments.h"
#include "client/cli/progress_view.h"
#include "client/cli/run_choice.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

// Does `act` with each of the jobs, in order, until one fails, and prints and tells what became of
// it.
int ForEachJob(const GlobalOptions& global, const std::vector<std::string>& typed,
               WhenStopped when_stopped,
               const std::function<absl::StatusOr<v1::Job>(const Access&, const std::string&)>& act,
               const std::function<void(const Access&, const v1::Job&)>& tell) {
  const auto access = Access::Open(global, when_stopped);
  if (!access.ok()) return Fail(access.status());
  const auto names = ResolveJobs(access->jobs(), typed);
  if (!names.ok()) return Fail(names.status());
  for (const std::string& name : *names) {
    const auto job = act(*access, name);
    if (!job.ok()) return Fail(job.status());
    PrintActedOn(global, *job);
    tell(*access, *job);
  }
  return kExitOk;
}

// Of those labels that the job has now.
absl::Status UpdateLabels(JobClient jobs, const std::vector<std::string>& changes,
                          v1::UpdateJobRequest* request) {
  MP_ASSIGN_OR_RETURN(const v1::Job job, jobs.Get(request->job().name()));
  *request->mutable_job()->mutable_labels() = job.labels();
  MP_RETURN_IF_ERROR(ChangeLabels(changes, request->mutable_job()->mutable_labels()));
  request->mutable_job()->set_etag(job.etag());
  request->mutable_update_mask()->add_paths("labels");
  return absl::OkStatus();
}

// Of the job, what the options name.
absl::StatusOr<v1::UpdateJobRequest> UpdateOf(JobClient jobs, const std::string& name,
                                              const UpdateOptions& options) {
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(name);
  v1::SchedulingSpec* scheduling = request.mutable_job()->mutable_spec()->mutable_scheduling();
  const auto change = [&](const char* field) {
    request.mutable_update_mask()->add_paths(absl::StrCat("spec.scheduling.", field));
  };
  if (options.queue) {
    scheduling->set_queue(*options.queue);
    change("queue");
  }
  if (options.priority) {
    scheduling->set_priority(*options.priority);
    change("priority");
  }
  if (options.time_limit_seconds) {
    scheduling->set_time_limit(*options.time_limit_seconds);
    change("time_limit");
  }
  if (options.independent || !options.depends_on.empty()) {
    for (const std::string& typed : options.depends_on) {
      MP_ASSIGN_OR_RETURN(const std::string other, ResolveJob(jobs, typed));
      scheduling->add_depends_on(other);
    }
    change("depends_on");
  }
  // A bound that is named and not given is taken away.
  v1::ResourceSpec* resources = request.mutable_job()->mutable_spec()->mutable_resources();
  if (options.min_ranks) {
    if (*options.min_ranks > 0) resources->set_min_ranks(*options.min_ranks);
    request.mutable_update_mask()->add_paths("spec.resources.min_ranks");
  }
  if (options.max_ranks) {
    if (*options.max_ranks > 0) resources->set_max_ranks(*options.max_ranks);
    request.mutable_update_mask()->add_paths("spec.resources.max_ranks");
  }
  if (!options.labels.empty()) {
    MP_RETURN_IF_ERROR(UpdateLabels(jobs, options.labels, &request));
  }
  return request;
}

}  // namespace

int JobCancelCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  return ForEachJob(
      global, typed, WhenStopped::kServeDataDir,
      [](const Access& access, const std::string& name) { return access.jobs().Cancel(name); },
      [](const Access&, const v1::Job& job) {
        Note(absl::StrCat(job.name(), " ", StateLine(job)));
        if (job.state() == v1::JOB_STATE_SUCCEEDED) return;  // it had made all its steps
        const bool kept = job.attempts() > 0;                // else it has saved none
        Hint(absl::StrCat(kept ? "its checkpoints are kept: " : "it had not run: ",
                          "milepost job resume ", job.name()));
      });
}

int JobCancelArrayCommand(const GlobalOptions& global, const std::string& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const std::string array = FullName("arrays", typed);
  const auto response = access->jobs().CancelArray(array);
  if (!response.ok()) return Fail(response.status());
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(*response, global.output) : array + "\n");
  Note(absl::StrCat("cancelled ", response->cancelled(), " of the ", response->jobs(), " jobs of ",
                    array, "; the others had ended"));
  return kExitOk;
}

int JobDeleteCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto names = ResolveJobs(access->jobs(), typed);
  if (!names.ok()) return Fail(names.status());
  for (const std::string& name : *names) {
    const auto deleted = access->jobs().Delete(name);
    if (!deleted.ok()) return Fail(deleted.status());
    Print(name + "\n");
    Note(absl::StrCat("deleted ", name, " for good, with its log and ", deleted->checkpoints(),
                      deleted->checkpoints() == 1 ? " checkpoint" : " checkpoints", " (",
                      HumanBytes(deleted->bytes()), ")"));
  }
  return kExitOk;
}

int JobSuspendCommand(const GlobalOptions& global, const std::vector<std::string>& typed) {
  return ForEachJob(
      global, typed, WhenStopped::kServeDataDir,
      [](const Access& access, const std::string& name) { return access.jobs().Suspend(name); },
      [](const Access&, const v1::Job& job) {
        Note(absl::StrCat(job.name(), " ", StateLine(job)));
        Hint(absl::StrCat("milepost job resume ", job.name()));
      });
}

int JobUpdateCommand(const GlobalOptions& global, const UpdateOptions& options) {
  return ForEachJob(
      global, options.jobs, WhenStopped::kServeDataDir,
      [&](const Access& access, const std::string& name) -> absl::StatusOr<v1::Job> {
        MP_ASSIGN_OR_RETURN(const v1::UpdateJobRequest request,
                            UpdateOf(access.jobs(), name, options));
        return access.jobs().Update(request);
      },
      [](const Access&, const v1::Job& job) {
        Note(absl::StrCat(job.name(), " ", StateLine(job)));
      });
}

int JobResumeCommand(const GlobalOptions& global, const std::vector<std::string>& typed,
                     std::optional<int64_t> new_steps) {
  return ForEachJob(
      global, typed, WhenStopped::kServeDataDir,
      [&](const Access& access, const std::string& name) -> absl::StatusOr<v1::Job> {
        MP_ASSIGN_OR_RETURN(const v1::Job job, access.jobs().Get(name));
        if (EndedEarly(job)) return absl::FailedPreconditionError(EndedEarlyText(job));
        // It would wait for slots to find that there is nothing to do.
        if (!new_steps && job.state() == v1::JOB_STATE_SUCCEEDED) {
          return absl::FailedPreconditionError(
              absl::StrCat(name, " has made all its ", job.spec().train().steps(),
                           " steps: --steps, with more, extends it"));
        }
        return access.jobs().Resume(name, new_steps);
      },
      [&](const Access& access, const v1::Job& job) {
        Note(absl::StrCat(
            job.name(), " ", StateLine(job),
            job.latest_checkpoint().empty() ? "" : ", from " + job.latest_checkpoint()));
        AdviseQueued(global, access, job.name());
      });
}

}  // namespace milepost::client
