// A checkpoint's model, to generate text with.
//
//   MP_ASSIGN_OR_RETURN(const StoredModel stored, StoredModel::Open(source));
//   MP_ASSIGN_OR_RETURN(auto generator, stored.Load({.window = 512}));
//
// Both calls block, on the coordinator and on disks. Not thread-safe.
#ifndef MILEPOST_WORKER_TRAINER_STORED_MODEL_H_
#define MILEPOST_WORKER_TRAINER_STORED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/rpc/endpoint.h"
#include "engine/runtime/generation/generator.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::worker {

struct ModelSource {
  Endpoint coordinator;
  std::string checkpoint;  // "checkpoints/12"
  std::string base;        // of adapters: the folder with the model that they adapt
  // The parameters themselves. Otherwise, where the checkpoint has their average, that.
  bool trained_weights = false;
  v1::Precision precision = v1::PRECISION_FP32;
  int threads = 1;
  runtime::GenerationEngineFactory engine;
};

// What a model is loaded for.
struct TextRoom {
  int64_t window = 0;   // GeneratorOptions'
  bool scores = false;  // the same
  int64_t texts = 1;    // the same
};

class StoredModel {
 public:
  // FAILED_PRECONDITION: the checkpoint is of a script. INVALID_ARGUMENT: its model writes no text.
  // Otherwise CheckpointReader's errors.
  static absl::StatusOr<StoredModel> Open(ModelSource source);

  int64_t vocabulary() const { return vocabulary_; }
  int64_t context() const { return context_; }  // tokens that the model was made for
  // Its tokens are bytes.
  bool bytes() const { return vocabulary_ == 256; }
  // A generator. INVALID_ARGUMENT: it has adapters, and no folder is named, or more texts are
  // wanted than there can be. FAILED_PRECONDITION: the folder has another model.
  // RESOURCE_EXHAUSTED: there is too little memory. Otherwise CheckpointReader's errors.
  absl::StatusOr<std::unique_ptr<runtime::Generator>> Load(const TextRoom& room) const;

 private:
  StoredModel(ModelSource source, v1::CheckpointManifest manifest)
      : source_(std::move(source)), manifest_(std::move(manifest)) {}
  absl::Status LoadBase(runtime::Generator& generator) const;

  ModelSource source_;
  v1::CheckpointManifest manifest_;
  v1::ModelSpec model_;
  int64_t vocabulary_ = 0;
  int64_t context_ = 0;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_STORED_MODEL_H_
