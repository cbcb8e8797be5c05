// One token out of logits.
//
//   Sampler sampler({.temperature = 0.8, .top_k = 40, .seed = 1}, vocabulary);
//   int32_t token = sampler.Next(logits, /*index=*/17);
//
// The choice depends on (logits, options, index) alone. Not thread-safe (keeps scratch).
#ifndef MILEPOST_ENGINE_RUNTIME_GENERATION_SAMPLING_H_
#define MILEPOST_ENGINE_RUNTIME_GENERATION_SAMPLING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/runtime/generation/generate_options.h"

namespace milepost::runtime {

class Sampler {
 public:
  Sampler(const GenerateOptions& options, int64_t vocabulary);
  // `index`: how many tokens were generated before. Of equal logits the lower id is preferred.
  // NaN logits are never chosen, unless all are: then 0.
  int32_t Next(absl::Span<const float> logits, int64_t index);

 private:
  // Fills cumulative_ with the running sums of the candidates' e^(logit / temperature), relative to
  // `largest`; returns the last.
  double Accumulate(absl::Span<const float> logits, float largest);

  const GenerateOptions options_;
  std::vector<int32_t> candidates_;
  std::vector<double> cumulative_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GENERATION_SAMPLING_H_
