#include "worker/doctor/doctor.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/exit_codes.h"
#include "common/subprocess.h"
#include "worker/doctor/checks.h"

namespace milepost::worker {
namespace {

// The result of `check` on a thread of its own: a disk or a driver that hangs holds nobody.
Findings Bounded(const std::string& name, absl::Duration patience,
                 std::function<Findings()> check) {
  struct Shared {
    absl::Mutex mutex;
    bool ended = false;
    Findings findings;
  };
  auto shared = std::make_shared<Shared>();
  std::thread([shared, check = std::move(check)] {
    Findings findings = check();
    absl::MutexLock lock(&shared->mutex);
    shared->findings = std::move(findings);
    shared->ended = true;
  }).detach();
  absl::MutexLock lock(&shared->mutex);
  if (shared->mutex.AwaitWithTimeout(absl::Condition(&shared->ended), patience)) {
    return shared->findings;
  }
  return {Fail(name, absl::StrCat("no answer within ", absl::FormatDuration(patience)),
               "it hangs: look at `dmesg`")};
}

void Append(Findings more, Findings* findings) {
  findings->insert(findings->end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
}

// What the driver runs, for the checks that depend on it.
struct Gpus {
  int cuda = 0;
  bool any = false;
};

Findings GpusAndDriver(const DoctorOptions& options, Gpus* gpus) {
  const auto nvml = options.open_nvml();
  if (nvml.ok() && !(*nvml)->gpus().empty()) {
    *gpus = {std::max(1, (*nvml)->versions().cuda), true};
  }
  return CheckGpus(nvml);
}

}  // namespace

Findings RunDoctor(const DoctorOptions& options) {
  Findings findings;
  // Shared with a thread that may be left behind.
  auto gpus = std::make_shared<Gpus>();
  Gpus known;
  if (options.gpus) {
    Append(Bounded("driver", options.patience,
                   [options, gpus] { return GpusAndDriver(options, gpus.get()); }),
           &findings);
    const bool hangs = findings.size() == 1 && findings[0].level == Level::kFail;
    if (!hangs) known = *gpus;
    Append(Bounded(
               "libraries", options.patience,
               [=, trainer = options.cuda_trainer] { return CheckLibraries(known.cuda, trainer); }),
           &findings);
  }
  Append(Bounded("host", options.patience, [=] { return CheckHost(known.any); }), &findings);
  Append(Bounded("podman", options.patience, [=] { return CheckContainers(known.any); }),
         &findings);
  Append(Bounded("network", options.patience,
                 [options] { return CheckNetwork(options.coordinator, options.nccl_interfaces); }),
         &findings);
  if (!options.data_dir.empty()) {
    Append(Bounded("disk", options.patience,
                   [options] {
                     return CheckDisk(options.data_dir, options.disk_bytes, options.disk_budget);
                   }),
           &findings);
  }
  if (!options.data_set.empty()) {
    Append(Bounded("data set", options.patience,
                   [options] {
                     return CheckDataSet(options.data_set, options.disk_bytes, options.disk_budget);
                   }),
           &findings);
  }
  return findings;
}

void DoctorMain(int argc, char** argv) {
  DoctorOptions options;
  std::string output = "table";
  CLI::App app{
      "Checks this host for training, and says what to change. Exits with 1 on a failure."};
  app.name("milepost-worker doctor");
  app.add_option("--data-dir", options.data_dir, "measure the disk under this folder");
  app.add_option("--coordinator", options.coordinator, "HOST:PORT,...: does it answer, and how");
  app.add_option("--dataset", options.data_set, "measure how fast this file or folder is read");
  app.add_flag("!--no-gpus", options.gpus,
               "leave the driver, the GPUs and the CUDA libraries alone");
  app.add_option("-o,--output", output)
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? kExitOk : kExitUsage);
  }
  if (const char* names = std::getenv("NCCL_SOCKET_IFNAME")) options.nccl_interfaces = names;
  options.cuda_trainer = access(SiblingBinary("milepost-trainer-cuda").c_str(), X_OK) == 0;
  const Findings findings = RunDoctor(options);
  const std::string text = output == "json" ? FindingsJson(findings) : FindingsText(findings);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  // Not exit: a check that hangs may still run, and libraries were loaded that end badly.
  _exit(Worst(findings) == Level::kFail ? kExitError : kExitOk);
}

}  // namespace milepost::worker
