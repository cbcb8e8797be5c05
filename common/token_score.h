// How likely a model held a token of a text to be.
#ifndef MILEPOST_COMMON_TOKEN_SCORE_H_
#define MILEPOST_COMMON_TOKEN_SCORE_H_

#include <cstdint>
#include <vector>

namespace milepost {

struct TokenChoice {
  int32_t token = 0;
  double log_prob = 0;  // natural; of the model itself, without temperature

  bool operator==(const TokenChoice&) const = default;
};

struct TokenScore {
  TokenChoice token;              // the text's
  std::vector<TokenChoice> best;  // the likeliest in its place, in falling order

  bool operator==(const TokenScore&) const = default;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_TOKEN_SCORE_H_
