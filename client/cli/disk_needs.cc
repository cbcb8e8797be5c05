#include "client/cli/disk_needs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/cli/fit.h"
#include "client/cli/format.h"
#include "common/disk_space.h"
#include "common/spec/auto_fields.h"
#include "common/status_macros.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/planner/planner.h"

namespace milepost::client {
namespace {

constexpr char kStateField[] = "train.offload.path: ";

// Of a folder that is to be written.
std::error_code WhyNotWritable(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error) && !error) {
    return std::make_error_code(std::errc::not_a_directory);
  }
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  return error;
}

// 0: not known, as something is left to choose for where it will run.
absl::StatusOr<int64_t> StateBytesOfRank(const v1::JobSpec& spec) {
  if (HasAutoFields(spec)) return 0;
  MP_ASSIGN_OR_RETURN(const plan::PlanOptions options,
                      plan::OptionsFromSpec(spec, ThreadsPerRank(spec)));
  MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, plan::PlanTraining(spec, options));
  return plan::DiskBytesNeeded(plan);
}

// What the job saves from its beginning to its end, if nothing stops it.
int64_t CheckpointsOfAll(const v1::JobSpec& spec) {
  const auto times = [&](int64_t every) {
    return every == 0 ? 0 : (spec.train().steps() + every - 1) / every;
  };
  const int64_t best = spec.checkpoint().keep_best() ? times(spec.train().validation().every()) : 0;
  return std::max<int64_t>(times(spec.checkpoint().every()) + best, 1);
}

// With the `kept` that are there already.
int64_t CheckpointsThatFit(const DiskNeeds& needs, const Room& room, int64_t kept) {
  const int64_t state = room.state_is_there ? needs.state_bytes : 0;
  const int64_t left = room.free + room.in_bin - state - static_cast<int64_t>(kStoreMarginBytes);
  return kept + std::max<int64_t>(0, left) / needs.checkpoint_bytes;
}

}  // namespace

DiskNeeds DiskNeedsOf(const plan::StepPlan& plan) {
  const int64_t ranks = plan.options.AllRanks();
  return {.checkpoint_bytes = plan::CheckpointBytes(plan),
          .state_bytes = plan::DiskBytesNeeded(plan) * ranks};
}

absl::Status CheckRoom(const DiskNeeds& needs, const Room& room) {
  if (needs.checkpoint_bytes == 0) return absl::OkStatus();
  const int64_t state = room.state_is_there ? needs.state_bytes : 0;
  const auto kept_back = static_cast<int64_t>(kStoreMarginBytes);
  if (needs.checkpoint_bytes + state + kept_back <= room.free + room.in_bin) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "no checkpoint of this job would fit: one takes ", HumanBytes(needs.checkpoint_bytes),
      state == 0 ? "" : absl::StrCat(", what is offloaded to disk ", HumanBytes(state)), " and ",
      HumanBytes(kept_back), " are kept back, and ", room.dir, " has ", HumanBytes(room.free),
      " free",
      room.in_bin == 0 ? "" : absl::StrCat(" and ", HumanBytes(room.in_bin), " in the bin"),
      ": nothing that it learns could be saved. Free some space (`milepost checkpoint delete` for "
      "old checkpoints), or name a --data-dir on a larger disk"));
}

std::string TellTightDisk(const v1::JobSpec& spec, const DiskNeeds& needs, const Room& room,
                          int64_t kept) {
  if (needs.checkpoint_bytes == 0) return "";
  const int64_t keep_last = spec.checkpoint().keep_last();
  const int64_t best = spec.checkpoint().keep_best() ? 1 : 0;
  const int64_t wanted = std::min(CheckpointsOfAll(spec), keep_last + best + 1);
  const int64_t fit = CheckpointsThatFit(needs, room, std::min(kept, keep_last));
  if (fit >= wanted) return "";
  const std::string first = fit == 1 ? "the first" : absl::StrCat("the first ", fit);
  const std::string fewer =
      fit == 1 ? "Free some space"
               : absl::StrCat("Set checkpoint.keep_last: ", fit - 1, ", free some space");
  return absl::StrCat(room.dir, " has room for ", fit, fit == 1 ? " checkpoint" : " checkpoints",
                      " of ", HumanBytes(needs.checkpoint_bytes),
                      ", and with checkpoint.keep_last: ", keep_last, " there will be ", wanted,
                      " at a time: what comes after ", first, " could not be saved. ", fewer,
                      ", or name a --data-dir on a larger disk");
}

absl::Status CheckStateFolder(const v1::JobSpec& spec, int64_t bytes) {
  const std::string& folder = spec.train().offload().path();
  if (folder.empty()) return absl::OkStatus();
  if (const std::error_code error = WhyNotWritable(folder); error) {
    return absl::InvalidArgumentError(
        absl::StrCat(kStateField, folder, ": ", error.message(),
                     ": it must be a folder on every worker, and writable there; or leave it out "
                     "for one in the worker's data directory"));
  }
  MP_ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(folder));
  if (static_cast<int64_t>(free) >= bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kStateField, folder, " has ", HumanBytes(static_cast<int64_t>(free)), " free, and ",
      HumanBytes(bytes), " are needed there: the optimizer's state, and the copy from which a ",
      "checkpoint is saved; free some space, or name a folder on a larger disk"));
}

absl::Status CheckStateFolderHere(const v1::JobSpec& spec, std::vector<std::string>* elsewhere) {
  const std::string& folder = spec.train().offload().path();
  if (folder.empty()) return absl::OkStatus();
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    elsewhere->push_back(absl::StrCat("train.offload.path ", folder));
    return absl::OkStatus();
  }
  MP_ASSIGN_OR_RETURN(const int64_t bytes, StateBytesOfRank(spec));
  return CheckStateFolder(spec, bytes);
}

}  // namespace milepost::client
