// train.init_from: parameters out of a folder of Hugging Face's layout.
//
//   MP_RETURN_IF_ERROR(session->InitializeParameters());     // what the files do not bring: m, v,
//   MP_ASSIGN_OR_RETURN(const InitialWeights weights,
//                       InitialWeights::Open(folder, spec.model(), session->state_tensors()));
//   for (each part) ... MP_RETURN_IF_ERROR(weights.Read(session->RestoreTargets(part)));
//   MP_RETURN_IF_ERROR(session->FinishRestore(session->trainer_state()));
#ifndef MILEPOST_WORKER_TRAINER_INITIAL_WEIGHTS_H_
#define MILEPOST_WORKER_TRAINER_INITIAL_WEIGHTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/session.h"
#include "engine/state/safetensors.h"

namespace milepost::worker {

// Both block on the disk.
//
// NOT_FOUND: no such folder, config or weights. INVALID_ARGUMENT, naming the file: a config of
// another model (the field and both values), a tensor that is missing, or of another shape or a
// dtype that is not F32, BF16 or F16, a malformed file. DATA_LOSS: a truncated one.
class InitialWeights {
 public:
  // Checks the folder's config.json against the model, and that the files have every one of
  // `tensors` that they must have.
  static absl::StatusOr<InitialWeights> Open(const std::string& folder, const v1::ModelSpec& model,
                                             const std::vector<v1::TensorInfo>& tensors);
  // Fills the master intervals among `targets`, which index `tensors`; all others stay as they are.
  // Reads the bytes of those intervals only: a rank that holds a shard reads a shard.
  absl::Status Read(const std::vector<runtime::StateInterval>& targets) const;

 private:
  std::shared_ptr<const state::SafetensorsFolder> files_;
  std::vector<v1::TensorInfo> tensors_;
  std::vector<const state::SafetensorsFolder::Place*> places_;  // by tensor; null: not read
};

// Both in one.
absl::Status ReadInitialWeights(const std::string& folder, const v1::ModelSpec& model,
                                const std::vector<v1::TensorInfo>& tensors,
                                const std::vector<runtime::StateInterval>& targets);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_INITIAL_WEIGHTS_H_
