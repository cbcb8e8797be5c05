// Islands that train apart, beside two of PyTorch with torch.optim.SGD as the outer optimizer, as
// make_sync_curve.py had them train: each island by itself, what its ranks report between outer
// steps, and what all have in the end.
#include <string>

#include "engine/runtime/testing/tiny_job.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class SyncCurve : public GoldenCurve {
 protected:
  static constexpr int kIslands = 2;

  void SetUp() override {
    Open("sync_curve.json");
    WriteTokens(golden_["model"]);
  }

  v1::JobSpec SpecAt(int ranks, int stage, const json& golden) const {
    v1::JobSpec spec = Spec(Gpt2Of(golden_["model"]), stage, /*micro=*/8 / ranks);
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_train()->mutable_batch()->set_accumulation(1);
    v1::SyncSpec* sync = spec.mutable_train()->mutable_sync();
    sync->set_every(golden_["every"]);
    sync->set_islands(kIslands);
    sync->mutable_outer_optimizer()->set_lr(golden["lr"]);
    sync->mutable_outer_optimizer()->set_momentum(golden["momentum"]);
    sync->mutable_outer_optimizer()->set_nesterov(golden["nesterov"]);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  void Expect(int ranks, int stage) {
    for (const json& golden : golden_["cases"]) {
      SCOPED_TRACE(testing::Message()
                   << ranks << " ranks, stage " << stage << ", outer lr " << golden["lr"]);
      const v1::JobSpec spec = SpecAt(ranks, stage, golden);
      runtime::RunRanks(spec, [&](int rank, runtime::TrainingSession& session) {
        SetWeights(golden["parameters"], "ln_", session);
        const int island = rank * kIslands / ranks;
        for (const json& expected : golden["steps"]) {
          const absl::StatusOr<runtime::StepReport> report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          // After an outer step the islands' mean.
          const auto wanted = [&](const char* field) {
            const double own = expected["islands"][island][field];
            const double other = expected["islands"][1 - island][field];
            return report->of_all_ranks ? (own + other) / 2 : own;
          };
          const double loss = wanted("loss"), norm = wanted("grad_norm");
          EXPECT_EQ(report->of_all_ranks, report->step % 5 == 0);
          EXPECT_NEAR(report->train_loss, loss, kTolerance * loss) << "step " << report->step;
          EXPECT_NEAR(report->grad_norm, norm, kTolerance * norm) << "step " << report->step;
        }
        const bool whole = stage == 0 && rank == ranks - 1;
        if (whole) ExpectTheWeights(session, golden["final"]);
      });
    }
  }
};

TEST_F(SyncCurve, IslandsOfOneRank) { Expect(2, 0); }
TEST_F(SyncCurve, IslandsOfTwoRanks) { Expect(4, 0); }
TEST_F(SyncCurve, IslandsThatShardTheirStates) { Expect(4, 1); }
TEST_F(SyncCurve, IslandsThatShardTheirParameters) { Expect(4, 3); }

}  // namespace
}  // namespace milepost
