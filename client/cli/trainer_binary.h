// The trainer of a device: one binary for the CPU, one for NVIDIA GPUs, beside this one.
#ifndef MILEPOST_CLIENT_CLI_TRAINER_BINARY_H_
#define MILEPOST_CLIENT_CLI_TRAINER_BINARY_H_

#include <string>

#include "absl/status/status.h"

namespace milepost::client {

std::string TrainerBinary(bool cuda);

// FAILED_PRECONDITION, with what to do, where it is not there.
absl::Status CheckTrainerBinary(bool cuda);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TRAINER_BINARY_H_
