#include "engine/runtime/generation/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace milepost::runtime {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Sampler, GreedyTakesTheLargestAndTheLowerOfEquals) {
  Sampler sampler({.temperature = 0}, 5);
  EXPECT_EQ(sampler.Next({{kNan, 1.0F, 3.0F, 3.0F, 2.0F}}, 0), 2);
  EXPECT_EQ(sampler.Next({{kNan, kNan, kNan, kNan, kNan}}, 0), 0);
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F};
  const double temperature = 0.7;
  Sampler sampler({.temperature = temperature, .seed = 3}, 3);
  std::vector<int> counts(3);
  const int draws = 20000;
  for (int i = 0; i < draws; ++i) ++counts[static_cast<size_t>(sampler.Next(logits, i))];
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit / temperature);
  for (size_t i = 0; i < counts.size(); ++i) {
    const double p = std::exp(logits[i] / temperature) / sum;
    EXPECT_NEAR(counts[i], draws * p, 4 * std::sqrt(draws * p * (1 - p))) << i;  // 4 sigma
  }
}

TEST(Sampler, TopKNeverLeavesTheK) {
  Sampler sampler({.temperature = 5, .top_k = 2, .seed = 3}, 4);
  std::vector<int> counts(4);
  for (int i = 0; i < 200; ++i) {
    ++counts[static_cast<size_t>(sampler.Next({{1.0F, 4.0F, 2.0F, 5.0F}}, i))];
  }
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[3], 0);
}

// Probabilities 0.4, 0.3, 0.2, 0.1 at temperature 1.
TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  std::vector<float> logits;
  for (double p : {0.2, 0.4, 0.1, 0.3}) logits.push_back(static_cast<float>(std::log(p)));
  const auto chosen = [&](GenerateOptions options) {
    options.temperature = 1;
    options.seed = 3;
    Sampler sampler(options, 4);
    std::vector<bool> seen(4);
    for (int i = 0; i < 500; ++i) seen[static_cast<size_t>(sampler.Next(logits, i))] = true;
    return seen;
  };
  EXPECT_EQ(chosen({.top_p = 0.3}), (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(chosen({.top_p = 0.6}), (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(chosen({.top_p = 0.8}), (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(chosen({.top_p = 1}), (std::vector<bool>{true, true, true, true}));
  // Of the two of top_k, the likelier has 4/7.
  EXPECT_EQ(chosen({.top_k = 2, .top_p = 0.5}), (std::vector<bool>{false, true, false, false}));
}

TEST(Sampler, DependsOnSeedAndIndexAlone) {
  const std::vector<float> logits(50, 0.0F);
  Sampler a({.seed = 1}, 50);
  Sampler b({.seed = 1}, 50);
  Sampler other({.seed = 2}, 50);
  int same = 0;
  for (int i = 20; i-- > 0;) {
    EXPECT_EQ(a.Next(logits, i), b.Next(logits, i));
    same += a.Next(logits, i) == other.Next(logits, i);
  }
  EXPECT_LT(same, 10);
}

}  // namespace
}  // namespace milepost::runtime
