#include "client/cli/model_spawns.h"

#include "absl/strings/str_cat.h"
#include "client/cli/text_generation.h"
#include "client/cli/trainer_binary.h"
#include "common/openmp.h"

namespace milepost::client {

SpawnOptions ServingTrainer(const Access& access, const GenerationSource& source,
                            const TrainerRoom& room) {
  SpawnOptions trainer;
  trainer.argv = {TrainerBinary(room.device == "cuda"),
                  "serve",
                  "--coordinator",
                  access.address(),
                  "--checkpoint",
                  source.checkpoint,
                  "--window",
                  absl::StrCat(room.window),
                  "--texts",
                  absl::StrCat(room.texts),
                  "--precision",
                  room.precision};
  if (!source.base.empty()) trainer.argv.push_back("--base=" + source.base);
  if (room.trained_weights) trainer.argv.push_back("--trained-weights");
  trainer.env = ShortOpenMpSpins();
  AddCredentials(access, &trainer);
  return trainer;
}

SpawnOptions ServingTokenizer(const std::string& tokenizer) {
  SpawnOptions python;
  if (tokenizer.empty()) return python;
  python.argv = {"/usr/bin/env", "python3", "-c", std::string(GenerateTextScript()),
                 "serve",        tokenizer};
  python.env = {{"TRANSFORMERS_VERBOSITY", "error"}, {"TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"}};
  return python;
}

}  // namespace milepost::client
