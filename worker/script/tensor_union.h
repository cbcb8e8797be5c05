// What the ranks of a job save together: their tensors in one list, of which every element is saved
// once.
//
//   MP_ASSIGN_OR_RETURN(AgreedSave save, AgreeOnSave(communicator, own));
#ifndef MILEPOST_WORKER_SCRIPT_TENSOR_UNION_H_
#define MILEPOST_WORKER_SCRIPT_TENSOR_UNION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::worker {

// What one rank saves.
struct RankState {
  int64_t step = 0;
  std::vector<v1::TensorInfo> tensors;
  std::vector<state::Interval> pieces;  // of these tensors
  bool durable = true;                  // as the script wants it
  bool owed = false;  // a durable save gave way to this one, which is durable then
};
// What all ranks save.
struct AgreedSave {
  std::vector<v1::TensorInfo> tensors;
  bool durable = true;
};

// OK if the rank's own pieces are all of its tensors. FAILED_PRECONDITION names what is missing or
// there more than once. Pure.
absl::Status CheckWhole(const RankState& state);

// Collective. Every rank gets the same: the tensors of all ranks, rank 0's first. `own` may be an
// error: then no rank saves. FAILED_PRECONDITION, the same on every rank: one of them cannot say
// what it saves, they are at different steps or not all want a durable save, have a tensor of one
// name and kind in different forms, or do not save every element once. RESOURCE_EXHAUSTED, the same
// on every rank: what they say is too long. Blocks. Errors of the communicator are returned
// unchanged.
absl::StatusOr<AgreedSave> AgreeOnSave(comm::Communicator& communicator,
                                       const absl::StatusOr<RankState>& own);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_TENSOR_UNION_H_
