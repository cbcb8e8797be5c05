// Ranks that compute together must compute alike: other devices or library versions give other
// bits, or none at all after hours.
//
//   MP_RETURN_IF_ERROR(comm::CheckAgreement(*communicator, {{"device", "NVIDIA H200"},
//                                                           {"cuDNN", "9.19.0"}}));
#ifndef MILEPOST_ENGINE_COMM_AGREEMENT_H_
#define MILEPOST_ENGINE_COMM_AGREEMENT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"

namespace milepost::comm {

// What a rank says of itself: names and values, the same names in the same order on every rank.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Collective. OK, or FAILED_PRECONDITION, the same on every rank, with the first fact that differs
// and which ranks have what: "device: NVIDIA H100 on rank 3, NVIDIA H200 on ranks 0-2". All facts
// of a rank take 1 KiB at most. Blocks; errors of the communicator as they are.
absl::Status CheckAgreement(Communicator& communicator, const Facts& facts);

// Collective: rank 0's `text`, of at most 1 MiB, on every rank. Blocks; errors of the communicator
// as they are, and FAILED_PRECONDITION, the same on every rank, for a longer one.
absl::StatusOr<std::string> BroadcastText(Communicator& communicator, std::string text);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_AGREEMENT_H_
