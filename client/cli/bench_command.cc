// milepost bench device: measured by the device's trainer, which owns it.
#include <sys/stat.h>

#include "client/cli/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/trainer_binary.h"
#include "common/exit_codes.h"
#include "common/openmp.h"
#include "common/status_macros.h"
#include "common/subprocess.h"

namespace milepost::client {
namespace {

absl::Status Measure(const BenchOptions& options, const Redirect& out) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const bool cuda = options.device == "cuda";
  MP_RETURN_IF_ERROR(CheckTrainerBinary(cuda));
  SpawnOptions spawn;
  spawn.argv = {TrainerBinary(cuda),
                "measure",
                "--name",
                options.name,
                "--threads",
                absl::StrCat(options.threads > 0 ? options.threads : static_cast<int>(cores))};
  if (!options.disk.empty()) {
    spawn.argv.emplace_back("--disk");
    spawn.argv.push_back(options.disk);
  }
  spawn.env = ShortOpenMpSpins();
  spawn.own_process_group = false;
  spawn.out = out;
  auto trainer = Subprocess::Spawn(std::move(spawn));
  if (!trainer.ok()) return trainer.status();
  const auto end = trainer->Wait();
  if (!end.ok()) return end.status();
  if (end->success()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(TrainerBinary(cuda), ": ", end->ToString()));
}

}  // namespace

int BenchDeviceCommand(const BenchOptions& options) {
  Note("measuring for a few seconds; nothing else should run here");
  if (options.output.empty()) {
    const absl::Status status = Measure(options, Redirect::Inherit());
    return status.ok() ? int{kExitOk} : Fail(status);
  }
  struct stat there = {};
  if (lstat(options.output.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "--out: ", options.output, " is no plain file, and would be replaced by one")));
  }
  // Whole or not at all: it may replace a profile that is in use.
  const std::string unfinished = options.output + ".new";
  std::remove(unfinished.c_str());
  const absl::Status status = Measure(options, Redirect::File(unfinished));
  if (!status.ok()) {
    std::remove(unfinished.c_str());
    return Fail(status);
  }
  if (std::rename(unfinished.c_str(), options.output.c_str()) != 0) {
    return Fail(absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", options.output)));
  }
  Note(absl::StrCat("wrote ", options.output));
  Hint(absl::StrCat("milepost plan SPEC --device ", options.output));
  return kExitOk;
}

}  // namespace milepost::client
