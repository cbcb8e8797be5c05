// Log-probabilities out of logits.
//
//   std::vector<TokenScore> scores = ScoresOf(logits, vocabulary, {17, 4}, /*best=*/5);
#ifndef MILEPOST_ENGINE_RUNTIME_GENERATION_TOKEN_SCORES_H_
#define MILEPOST_ENGINE_RUNTIME_GENERATION_TOKEN_SCORES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/token_score.h"

namespace milepost::runtime {

// Of tokens[r], after row r of logits [tokens.size(), vocabulary]; and the `best` likeliest (at
// most the vocabulary) of that row. Of equal logits the lower id is likelier. The same token has
// the same figure in both. NaN logits are never among the best; in a row that has one or an
// infinite one, all figures are NaN. Uses the calling thread's OpenMP pool. Thread-safe.
std::vector<TokenScore> ScoresOf(const float* logits, int64_t vocabulary,
                                 absl::Span<const int32_t> tokens, int64_t best);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GENERATION_TOKEN_SCORES_H_
