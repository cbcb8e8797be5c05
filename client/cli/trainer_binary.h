// The trainer binary of a device, beside this program. The CPU and NVIDIA GPUs have one each.
#ifndef MILEPOST_CLIENT_CLI_TRAINER_BINARY_H_
#define MILEPOST_CLIENT_CLI_TRAINER_BINARY_H_

#include <string>

#include "absl/status/status.h"

namespace milepost::client {

std::string TrainerBinary(bool cuda);

// FAILED_PRECONDITION: the binary is missing; the message says what to do.
absl::Status CheckTrainerBinary(bool cuda);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TRAINER_BINARY_H_
