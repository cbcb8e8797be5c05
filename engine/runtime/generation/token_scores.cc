#include "engine/runtime/generation/token_scores.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/classifier/classifier_cpu_kernel.h"

namespace milepost::runtime {
namespace {

// The ids of the largest logits, largest first.
std::vector<int32_t> Largest(absl::Span<const float> logits, size_t count) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (std::isnan(logit) || (ids.size() == count && !(logit > logits[ids.back()]))) continue;
    if (ids.size() == count) ids.pop_back();
    const auto place =
        std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return logit > logits[id]; });
    ids.insert(place, static_cast<int32_t>(i));
  }
  return ids;
}

TokenScore ScoreOfRow(absl::Span<const float> logits, int32_t token, size_t best) {
  const std::vector<int32_t> ids = Largest(logits, std::max<size_t>(1, best));
  const int32_t likeliest = ids.empty() ? token : ids[0];
  float its = 0;
  kernels::ClassifierLogProbs<float>(logits.data(), &likeliest, 1,
                                     static_cast<int64_t>(logits.size()), &its);
  const double log_sum = static_cast<double>(logits[likeliest]) - its;
  const auto choice = [&](int32_t id) { return TokenChoice{id, logits[id] - log_sum}; };
  TokenScore score{.token = choice(token), .best = {}};
  for (size_t i = 0; i < best && i < ids.size(); ++i) score.best.push_back(choice(ids[i]));
  return score;
}

}  // namespace

std::vector<TokenScore> ScoresOf(const float* logits, int64_t vocabulary,
                                 absl::Span<const int32_t> tokens, int64_t best) {
  std::vector<TokenScore> scores(tokens.size());
  kernels::ParallelFor(0, static_cast<int64_t>(tokens.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      scores[row] = ScoreOfRow({logits + row * vocabulary, static_cast<size_t>(vocabulary)},
                               tokens[row], static_cast<size_t>(std::max<int64_t>(0, best)));
    }
  });
  return scores;
}

}  // namespace milepost::runtime
