// milepost worker ... and milepost version
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "common/exit_codes.h"
#include "common/spec/to_yaml.h"
#include "common/version.h"

namespace milepost::client {

int WorkerListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto workers = access->workers().List(limit);
  if (!workers.ok()) return Fail(workers.status());
  Print(RenderWorkers(*workers, global.output, absl::Now()));
  if (workers->empty()) {
    Hint(absl::StrCat("no workers yet: milepost-worker --coordinator ", access->address(),
                      " --data-dir DIR --slots N"));
  }
  return kExitOk;
}

int WorkerDescribeCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto worker = access->workers().Get(FullName("workers", name));
  if (!worker.ok()) return Fail(worker.status());
  Print(RenderWorker(*worker, global.output, absl::Now()));
  return kExitOk;
}

int VersionCommand(const GlobalOptions& global) {
  const nlohmann::ordered_json version = {{"version", kVersion}};
  switch (global.output) {
    case OutputFormat::kJson:
      Print(version.dump(2) + "\n");
      break;
    case OutputFormat::kYaml:
      Print(JsonToYaml(version));
      break;
    default:
      Print(absl::StrCat("milepost ", kVersion, "\n"));
  }
  return kExitOk;
}

}  // namespace milepost::client
