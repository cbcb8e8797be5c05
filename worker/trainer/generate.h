// Generates text from a checkpoint: `milepost-trainer generate`.
#ifndef MILEPOST_WORKER_TRAINER_GENERATE_H_
#define MILEPOST_WORKER_TRAINER_GENERATE_H_

#include <string>

#include "absl/status/status.h"
#include "common/rpc/endpoint.h"
#include "engine/runtime/generation/generator.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::worker {

struct GenerateRequest {
  Endpoint coordinator;
  std::string checkpoint;  // "checkpoints/12"
  std::string base;        // of adapters: the folder with the model that they adapt
  // The prompt: text for a byte-level model (vocabulary 256), or token ids separated by commas for
  // other models.
  std::string prompt;
  std::string prompt_ids;
  runtime::GenerateOptions options;
  v1::Precision precision = v1::PRECISION_FP32;
  int threads = 1;
  runtime::GenerationEngineFactory engine;
};

// Writes the prompt and its continuation to stdout as it is generated. Blocks.
absl::Status Generate(const GenerateRequest& request);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_GENERATE_H_
