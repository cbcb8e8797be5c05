#include "client/cli/generation_source.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/tokenizer_folder.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

absl::StatusOr<std::string> ChosenCheckpoint(const Access& access, const GenerationSource& asked) {
  if (!asked.checkpoint.empty()) return FullName("checkpoints", asked.checkpoint);
  v1::Job job;
  if (asked.job.empty()) {
    MP_ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, access.jobs().List(1));
    if (jobs.empty()) return absl::NotFoundError("there is no job yet: milepost run SPEC");
    job = jobs[0];
  } else {
    MP_ASSIGN_OR_RETURN(const std::string name, ResolveJob(access.jobs(), asked.job));
    MP_ASSIGN_OR_RETURN(job, access.jobs().Get(name));
  }
  if (job.latest_checkpoint().empty()) {
    return absl::NotFoundError(absl::StrCat(job.name(), " has no checkpoint yet"));
  }
  return job.latest_checkpoint();
}

}  // namespace

absl::StatusOr<GenerationSource> FindSource(const Access& access, const GenerationSource& asked) {
  GenerationSource found = asked;
  MP_ASSIGN_OR_RETURN(found.checkpoint, ChosenCheckpoint(access, asked));
  MP_ASSIGN_OR_RETURN(const auto manifest, access.checkpoints().Get(found.checkpoint));
  found.job = manifest.checkpoint().job();
  if (found.tokenizer.empty()) found.tokenizer = TokenizerOf(access, found.job);
  if (found.base.empty()) found.base = InitialFolderOf(access, found.job);
  return found;
}

void AddCredentials(const Access& access, SpawnOptions* spawn) {
  // Also when empty: what this process was given may be another coordinator's.
  spawn->env.emplace_back("MILEPOST_CA", access.login().authority);
  spawn->env.emplace_back("MILEPOST_TOKEN", access.login().token);
}

}  // namespace milepost::client
