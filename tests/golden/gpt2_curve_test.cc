// Trains a tiny GPT-2 from the weights and on the tokens that make_gpt2_curve.py gave PyTorch, and
// compares 20 steps of losses, gradient norms and learning rates with what PyTorch got.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/spec/validate.h"
#include "engine/comm/in_process.h"
#include "engine/data/npy.h"
#include "engine/runtime/session.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"
#include "nlohmann/json.hpp"

namespace milepost {
namespace {

using nlohmann::json;

constexpr double kTolerance = 1e-4;  // relative

// ---- the formulas of make_gpt2_curve.py ----

uint32_t Token(int64_t i, int64_t vocabulary) {
  return static_cast<uint32_t>((i * i + 3 * (i / 5)) % vocabulary);
}

float Uniform(int64_t parameter, int64_t element) {
  const uint64_t wide = static_cast<uint64_t>(element) * 2654435761u +
                        static_cast<uint64_t>(parameter) * 40503u + 12345u;
  uint32_t mixed = static_cast<uint32_t>(wide);
  mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
  return static_cast<float>(mixed / 2147483648.0 - 1);
}

float InitialWeight(const std::string& name, int64_t parameter, int64_t element) {
  const float value = Uniform(parameter, element) * 0.3f;
  const bool norm_weight = name.find("ln_") != std::string::npos && name.ends_with(".weight");
  return norm_weight ? value + 1.0f : value;
}

class GoldenCurve : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file("tests/golden/gpt2_curve.json");
    ASSERT_TRUE(file) << "tests run in the repository's root";
    golden_ = json::parse(file);
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-golden-XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    WriteTokens();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void WriteTokens() {
    const int64_t count =
        golden_["samples"].get<int64_t>() * golden_["model"]["context"].get<int64_t>() + 1;
    std::vector<uint32_t> tokens(count);
    for (int64_t i = 0; i < count; ++i) tokens[i] = Token(i, golden_["model"]["vocabulary"]);
    auto writer = data::NpyWriter::Create(folder_ + "/train.npy", data::TokenType::kUint8);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ((*writer)->Append(tokens), absl::OkStatus());
    ASSERT_EQ((*writer)->Finish(), absl::OkStatus());
  }

  v1::JobSpec Spec(int ranks, int stage, int64_t micro) const {
    const json& train = golden_["train"];
    v1::JobSpec spec;
    spec.set_name("golden");
    v1::Gpt2Spec& model = *spec.mutable_model()->mutable_gpt2();
    model.set_layers(golden_["model"]["layers"]);
    model.set_width(golden_["model"]["width"]);
    model.set_heads(golden_["model"]["heads"]);
    model.set_context(golden_["model"]["context"]);
    model.set_vocabulary(golden_["model"]["vocabulary"]);
    spec.mutable_data()->set_train(folder_ + "/train.npy");
    v1::TrainSpec& t = *spec.mutable_train();
    t.set_steps(train["steps"]);
    t.set_precision(v1::PRECISION_FP32);
    t.mutable_batch()->set_global(golden_["samples"]);
    t.mutable_batch()->set_micro(micro);
    t.mutable_zero()->set_stage(stage);
    t.mutable_optimizer()->set_lr(train["lr"]);
    t.mutable_optimizer()->set_beta1(train["beta1"]);
    t.mutable_optimizer()->set_beta2(train["beta2"]);
    t.mutable_optimizer()->set_epsilon(train["epsilon"]);
    t.mutable_optimizer()->set_weight_decay(train["weight_decay"]);
    t.mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_COSINE);
    t.mutable_schedule()->set_warmup_steps(train["warmup_steps"]);
    t.mutable_schedule()->set_final_lr_ratio(train["final_lr_ratio"]);
    t.set_clip_norm(train["clip_norm"]);
    spec.mutable_resources()->set_ranks(ranks);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  // The weights that PyTorch started from, through the door that checkpoints use.
  void SetWeights(runtime::TrainingSession& session) const {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    const v1::TrainerState state = session.trainer_state();
    std::map<std::string, int64_t> index;
    for (const json& name : golden_["parameters"]) index.emplace(name, index.size());
    for (const runtime::StateInterval& target : session.RestoreTargets()) {
      const v1::TensorInfo& tensor = session.state_tensors()[target.tensor];
      ASSERT_TRUE(index.contains(tensor.name())) << tensor.name();
      auto* values = reinterpret_cast<float*>(target.data);
      for (int64_t e = target.begin; e < target.end; ++e) {
        const bool weight = tensor.kind() == "master";
        values[e - target.begin] =
            weight ? InitialWeight(tensor.name(), index.at(tensor.name()), e) : 0.0f;
      }
    }
    ASSERT_EQ(session.FinishRestore(state), absl::OkStatus());
  }

  void ExpectTheCurve(const v1::JobSpec& spec) const {
    auto group = comm::MakeInProcessGroup(1);
    auto session = runtime::TrainingSession::Create(spec, {.threads = 1}, group[0].get());
    ASSERT_TRUE(session.ok()) << session.status();
    SetWeights(**session);
    for (const json& expected : golden_["steps"]) {
      const absl::StatusOr<runtime::StepReport> report = (*session)->Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      const auto near = [&](const char* field, double value) {
        const double golden = expected[field];
        EXPECT_NEAR(value, golden, kTolerance * std::abs(golden))
            << field << " of step " << report->step;
      };
      near("loss", report->train_loss);
      near("grad_norm", report->grad_norm);
      near("lr", report->lr);
    }
  }

  json golden_;
  std::string folder_;
};

TEST_F(GoldenCurve, WholeBatchAtOnce) { ExpectTheCurve(Spec(1, 0, 8)); }

TEST_F(GoldenCurve, AccumulatedOverMicroSteps) { ExpectTheCurve(Spec(1, 1, 2)); }

}  // namespace
}  // namespace milepost
