// The processes of a model that `milepost serve` and `milepost generate --prompts` talk to
// (client/serve/model_processes.h).
#ifndef MILEPOST_CLIENT_CLI_MODEL_SPAWNS_H_
#define MILEPOST_CLIENT_CLI_MODEL_SPAWNS_H_

#include <cstdint>
#include <string>

#include "client/cli/access.h"
#include "client/cli/generation_source.h"
#include "common/subprocess.h"

namespace milepost::client {

struct TrainerRoom {
  std::string device;            // "cpu" or "cuda"
  std::string precision;         // "fp32", "bf16" or "fp16"
  int64_t window = 0;            // tokens of a text, at most the model's context
  int64_t texts = 1;             // side by side
  bool trained_weights = false;  // not the checkpoint's average of them
};

// `milepost-trainer serve`.
SpawnOptions ServingTrainer(const Access& access, const GenerationSource& source,
                            const TrainerRoom& room);
// `generate_text.py serve`. An empty argv where there is no tokenizer.
SpawnOptions ServingTokenizer(const std::string& tokenizer);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_MODEL_SPAWNS_H_
