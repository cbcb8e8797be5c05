// Checks that ranks that compute together have equal devices and library versions. Different ones
// would give different bits, or fail after hours.
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

// What a rank reports about itself: names and values. Every rank has the same names in the same
// order.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Collective. FAILED_PRECONDITION, the same on every rank, has the first fact that differs and
// which ranks have what: "device: NVIDIA H100 on rank 3, NVIDIA H200 on ranks 0-2". All facts of a
// rank take at most 1 KiB. Blocks. Errors of the communicator are returned unchanged.
absl::Status CheckAgreement(Communicator& communicator, const Facts& facts);

// Collective: returns the `text` of rank `root`, at most 1 MiB, on every rank. FAILED_PRECONDITION,
// the same on every rank: the text is longer. Blocks. Errors of the communicator are returned
// unchanged.
absl::StatusOr<std::string> BroadcastText(Communicator& communicator, std::string text,
                                          int root = 0);

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_AGREEMENT_H_
