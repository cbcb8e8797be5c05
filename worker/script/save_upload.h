// A script's save as the coordinator is given it.
//
//   Upload upload = UploadOf({job, generation, rank, world}, step, tensors, layout, slices);
//   MP_ASSIGN_OR_RETURN(std::optional<std::string> checkpoint,
//                       UploadSave(coordinator, saving, save, communicator, give_up));
#ifndef MILEPOST_WORKER_SCRIPT_SAVE_UPLOAD_H_
#define MILEPOST_WORKER_SCRIPT_SAVE_UPLOAD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/endpoint.h"
#include "engine/comm/communicator.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.pb.h"
#include "worker/script/memory_copies.h"
#include "worker/trainer/upload_attempt.h"

namespace milepost::worker {

// Who saves: `rank` of `world` ranks.
struct SavingRank {
  std::string job;
  int64_t generation = 0;
  int rank = 0;
  int world = 1;
};

// `layout` is that of the tensors; it and the slices' memory outlive the upload. Slices are
// sorted.
Upload UploadOf(const SavingRank& saving, int64_t step, const std::vector<v1::TensorInfo>& tensors,
                const state::StateLayout& layout, const std::vector<state::TensorSlice>& slices);

// Makes a checkpoint of what an earlier attempt left in memory, and returns its name. Nullopt, with
// a warning: no rank has seen it committed. Collective: every rank gets the same. Blocks, for
// minutes where the coordinator is away, unless `give_up` returns true. Errors are the
// communicator's.
absl::StatusOr<std::optional<std::string>> UploadSave(const Endpoint& coordinator,
                                                      const SavingRank& saving,
                                                      const SaveInMemory& save,
                                                      comm::Communicator& communicator,
                                                      const std::function<bool()>& give_up);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SAVE_UPLOAD_H_
