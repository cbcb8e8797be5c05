// What a job needs of disks, against what they have free: said before it starts, and not by a rank
// that has trained for hours and can save nothing.
//
//   const DiskNeeds needs = DiskNeedsOf(admission.plan);
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

// Bytes; 0: not known, or none.
struct DiskNeeds {
  int64_t checkpoint_bytes = 0;  // one checkpoint, of all ranks
  int64_t state_bytes = 0;       // what of all ranks is offloaded to disk, and its copies
};

// Pure.
DiskNeeds DiskNeedsOf(const plan::StepPlan& plan);

// The disk of a run's data directory.
struct Room {
  std::string dir;
  int64_t free = 0;
  int64_t in_bin = 0;          // deleted checkpoints, which make room when there is none
  bool state_is_there = true;  // what is offloaded to disk lies there as well
};

// RESOURCE_EXHAUSTED with the figures when not even one checkpoint would fit. Pure.
absl::Status CheckRoom(const DiskNeeds& needs, const Room& room);

// Says so when the disk takes fewer checkpoints than the job keeps at a time, one more while that
// is written: from then on none would be saved. Else empty. `kept`: those that it has there
// already. Pure.
std::string TellTightDisk(const v1::JobSpec& spec, const DiskNeeds& needs, const Room& room,
                          int64_t kept);

// INVALID_ARGUMENT when train.offload.path is no folder of this machine, cannot be written, or has
// less than `bytes` free. OK where the spec names none: it is made in a worker's data directory.
absl::Status CheckStateFolder(const v1::JobSpec& spec, int64_t bytes);

// The same where the workers may be others: a folder that is not here is put into `elsewhere`
// (inputs.h), and one rank's bytes are what counts, as the others may be on other hosts. Plans the
// step if need be.
absl::Status CheckStateFolderHere(const v1::JobSpec& spec, std::vector<std::string>* elsewhere);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_DISK_NEEDS_H_
