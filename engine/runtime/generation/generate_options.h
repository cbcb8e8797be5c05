// How a text is made.
#ifndef MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATE_OPTIONS_H_
#define MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATE_OPTIONS_H_

#include <cstdint>
#include <optional>

namespace milepost::runtime {

struct GenerateOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: greedy
  int64_t top_k = 0;         // 0: all
  // The likeliest tokens whose probabilities, at this temperature and among the top_k, reach this
  // sum; in (0, 1], 1: all.
  double top_p = 1;
  uint64_t seed = 0;
  // How many of the likeliest tokens are told of each that is made, with log-probabilities; none:
  // nor is the token's own.
  std::optional<int64_t> best;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATE_OPTIONS_H_
