// Averages of weights over the steps that make_ema_curve.py had PyTorch train and average, and what
// a validation by them measures.
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class EmaCurve : public GoldenCurve {
 protected:
  void ExpectTheAverages(const char* which, bool warmup, int stage) {
    Open("ema_curve.json");
    WriteTokens(golden_["model"]);
    v1::JobSpec with;
    with.mutable_data()->set_validation(folder_ + "/train.npy");
    with.mutable_train()->mutable_ema()->set_decay(golden_["decay"]);
    with.mutable_train()->mutable_ema()->set_warmup(warmup);
    const v1::JobSpec spec = Spec(Gpt2Of(golden_["model"]), stage, 8, with);
    const json& golden = golden_[which];
    ExpectTheCurve(spec, golden, "ln_", [&](runtime::TrainingSession& session) {
      ExpectTheWeights(session, golden["averages"], "ema");
      const auto report = session.Evaluate();
      ASSERT_TRUE(report.ok()) << report.status();
      const double loss = golden["loss"], trained = golden["steps"].back()["loss"];
      EXPECT_NEAR(report->loss, loss, kTolerance * loss);
      EXPECT_GT(std::abs(loss - trained), 100 * kTolerance * loss) << "tells them apart";
    });
  }
};

TEST_F(EmaCurve, ConstantDecay) { ExpectTheAverages("constant", /*warmup=*/false, 0); }
TEST_F(EmaCurve, WarmUp) { ExpectTheAverages("warmup", /*warmup=*/true, 1); }

}  // namespace
}  // namespace milepost
