// Compares what a job needs on disks with what they have free. So a user learns of a full disk
// before the job starts, not after hours of training that cannot be saved.
//
//   const DiskNeeds needs = DiskNeedsOf(fitting.plan);
//   MP_RETURN_IF_ERROR(CheckStateFolder(spec, needs.state_bytes));
//   MP_RETURN_IF_ERROR(CheckRoom(needs, {.dir = data_dir, .free = free, .in_bin = in_bin}));
#ifndef MILEPOST_CLIENT_CLI_DISK_NEEDS_H_
#define MILEPOST_CLIENT_CLI_DISK_NEEDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

// Bytes; 0: none, or not known.
struct DiskNeeds {
  int64_t checkpoint_bytes = 0;  // one checkpoint, of all ranks
  int64_t state_bytes = 0;       // state of all ranks that is offloaded to disk, and its copies
};

// Pure.
DiskNeeds DiskNeedsOf(const plan::StepPlan& plan);

// The disk of a run's data directory.
struct Room {
  std::string dir;
  int64_t free = 0;
  int64_t in_bin = 0;          // deleted checkpoints, which make room when needed
  bool state_is_there = true;  // state offloaded to disk lies there too
};

// RESOURCE_EXHAUSTED, with figures: not even one checkpoint would fit. Pure.
absl::Status CheckRoom(const DiskNeeds& needs, const Room& room);

// Warns when the disk cannot hold the checkpoints that the job keeps at a time, and one more while
// it is written: once it is full, none would be saved. Otherwise empty. `kept`: the number of
// checkpoints that the job has there already. Pure.
std::string TellTightDisk(const v1::JobSpec& spec, const DiskNeeds& needs, const Room& room,
                          int64_t kept);

// INVALID_ARGUMENT: train.offload.path is not a folder of this machine, cannot be written, or has
// less than `bytes` free. OK when the spec names none, because a worker then uses its data
// directory.
absl::Status CheckStateFolder(const v1::JobSpec& spec, int64_t bytes);

// Does the same where the workers may be other machines. A folder that does not exist here is added
// to `elsewhere` (inputs.h). Only one rank's bytes count, because the others may be on other hosts.
// Plans the step if necessary.
absl::Status CheckStateFolderHere(const v1::JobSpec& spec, std::vector<std::string>* elsewhere);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_DISK_NEEDS_H_
