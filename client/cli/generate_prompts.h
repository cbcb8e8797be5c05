// `milepost generate --prompts`: texts of many prompts, made side by side.
#ifndef MILEPOST_CLIENT_CLI_GENERATE_PROMPTS_H_
#define MILEPOST_CLIENT_CLI_GENERATE_PROMPTS_H_

#include "absl/status/status.h"
#include "client/cli/access.h"
#include "client/cli/commands.h"
#include "client/cli/generation_source.h"

namespace milepost::client {

// Writes a line of JSON for each prompt of the file to stdout, in their order. Blocks.
// INVALID_ARGUMENT: the file, a prompt, or the model cannot be used. Otherwise ModelProcesses'
// errors.
absl::Status GeneratePrompts(const Access& access, const GenerationSource& source,
                             const GenerateOptions& options);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_GENERATE_PROMPTS_H_
