// milepost job submit, fork: how jobs come to be.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/disk_needs.h"
#include "client/cli/inputs.h"
#include "client/cli/job_answer.h"
#include "client/cli/job_arguments.h"
#include "client/cli/job_waiting.h"
#include "client/cli/script_files.h"
#include "common/exit_codes.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

absl::StatusOr<SpecSource> SourceOf(const GlobalOptions& global, const SubmitOptions& options) {
  SpecSource source = {.path = options.spec, .base = std::nullopt, .overrides = options.set};
  if (options.template_name.empty() && options.spec.empty()) {
    return absl::InvalidArgumentError("spec is required, or --template");
  }
  if (options.template_name.empty()) return source;
  MP_ASSIGN_OR_RETURN(source.base, FetchTemplate(global, options.template_name));
  return source;
}

// Of what is submitted, for people.
std::string NameOf(const SubmitOptions& options) {
  return options.spec.empty() ? absl::StrCat("template ", options.template_name) : options.spec;
}

// Of what this machine has; workers may have other files under the same names.
absl::Status CheckFiles(const SubmitOptions& options, const v1::JobSpec& spec) {
  if (options.skip_files) return absl::OkStatus();
  std::vector<std::string> elsewhere;
  absl::Status status = CheckReadsHere(spec, &elsewhere);
  if (status.ok()) status = CheckStateFolderHere(spec, &elsewhere);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(status.message(),
                     " (as it is on this machine; where workers have another file there, submit "
                     "with --skip-files)"));
  }
  // Who submits from another machine than the workers' knows that their files are not here.
  if (options.validate_only && !elsewhere.empty()) Note(TellElsewhere(elsewhere));
  return absl::OkStatus();
}

// Those of an array's jobs, as far as the elements leave them.
absl::Status CheckArrayFiles(const SubmitOptions& options, const v1::JobSpec& as_written) {
  v1::JobSpec spec = as_written;
  NormalizeJobSpec(&spec);
  return ValidateJobSpec(spec).ok() ? CheckFiles(options, spec) : absl::OkStatus();
}

// What goes along with the job. Nothing is stored for a job that is only checked.
absl::Status Send(const SubmitOptions& options, const Access& access, ScriptFiles* files) {
  if (options.validate_only) return absl::OkStatus();
  return files->Send(access.connection(), access.login().project);
}

// Prints the array's name and its jobs'.
int SubmitArray(const GlobalOptions& global, const SubmitOptions& options) {
  if (options.wait) return Fail(absl::InvalidArgumentError("--wait: waits for one job, no array"));
  const auto elements = ExpandArray(options.array);
  if (!elements.ok()) return Fail(elements.status());
  // As it is written: what follows from what the elements change is derived for each.
  const auto source = SourceOf(global, options);
  if (!source.ok()) return Fail(source.status());
  ScriptFiles files;
  const auto spec = ReadSpec(*source, &files);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status good = CheckArrayFiles(options, *spec); !good.ok()) return Fail(good);
  v1::SubmitJobArrayRequest request;
  *request.mutable_spec() = *spec;
  request.mutable_elements()->Add(elements->begin(), elements->end());
  request.set_max_parallel(options.max_parallel);
  request.set_validate_only(options.validate_only);
  const absl::Status labelled = ChangeLabels(options.labels, request.mutable_labels());
  if (!labelled.ok()) return Fail(labelled);
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  if (const absl::Status sent = Send(options, *access, &files); !sent.ok()) return Fail(sent);
  const auto array = access->jobs().SubmitArray(request);
  if (!array.ok()) return Fail(array.status());
  if (options.validate_only) {
    Note(absl::StrCat(elements->size(), " jobs of ", NameOf(options),
                      " are valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", array->jobs_size(), " jobs as ", array->array()));
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(*array, global.output)
              : absl::StrCat(array->array(), "\n", absl::StrJoin(array->jobs(), "\n"), "\n"));
  Hint(absl::StrCat("milepost job list --array ", array->array(), "; milepost job wait --array ",
                    array->array(), "; milepost job cancel --array ", array->array()));
  return kExitOk;
}

}  // namespace

int JobSubmitCommand(const GlobalOptions& global, const SubmitOptions& options) {
  if (!options.array.empty()) return SubmitArray(global, options);
  const auto source = SourceOf(global, options);
  if (!source.ok()) return Fail(source.status());
  ScriptFiles files;
  const auto spec = LoadSpec(*source, &files);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status good = CheckFiles(options, *spec); !good.ok()) return Fail(good);
  v1::SubmitJobRequest request;
  *request.mutable_spec() = *spec;
  request.set_validate_only(options.validate_only);
  const absl::Status labelled = ChangeLabels(options.labels, request.mutable_labels());
  if (!labelled.ok()) return Fail(labelled);
  std::optional<Detacher> detacher;
  if (options.wait) detacher.emplace();
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  if (const absl::Status sent = Send(options, *access, &files); !sent.ok()) return Fail(sent);
  const auto job = access->jobs().Submit(request);
  if (!job.ok()) return Fail(job.status());
  for (const v1::Choice& choice : job->choices()) Note(ChoiceText(choice));
  if (options.validate_only) {
    Note(absl::StrCat(NameOf(options), " is valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", job->name(), " (", job->spec().name(), ")"));
  if (options.wait) return WaitFor(global, *access, job->name(), absl::InfiniteFuture(), *detacher);
  PrintActedOn(global, *job);
  AdviseQueued(global, *access, job->name());
  return kExitOk;
}

int JobForkCommand(const GlobalOptions& global, const ForkOptions& options) {
  v1::ForkJobRequest request;
  auto overrides = ParseOverrides(options.set);
  if (!overrides.ok()) return Fail(overrides.status());
  ScriptFiles files;
  if (const absl::Status packed = files.PackOverrides(&*overrides); !packed.ok()) {
    return Fail(packed);
  }
  request.mutable_overrides()->Swap(&*overrides);
  const absl::Status labelled = ChangeLabels(options.labels, request.mutable_labels());
  if (!labelled.ok()) return Fail(labelled);
  request.set_validate_only(options.validate_only);
  request.set_project(global.project);
  std::optional<Detacher> detacher;
  if (options.wait) detacher.emplace();
  // Without a run it is stored, and waits for one.
  const auto access =
      Access::Open(global, options.wait ? WhenStopped::kFail : WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  if (detacher) detacher->Watch(access->connection());
  request.set_source(options.from);
  if (!absl::StartsWith(options.from, "checkpoints/")) {
    const auto source = ResolveJob(access->jobs(), options.from);
    if (!source.ok()) return Fail(source.status());
    request.set_source(*source);
  }
  if (!options.validate_only) {
    const absl::Status sent = files.Send(access->connection(), access->login().project);
    if (!sent.ok()) return Fail(sent);
  }
  const auto job = access->jobs().Fork(request);
  if (!job.ok()) return Fail(job.status());
  const v1::ForkOrigin& origin = job->forked_from();
  const std::string from = absl::StrCat("from step ", origin.step(), " of ", origin.job(), " (",
                                        origin.checkpoint(), ")");
  if (options.validate_only) {
    Note(absl::StrCat("a fork ", from, " is valid; nothing was submitted"));
    return kExitOk;
  }
  Note(absl::StrCat("submitted ", job->name(), " ", from));
  if (options.wait) return WaitFor(global, *access, job->name(), absl::InfiniteFuture(), *detacher);
  PrintActedOn(global, *job);
  AdviseQueued(global, *access, job->name());
  return kExitOk;
}

}  // namespace milepost::client
