// Which model `milepost generate` and `milepost serve` take.
//
//   MP_ASSIGN_OR_RETURN(const GenerationSource source, FindSource(access, {.job = "jobs/3"}));
//
// Blocks on the coordinator.
#ifndef MILEPOST_CLIENT_CLI_GENERATION_SOURCE_H_
#define MILEPOST_CLIENT_CLI_GENERATION_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/access.h"
#include "common/subprocess.h"

namespace milepost::client {

struct GenerationSource {
  std::string checkpoint;  // full name; as asked for: empty, or as typed
  std::string job;         // the checkpoint's; as asked for: whose newest checkpoint, or empty
  std::string tokenizer;   // a folder or tokenizer.json; empty: none was named, and none was found
  std::string base;        // of adapters: the folder of what they adapt; empty: the job has none
};

// The checkpoint that is named, or the newest one of the job that is named, or of the newest job.
// Tokenizer and base are those of the job's train.init_from where none are named. NOT_FOUND: there
// is no job, or no checkpoint. INVALID_ARGUMENT: ResolveJob's. Otherwise the coordinator's errors.
absl::StatusOr<GenerationSource> FindSource(const Access& access, const GenerationSource& asked);

// Gives the trainer the user's credentials.
void AddCredentials(const Access& access, SpawnOptions* spawn);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_GENERATION_SOURCE_H_
