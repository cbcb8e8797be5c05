// Fills tensors in memory from a committed checkpoint. It asks the coordinator only for the wanted
// intervals, verifies the checksum of every arriving chunk, and copies it into place.
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
#include "engine/runtime/session/training_session.h"
#include "milepost/v1/checkpoint.grpc.pb.h"

namespace milepost::worker {

// Calls block. While the coordinator is away they are tried again. They end with UNAVAILABLE when
// `patience` has passed without an answer, and with CANCELLED when `give_up` returns true.
// Thread-safe.
class CheckpointReader {
 public:
  CheckpointReader(const Endpoint& coordinator, absl::Duration patience,
                   std::function<bool()> give_up);

  absl::StatusOr<v1::CheckpointManifest> Manifest(const std::string& name);

  // `targets` index `tensors` and do not overlap. On OK they are filled completely, apart from the
  // exceptions below. Tensors are matched by name and kind. An average that the checkpoint lacks is
  // filled with the parameter. FAILED_PRECONDITION: the checkpoint
  // lacks a tensor, or has it with another dtype or shape. DATA_LOSS: the bytes of a chunk, which
  // the message names, are not what was saved.
  //
  // Two sorts of tensors are left as they are when the checkpoint lacks them. One is a tensor of a
  // parameter that was frozen, so that the checkpoint has only its master. The other is a scaling,
  // which a run in another precision does not have. `came` is called after every chunk.
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
