#include "client/cli/trainer_binary.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/subprocess.h"

namespace milepost::client {

std::string TrainerBinary(bool cuda) {
  return SiblingBinary(cuda ? "milepost-trainer-cuda" : "milepost-trainer");
}

absl::Status CheckTrainerBinary(bool cuda) {
  const std::string binary = TrainerBinary(cuda);
  if (access(binary.c_str(), X_OK) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "there is no ", binary,
      cuda ? ": build on a machine with NVIDIA's CUDA toolkit (scripts/bootstrap --cuda)"
           : ": it belongs beside milepost"));
}

}  // namespace milepost::client
