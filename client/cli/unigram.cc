#include "client/cli/unigram.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "common/status_macros.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

constexpr int64_t kMostTokens = 64 << 20;
constexpr int64_t kTokensAtOnce = 1 << 16;

absl::StatusOr<std::vector<int64_t>> CountTokens(const std::string& path, int64_t vocabulary) {
  MP_ASSIGN_OR_RETURN(const auto file, data::TokenFile::Open(path));
  std::vector<int64_t> counts(vocabulary, 0);
  std::vector<int32_t> tokens(kTokensAtOnce);
  const int64_t end = std::min(file->size(), kMostTokens);
  for (int64_t begin = 0; begin < end; begin += kTokensAtOnce) {
    tokens.resize(std::min(kTokensAtOnce, end - begin));
    MP_RETURN_IF_ERROR(file->Read(begin, vocabulary, absl::MakeSpan(tokens)));
    for (const int32_t token : tokens) ++counts[token];
  }
  return counts;
}

double Sum(const std::vector<int64_t>& counts) {
  double sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

}  // namespace

absl::StatusOr<double> UnigramLoss(const std::string& train, const std::string& validation,
                                   int64_t vocabulary) {
  MP_ASSIGN_OR_RETURN(const std::vector<int64_t> seen, CountTokens(train, vocabulary));
  MP_ASSIGN_OR_RETURN(const std::vector<int64_t> judged,
                      CountTokens(validation.empty() ? train : validation, vocabulary));
  const double total = Sum(seen) + vocabulary;
  const double tokens = Sum(judged);
  if (tokens == 0) return absl::InvalidArgumentError("no tokens");
  double loss = 0;
  for (int64_t token = 0; token < vocabulary; ++token) {
    loss -= judged[token] * std::log((seen[token] + 1) / total);
  }
  return loss / tokens;
}

}  // namespace milepost::client
