// The snapshots in a host's memory that an attempt's ranks go on from.
//
//   MP_ASSIGN_OR_RETURN(std::vector<FoundSnapshot> found,
//                       ClaimSnapshots(folder, generation, accepts, communicator));
//   MP_ASSIGN_OR_RETURN(auto holdings, GatherHoldings(HoldingsOf(found), communicator));
//   ForgetState(folder, generation);   // once this attempt's own stand in for them
#ifndef MILEPOST_WORKER_MEMORY_STATE_SNAPSHOT_CLAIMS_H_
#define MILEPOST_WORKER_MEMORY_STATE_SNAPSHOT_CLAIMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/state/layout.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/memory_state/snapshot_file.h"

namespace milepost::worker {

// Opens the snapshots of generations before this one that no other rank has claimed and that
// `accepts` takes. Ranks of one host share them out: each has first what it made itself. A damaged
// one is left out, with a warning. `folder` may be empty. Collective; errors are the
// communicator's.
absl::StatusOr<std::vector<FoundSnapshot>> ClaimSnapshots(
    const std::string& folder, int64_t generation,
    absl::FunctionRef<bool(const FoundSnapshot&)> accepts, comm::Communicator& communicator);

// Whether its intervals lie in the layout and make up its bytes.
bool FitsLayout(const FoundSnapshot& found, const state::StateLayout& layout);

// Without targets.
v1::MemoryHoldings HoldingsOf(const std::vector<FoundSnapshot>& found);

// Every rank's, by rank. Collective.
absl::StatusOr<std::vector<v1::MemoryHoldings>> GatherHoldings(const v1::MemoryHoldings& own,
                                                               comm::Communicator& communicator);

// Returns every rank's bytes, by rank. Collective. INTERNAL, on every rank: more than 64 MiB.
absl::StatusOr<std::vector<std::string>> GatherBytes(const std::string& bytes,
                                                     comm::Communicator& communicator);

// Removes snapshots of generations before this one, which are no longer needed.
void ForgetState(const std::string& folder, int64_t generation);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_MEMORY_STATE_SNAPSHOT_CLAIMS_H_
