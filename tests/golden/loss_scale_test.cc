// Dynamic loss scaling against the traces of torch.amp.GradScaler in loss_scale.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "engine/optim/loss_scaler.h"
#include "engine/runtime/testing/tiny_job.h"
#include "nlohmann/json.hpp"

namespace milepost::runtime {
namespace {

using json = nlohmann::json;

json Golden() {
  std::ifstream file("tests/golden/loss_scale.json");
  EXPECT_TRUE(file.good());
  return json::parse(file);
}

// The scale of every step's backward.
std::vector<double> ScalesOf(const json& golden) {
  std::vector<double> scales;
  for (const json& change : golden["scales"]) {
    const size_t from = change[0].get<size_t>();
    if (from > 0) scales.resize(from, scales.back());
    scales.push_back(change[1].get<double>());
  }
  scales.resize(golden["steps"].get<size_t>(), scales.back());
  return scales;
}

TEST(LossScaleGolden, TheScalerFollowsGradScaler) {
  const json golden = Golden();
  ASSERT_GE(golden["cases"].size(), 5u);
  for (const json& c : golden["cases"]) {
    optim::LossScaler scaler({.initial = c["init_scale"],
                              .growth = c["growth_factor"],
                              .backoff = c["backoff_factor"],
                              .growth_interval = c["growth_interval"],
                              .floor = 0});
    const std::set<int64_t> overflows = c["overflows"];
    const std::vector<double> scales = ScalesOf(c);
    for (size_t step = 0; step < scales.size(); ++step) {
      ASSERT_EQ(scaler.scale(), scales[step]) << c["name"] << " step " << step;
      scaler.Update(overflows.count(static_cast<int64_t>(step)) > 0);
    }
    EXPECT_EQ(c["skipped"], c["overflows"]);
  }
}

// The first element of the final norm's gain, where this rank holds it.
float* Victim(TrainingSession& session) {
  for (const StateInterval& interval : session.RestoreTargets()) {
    const v1::TensorInfo& info = session.state_tensors()[interval.tensor];
    if (info.kind() == "master" && info.name().find("ln_f.weight") != std::string::npos &&
        interval.begin == 0) {
      return reinterpret_cast<float*>(interval.data);
    }
  }
  return nullptr;
}

void SetVictim(TrainingSession& session, float value) {
  if (float* victim = Victim(session)) *victim = value;
  ASSERT_TRUE(session.FinishRestore(session.trainer_state()).ok());
}

// A real fp16 run: one rank ruins a weight before some steps and mends it after.
TEST(LossScaleGolden, ATrainingRunWithInjectedOverflowsFollowsGradScaler) {
  const json golden = Golden();
  const auto found = std::find_if(golden["cases"].begin(), golden["cases"].end(),
                                  [](const json& c) { return c["name"] == "training"; });
  ASSERT_NE(found, golden["cases"].end());
  const json& c = *found;
  const std::vector<double> scales = ScalesOf(c);
  const std::set<int64_t> overflows = c["overflows"];
  TinyJob job;
  for (const int stage : {0, 1, 2, 3}) {
    TinyOptions options{.ranks = 2, .stage = stage, .precision = v1::PRECISION_FP16};
    options.micro_batch = 3;
    options.steps = static_cast<int64_t>(scales.size());
    v1::JobSpec spec = job.Spec(options);
    spec.mutable_train()->mutable_loss_scale()->set_growth_interval(c["growth_interval"]);
    // The scaler's ordinary overflows fail no job.
    spec.mutable_train()->set_on_nonfinite(v1::ON_NONFINITE_FAIL);
    RunRanks(spec, [&](int rank, TrainingSession& session) {
      ASSERT_TRUE(session.InitializeParameters().ok());
      int64_t skipped = 0;
      for (int64_t step = 0; step < spec.train().steps(); ++step) {
        const bool inject = overflows.count(step) > 0;
        float* victim = Victim(session);
        const float before = victim == nullptr ? 0 : *victim;
        if (inject) SetVictim(session, step % 2 == 0 ? HUGE_VALF : NAN);
        auto report = session.Step(false);
        ASSERT_TRUE(report.ok()) << report.status();
        if (inject) SetVictim(session, before);
        skipped += inject ? 1 : 0;
        EXPECT_EQ(report->loss_scale, scales[static_cast<size_t>(step)]) << "step " << step;
        EXPECT_EQ(report->skipped, inject) << "step " << step;
        EXPECT_EQ(report->skipped_steps, skipped);
        EXPECT_EQ(session.trainer_state().schedule_step(), step + 1 - skipped);
        EXPECT_EQ(std::isfinite(report->grad_norm), !inject);
        if (!inject && rank == 0) {
          EXPECT_LE(report->clipped_norm, 1.0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace milepost::runtime
