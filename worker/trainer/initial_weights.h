// Reads the initial parameters (train.init_from), or what adapters adapt, from a folder in Hugging
// Face's layout.
//
//   MP_RETURN_IF_ERROR(session->InitializeParameters());     // what the files do not bring: m, v,
//   MP_ASSIGN_OR_RETURN(const InitialWeights weights,
//                       InitialWeights::Open(folder, spec.model(), session->state_tensors()));
//   for (each part) ... MP_RETURN_IF_ERROR(weights.Read(session->RestoreTargets(part)));
//   MP_RETURN_IF_ERROR(session->FinishRestore(session->trainer_state()));
#ifndef MILEPOST_WORKER_TRAINER_INITIAL_WEIGHTS_H_
#define MILEPOST_WORKER_TRAINER_INITIAL_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/session/training_session.h"
#include "engine/state/resized_tensor.h"
#include "engine/state/safetensors.h"

namespace milepost::worker {

// Both calls block on the disk. Where the model's vocabulary is larger than the folder's, its
// further rows are the mean of the folder's (state/resized_tensor.h).
//
// NOT_FOUND: the folder, its config or its weights do not exist. DATA_LOSS: a file is truncated.
// INVALID_ARGUMENT names the file, and means one of these:
// - The config is of another model; the message has the field and both values.
// - A tensor is missing, has another shape, or has a dtype that is not F32, BF16 or F16.
// - The file is malformed.
class InitialWeights {
 public:
  // Checks the folder's config.json against the model. Also checks that the files have every tensor
  // of `tensors` that they must have.
  static absl::StatusOr<InitialWeights> Open(const std::string& folder, const v1::ModelSpec& model,
                                             const std::vector<v1::TensorInfo>& tensors);
  // Fills the master intervals in `targets`, which index `tensors`. All other intervals stay as
  // they are. Only the bytes of those intervals are read: a rank that holds a shard reads a shard.
  absl::Status Read(const std::vector<runtime::StateInterval>& targets) const;
  // Of the tensors that are read (data::FingerprintOf): another model has another one.
  uint64_t Fingerprint() const;

 private:
  absl::Status Resize(size_t tensor);

  std::shared_ptr<const state::SafetensorsFolder> files_;
  std::vector<v1::TensorInfo> tensors_;
  // By tensor; nothing: not read.
  std::vector<std::optional<state::SafetensorsFolder::Place>> places_;
  std::map<size_t, state::ResizedTensor> resized_;  // of those, by tensor
};

// Calls Open and Read.
absl::Status ReadInitialWeights(const std::string& folder, const v1::ModelSpec& model,
                                const std::vector<v1::TensorInfo>& tensors,
                                const std::vector<runtime::StateInterval>& targets);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_INITIAL_WEIGHTS_H_
