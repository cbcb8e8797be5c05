// Where a script's ranks run: how they number themselves on their hosts, and where rank 0 listens.
//
//   MP_ASSIGN_OR_RETURN(ScriptLayout layout,
//                       MeetForLayout(&store, rank, world, {.host = "a", .gpu = uuid}, "10.0.0.7",
//                                     deadline));
//   setenv("LOCAL_RANK", layout.local_rank);
//
// The names are torchrun's (PyTorch's documentation, "torchrun (Elastic Launch)").
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_LAYOUT_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/comm/key_value_store.h"

namespace milepost::worker {

// Where one rank is.
struct ScriptPlace {
  std::string host;  // ranks with the same name see the same processes and devices
  std::string gpu;   // its UUID; empty: none

  friend bool operator==(const ScriptPlace&, const ScriptPlace&) = default;
};

// What one rank is told.
struct ScriptLayout {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;  // among the ranks of its host, by their ranks
  int group_rank = 0, group_world = 1;  // its host among the hosts, by their lowest ranks
  std::vector<std::string> local_gpus;  // of the host's ranks, by local rank; empty: no GPUs
  std::string master_address;           // rank 0's host
  int master_port = 0;                  // free there when it was looked for

  friend bool operator==(const ScriptLayout&, const ScriptLayout&) = default;
};

// One layout for each host, of its lowest rank, in the order of group_rank. Pure. `places`: of all
// ranks, at least one.
std::vector<ScriptLayout> HostLayouts(const std::vector<ScriptPlace>& places,
                                      const std::string& master_address, int master_port);

// Every rank of an attempt calls it, with the address under which others reach this host. Blocks
// until all have. Errors: the store's; DEADLINE_EXCEEDED names the first rank that did not come;
// RESOURCE_EXHAUSTED: no port is free on rank 0's host.
absl::StatusOr<ScriptLayout> MeetForLayout(comm::KeyValueStore* store, int rank, int world,
                                           const ScriptPlace& place, const std::string& address,
                                           absl::Time deadline);

// Returns once every rank has called it with this store, whose keys nobody else uses. It ends soon
// after the store gives up. DEADLINE_EXCEEDED names a rank that did not come. Blocks.
absl::Status AwaitRanks(comm::KeyValueStore* store, int rank, int world, absl::Time deadline);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_LAYOUT_H_
