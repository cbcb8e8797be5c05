// milepost worker ... and milepost version
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "common/exit_codes.h"
#include "common/proto_time.h"
#include "common/spec/to_yaml.h"
#include "common/version.h"

namespace milepost::client {

int WorkerListCommand(const GlobalOptions& global, int limit) {
  const auto access = Access::Open(global, WhenStopped::kServeDataDir);
  if (!access.ok()) return Fail(access.status());
  const auto workers = access->workers().List(limit);
  if (!workers.ok()) return Fail(workers.status());
  Print(RenderWorkers(*workers, global.output, absl::Now()));
  if (workers->empty() && access->stored()) {
    Hint(absl::StrCat("no run is going on in ", global.data_dir, ", whose workers these would be"));
  } else if (workers->empty()) {
    Hint(absl::StrCat("no workers yet: milepost-worker --coordinator ", access->address(),
                      " --data-dir DIR --slots N",
                      access->login().authority.empty() ? "" : " --tls DIR"));
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

namespace {

constexpr absl::Duration kMonitorInterval = absl::Seconds(1);

// Says what the worker still runs until it is drained, or Ctrl-C.
int MonitorDrain(const Access& access, const std::string& name, const InterruptGuard& guard) {
  std::string said;
  while (!guard.interrupted()) {
    const auto worker = access.workers().Get(name);
    if (!worker.ok()) return Fail(worker.status());
    const bool down = worker->state() == v1::WORKER_STATE_DOWN;
    if (down || worker->state() == v1::WORKER_STATE_DRAINED) {
      Note(absl::StrCat(name, down ? " is down" : " is drained"));
      return kExitOk;
    }
    const std::string line =
        absl::StrCat(name, " still has ", worker->assignments_size(), " ranks");
    if (line != said) Note(line);
    said = line;
    absl::SleepFor(kMonitorInterval);
  }
  Note("the drain goes on");
  return kExitInterrupted;
}

}  // namespace

int WorkerDrainCommand(const GlobalOptions& global, const DrainOptions& options) {
  std::optional<InterruptGuard> guard;
  if (options.monitor) guard.emplace([] {});
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  v1::DrainWorkerRequest request;
  request.set_reason(options.reason);
  if (options.deadline_seconds) {
    *request.mutable_deadline() = ToProto(absl::Now() + absl::Seconds(*options.deadline_seconds));
  }
  std::vector<std::string> names;
  for (const std::string& typed : options.workers) {
    request.set_name(names.emplace_back(FullName("workers", typed)));
    const auto worker = access->workers().Drain(request);
    if (!worker.ok()) return Fail(worker.status());
    Print(RenderWorker(*worker, global.output, absl::Now()));
  }
  if (!options.monitor) {
    Hint(absl::StrCat("milepost worker resume ", absl::StrJoin(names, " "),
                      names.size() == 1 ? " takes it back" : " takes them back"));
    return kExitOk;
  }
  int exit_code = kExitOk;
  for (size_t i = 0; i < names.size() && exit_code == kExitOk; ++i) {
    exit_code = MonitorDrain(*access, names[i], *guard);
  }
  return exit_code;
}

int WorkerResumeCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const auto worker = access->workers().Resume(FullName("workers", name));
  if (!worker.ok()) return Fail(worker.status());
  Print(RenderWorker(*worker, global.output, absl::Now()));
  return kExitOk;
}

int WorkerDeleteCommand(const GlobalOptions& global, const std::string& name) {
  const auto access = Access::Open(global, WhenStopped::kFail);
  if (!access.ok()) return Fail(access.status());
  const std::string full = FullName("workers", name);
  if (absl::Status status = access->workers().Delete(full); !status.ok()) return Fail(status);
  Print(full + "\n");
  Note(absl::StrCat("deleted ", full));
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
