#include "engine/runtime/generation/sampling.h"

#include <algorithm>
#include <cmath>

#include "common/philox.h"
#include "engine/runtime/executor/randomness.h"

namespace milepost::runtime {
namespace {

// In [0, 1), 53 bits.
double Uniform(uint64_t seed, int64_t index) {
  const auto counter = static_cast<uint64_t>(index);
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                 PhiloxKey(seed, RandomStream(RandomPurpose::kGenerate, 0)));
  const uint64_t bits = (uint64_t{words[1]} << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

Sampler::Sampler(const GenerateOptions& options, int64_t vocabulary) : options_(options) {
  candidates_.reserve(static_cast<size_t>(vocabulary));
  cumulative_.reserve(static_cast<size_t>(vocabulary));
}

double Sampler::Accumulate(absl::Span<const float> logits, float largest) {
  cumulative_.clear();
  double sum = 0;
  for (int32_t id : candidates_) {
    sum += std::exp((static_cast<double>(logits[id]) - largest) / options_.temperature);
    cumulative_.push_back(sum);
  }
  return sum;
}

int32_t Sampler::Next(absl::Span<const float> logits, int64_t index) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates_.push_back(static_cast<int32_t>(i));
  }
  if (candidates_.empty()) return 0;
  auto better = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  if (options_.temperature == 0) {
    return *std::min_element(candidates_.begin(), candidates_.end(), better);
  }
  const auto top = static_cast<size_t>(options_.top_k);
  if (top > 0 && top < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                     better);
    candidates_.resize(top);
    std::sort(candidates_.begin(), candidates_.end());  // the same order on every C++ library
  }
  if (options_.top_p < 1) {
    std::sort(candidates_.begin(), candidates_.end(), better);
    const double wanted = options_.top_p * Accumulate(logits, logits[candidates_[0]]);
    const auto enough = std::lower_bound(cumulative_.begin(), cumulative_.end(), wanted);
    candidates_.resize(std::min<size_t>(enough - cumulative_.begin() + 1, candidates_.size()));
    std::sort(candidates_.begin(), candidates_.end());
  }
  const float largest = logits[*std::min_element(candidates_.begin(), candidates_.end(), better)];
  const double wanted = Uniform(options_.seed, index) * Accumulate(logits, largest);
  const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), wanted);
  const auto place = std::min<size_t>(found - cumulative_.begin(), candidates_.size() - 1);
  return candidates_[place];
}

}  // namespace milepost::runtime
