// The loss of a model that knows only how often each token occurs: what training must beat.
#ifndef MILEPOST_CLIENT_CLI_UNIGRAM_H_
#define MILEPOST_CLIENT_CLI_UNIGRAM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace milepost::client {

// Cross-entropy, in nats per token, of `validation` (or `train`, when that is empty) under the
// token frequencies of `train`, each counted once more than it occurs. Reads at most 64 Mi tokens
// of each.
absl::StatusOr<double> UnigramLoss(const std::string& train, const std::string& validation,
                                   int64_t vocabulary);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_UNIGRAM_H_
