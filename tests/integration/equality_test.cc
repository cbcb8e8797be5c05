// Every family trains the same at every ZeRO stage, hybrid sharding, number of ranks, recomputation
// and precision: 10 steps against stage 0 on one rank with the same global batch. In every cell the
// arena has exactly the planned bytes.
//
// With MILEPOST_FULL_MATRIX set (scripts/test --full) every cell runs; else of each layout one
// recomputation, in turn.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "engine/runtime/testing.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kGlobalBatch = 12;  // 1 to 4 ranks divide it

struct Layout {
  int ranks;
  int stage;
  int group;  // of hybrid sharding; 0: all ranks
};

struct Family {
  std::string name;
  std::function<void(TinyOptions&)> choose;
};

const Family kFamilies[] = {
    {"Gpt2", [](TinyOptions& options) { options.dropout = 0.1; }},
    {"Llama", [](TinyOptions& options) { options.llama = true; }},
};

struct Precision {
  std::string name;
  v1::Precision value;
  double tolerance;  // relative, of a step's loss
};

const Precision kPrecisions[] = {
    {"Fp32", v1::PRECISION_FP32, 1e-5},
    {"Bf16", v1::PRECISION_BF16, 2e-3},
};

constexpr v1::Recompute kRecomputes[] = {v1::RECOMPUTE_NONE, v1::RECOMPUTE_SELECTIVE,
                                         v1::RECOMPUTE_FULL};

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (int ranks : {1, 2, 3, 4}) {
    for (int stage : {0, 1, 2, 3}) layouts.push_back({ranks, stage, 0});
  }
  for (int stage : {1, 2, 3}) {
    for (const Layout& hybrid : {Layout{2, stage, 1}, Layout{3, stage, 1}, Layout{4, stage, 2}}) {
      layouts.push_back(hybrid);
    }
  }
  return layouts;
}

bool Full() { return std::getenv("MILEPOST_FULL_MATRIX") != nullptr; }

// Rank 0's losses; planned bytes are compared with allocated ones on every rank.
std::vector<double> Train(const v1::JobSpec& spec) {
  std::vector<double> losses;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank == 0) losses.push_back(report->train_loss);
    }
  });
  return losses;
}

class Equality : public testing::TestWithParam<std::tuple<Family, Precision>> {};

TEST_P(Equality, OfEveryLayoutWithOneRankAtStage0) {
  const auto& [family, precision] = GetParam();
  const TinyJob job;
  TinyOptions options{.ranks = 1, .stage = 0, .precision = precision.value};
  options.global_batch = kGlobalBatch;
  options.micro_batch = 3;
  family.choose(options);
  const std::vector<double> reference = Train(job.Spec(options));
  ASSERT_EQ(reference.size(), 10u);
  int cell = 0;
  for (const Layout& layout : Layouts()) {
    for (int r = 0; r < 3; ++r) {
      if (!Full() && r != cell % 3) continue;
      options.ranks = layout.ranks;
      options.stage = layout.stage;
      options.group = layout.group;
      options.micro_batch = layout.ranks == 3 ? 2 : 3;  // accumulated 4, 2, 2 or 1 times
      options.recompute = kRecomputes[r];
      const std::vector<double> losses = Train(job.Spec(options));
      ASSERT_EQ(losses.size(), reference.size());
      for (size_t step = 0; step < losses.size(); ++step) {
        EXPECT_NEAR(losses[step], reference[step], precision.tolerance * reference[step])
            << "step " << step << ", " << layout.ranks << " ranks, stage " << layout.stage
            << ", groups of " << layout.group << ", recompute " << r;
      }
    }
    ++cell;
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, Equality,
                         testing::Combine(testing::ValuesIn(kFamilies),
                                          testing::ValuesIn(kPrecisions)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name + std::get<1>(param.param).name;
                         });

}  // namespace
}  // namespace milepost::runtime
