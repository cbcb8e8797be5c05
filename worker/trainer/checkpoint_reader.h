// Fills tensors in memory from a committed checkpoint: asks the coordinator for the wanted
// intervals only, verifies every chunk's checksum where it arrives, and copies it into place.
//
//   MP_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, reader.Manifest("checkpoints/12"));
//   MP_RETURN_IF_ERROR(reader.Read(manifest, session->state_tensors(), session->RestoreTargets()));
#ifndef MILEPOST_WORKER_TRAINER_CHECKPOINT_READER_H_
#define MILEPOST_WORKER_TRAINER_CHECKPOINT_READER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/coordinators.h"
#include "engine/runtime/session.h"
#include "milepost/v1/checkpoint.grpc.pb.h"

namespace milepost::worker {

// Calls block, and are tried again while the coordinator is away, until `patience` has passed
// without an answer (UNAVAILABLE then) or `give_up` answers true (CANCELLED). Thread-safe.
class CheckpointReader {
 public:
  CheckpointReader(const Endpoint& coordinator, absl::Duration patience,
                   std::function<bool()> give_up);

  absl::StatusOr<v1::CheckpointManifest> Manifest(const std::string& name);

  // `targets` index `tensors`, do not overlap, and are filled completely on OK. Tensors are matched
  // by name and kind. FAILED_PRECONDITION: the checkpoint has no such tensor, or of another dtype
  // or shape; DATA_LOSS: a chunk whose bytes are not what was saved, named. Other kinds of a tensor
  // that the checkpoint has a master of, and nothing else (it was frozen), are left as they are; so
  // are scalings, which a run in another precision has not. Calls `came` after every chunk.
  absl::Status Read(
      const v1::CheckpointManifest& manifest, const std::vector<v1::TensorInfo>& tensors,
      const std::vector<runtime::StateInterval>& targets,
      const std::function<void()>& came = [] {});

 private:
  absl::Status Retry(const std::function<absl::Status(v1::CheckpointService::Stub*)>& call);

  CoordinatorChannel coordinators_;
  const absl::Duration patience_;
  const std::function<bool()> give_up_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_CHECKPOINT_READER_H_
