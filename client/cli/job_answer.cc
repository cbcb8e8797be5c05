#include "client/cli/job_answer.h"

#include "absl/strings/str_cat.h"
#include "client/cli/output.h"

namespace milepost::client {

void PrintActedOn(const GlobalOptions& global, const v1::Job& job) {
  const bool whole = global.output == OutputFormat::kJson || global.output == OutputFormat::kYaml;
  Print(whole ? RenderMessage(job, global.output) : job.name() + "\n");
}

void AdviseQueued(const GlobalOptions& global, const Access& access, const std::string& job) {
  if (access.stored()) {
    Hint(absl::StrCat("no run is going on in ", global.data_dir,
                      ", so it waits: milepost run --job ", job, DataDirFlag(global.data_dir)));
  } else {
    Hint(absl::StrCat("milepost job wait ", job, "; milepost job logs -f ", job));
  }
}

}  // namespace milepost::client
