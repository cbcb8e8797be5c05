// From a model's folder and data to a spec, for `milepost run --model FOLDER --data FILE`.
//
//   MP_ASSIGN_OR_RETURN(const std::string spec, PrepareFineTuning(
//       {.model = "models/SmolLM2", .data = {"chats.jsonl"}}));   // "SmolLM2-chats/spec.yaml"
//
// The new folder has the token files and the spec, which a user may change.
#ifndef MILEPOST_CLIENT_CLI_FINE_TUNING_H_
#define MILEPOST_CLIENT_CLI_FINE_TUNING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/tokenize.h"

namespace milepost::client {

struct FineTuning {
  std::string model;              // a Hugging Face folder with weights and a tokenizer
  std::vector<std::string> data;  // what `dataset tokenize` takes
  std::string folder;             // to be made; empty: "<model>-<first data file>" in this folder
  bool lora = false;
  bool dora = false;            // adapters, with magnitudes
  int64_t sequence_length = 0;  // 0: 1024, or the model's context where that is less
};

// The spec's path. Blocks until the data are tokenized. Where the folder was made of the same model
// and data before it stays as it is, whatever its spec says now.
// ALREADY_EXISTS: it was made of others, or is something else. INVALID_ARGUMENT: the model's or
// the data's. Otherwise TokenizeHuggingFace's errors.
absl::StatusOr<std::string> PrepareFineTuning(const FineTuning& tuning);

// What the spec depends on.
struct TuningFacts {
  std::string name;    // of the job
  std::string model;   // the folder's absolute path
  std::string family;  // "llama"
  int64_t vocabulary = 0;
  bool lora = false;
  bool dora = false;  // where there is lora
  int64_t sequence_length = 0;
  TokenizeResult tokens;
  int gpus = 0;  // of this host
};

// Three epochs (of pairs one) at rates that are usual for it; what is a question of memory is auto.
// Pure.
std::string TuningSpec(const TuningFacts& facts);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_FINE_TUNING_H_
