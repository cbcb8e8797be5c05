// Generates text from a checkpoint: `milepost-trainer generate`.
#ifndef MILEPOST_WORKER_TRAINER_GENERATE_H_
#define MILEPOST_WORKER_TRAINER_GENERATE_H_

#include <string>

#include "absl/status/status.h"
#include "engine/runtime/generation/generator.h"
#include "worker/trainer/stored_model.h"

namespace milepost::worker {

struct GenerateRequest {
  ModelSource source;
  // The prompt: text for a byte-level model (vocabulary 256), or token ids separated by commas for
  // other models.
  std::string prompt;
  std::string prompt_ids;
  runtime::GenerateOptions options;
};

// Writes the prompt and its continuation to stdout as it is generated. Blocks.
absl::Status Generate(const GenerateRequest& request);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_GENERATE_H_
