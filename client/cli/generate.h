// Starts milepost-trainer, which owns the device, to generate text.
#ifndef MILEPOST_CLIENT_CLI_GENERATE_H_
#define MILEPOST_CLIENT_CLI_GENERATE_H_

#include <string>

#include "common/subprocess.h"

namespace milepost::client {

struct GenerateOptions;

// The options that start the trainer, which prints the text on stdout. `checkpoint` is a full name.
SpawnOptions GenerateSpawn(const std::string& address, const std::string& checkpoint,
                           const GenerateOptions& options);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_GENERATE_H_
