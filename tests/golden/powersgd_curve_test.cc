// Gradients that travel as factors, beside two ranks of PyTorch with its PowerSGD hook, as
// make_powersgd_curve.py had them train. What a rank's own samples are makes no difference but to
// rounding, so any number of ranks follows the same curve.
#include <map>
#include <string>

#include "engine/runtime/testing/tiny_job.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class PowerSgdCurve : public GoldenCurve {
 protected:
  void SetUp() override {
    Open("powersgd_curve.json");
    WriteTokens(golden_["model"]);
  }

  v1::JobSpec SpecAt(int ranks, const json& golden) const {
    v1::JobSpec with;
    v1::PowerSgdSpec* powersgd = with.mutable_train()->mutable_powersgd();
    powersgd->set_rank(golden["rank"]);
    powersgd->set_start_step(golden_["start_step"]);
    v1::JobSpec spec = Spec(Gpt2Of(golden_["model"]), /*stage=*/0, /*micro=*/8 / ranks, with);
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_train()->mutable_batch()->set_accumulation(1);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  // PyTorch's first right factors, whose columns are our rows.
  void SetFactors(const json& golden, runtime::TrainingSession& session) const {
    std::map<std::string, int64_t> index;
    for (const json& name : golden["parameters"]) index.emplace(name, index.size());
    int factors = 0;
    for (const runtime::StateInterval& target : session.RestoreTargets()) {
      const v1::TensorInfo& tensor = session.state_tensors()[target.tensor];
      if (tensor.kind() != state::kFactorKind) continue;
      ++factors;
      const int64_t rank = tensor.shape(0), cols = tensor.shape(1);
      const int64_t seed = golden_["factors"].get<int64_t>() + index.at(tensor.name());
      auto* rows = reinterpret_cast<float*>(target.data);
      for (int64_t e = 0; e < rank * cols; ++e) {
        rows[e % rank * cols + e / rank] = Uniform(seed, e);
      }
    }
    EXPECT_GT(factors, 0);
    ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
  }

  void Expect(int ranks) {
    for (const json& golden : golden_["cases"]) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, factors of " << golden["rank"]);
      const v1::JobSpec spec = SpecAt(ranks, golden);
      runtime::RunRanks(spec, [&](int rank, runtime::TrainingSession& session) {
        SetWeights(golden["parameters"], "ln_", session);
        SetFactors(golden, session);
        for (const json& expected : golden["steps"]) {
          const absl::StatusOr<runtime::StepReport> report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          const double loss = expected["loss"], norm = expected["grad_norm"];
          EXPECT_NEAR(report->train_loss, loss, kTolerance * loss) << "step " << report->step;
          EXPECT_NEAR(report->grad_norm, norm, kTolerance * norm) << "step " << report->step;
        }
        if (ranks == 1 && rank == 0) ExpectTheWeights(session, golden["final"]);
      });
    }
  }
};

TEST_F(PowerSgdCurve, OneRank) { Expect(1); }
TEST_F(PowerSgdCurve, TwoRanks) { Expect(2); }
TEST_F(PowerSgdCurve, FourRanks) { Expect(4); }

}  // namespace
}  // namespace milepost
