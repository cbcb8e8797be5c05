// The loss of a model that knows only the frequency of each token: training must beat it. Blocks on
// the disk.
#ifndef MILEPOST_CLIENT_CLI_UNIGRAM_H_
#define MILEPOST_CLIENT_CLI_UNIGRAM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace milepost::client {

// The cross-entropy, in nats per token, of `validation` under the token frequencies of `train`. If
// `validation` is empty, `train` is used instead. Each count is raised by one. Reads at most 64 Mi
// tokens of each. INVALID_ARGUMENT: there are no tokens. Otherwise the errors of TokenFile.
absl::StatusOr<double> UnigramLoss(const std::string& train, const std::string& validation,
                                   int64_t vocabulary);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_UNIGRAM_H_
