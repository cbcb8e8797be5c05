// What the golden curves share: the formulas of make_gpt2_curve.py and make_llama_curve.py, and a
// run that is compared with a golden file. With MILEPOST_GOLDEN_DEVICE the runs use a device
// (tests/integration/on_device.h). $MILEPOST_GOLDEN_FOLDER is the files' folder if it is not
// tests/golden (on_gpu.py makes others).
#ifndef MILEPOST_TESTS_GOLDEN_CURVE_H_
#define MILEPOST_TESTS_GOLDEN_CURVE_H_

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/spec/validate.h"
#include "engine/comm/in_process.h"
#include "engine/data/npy.h"
#include "engine/models/model.h"
#include "engine/runtime/session/fill_interval.h"
#include "engine/runtime/session/training_session.h"
#include "engine/runtime/testing/npy.h"
#include "engine/state/layout.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"
#include "nlohmann/json.hpp"
#if defined(MILEPOST_GOLDEN_DEVICE)
#include "tests/integration/on_device.h"
#endif

namespace milepost {

class GoldenCurve : public testing::Test {
 protected:
  using json = nlohmann::json;
  static constexpr double kTolerance = 1e-4;  // relative

  // ---- the models, as the files describe them ----

  static v1::ModelSpec Gpt2Of(const json& golden) {
    v1::ModelSpec model;
    v1::Gpt2Spec& gpt2 = *model.mutable_gpt2();
    gpt2.set_layers(golden["layers"]);
    gpt2.set_width(golden["width"]);
    gpt2.set_heads(golden["heads"]);
    gpt2.set_context(golden["context"]);
    gpt2.set_vocabulary(golden["vocabulary"]);
    return model;
  }

  static v1::ModelSpec LlamaOf(const json& golden) {
    v1::ModelSpec model;
    v1::LlamaSpec& llama = *model.mutable_llama();
    llama.set_layers(golden["layers"]);
    llama.set_width(golden["width"]);
    llama.set_heads(golden["heads"]);
    llama.set_kv_heads(golden["kv_heads"]);
    llama.set_head_dim(golden["head_dim"]);
    llama.set_hidden(golden["hidden"]);
    llama.set_context(golden["context"]);
    llama.set_vocabulary(golden["vocabulary"]);
    llama.set_rope_theta(golden["rope_theta"]);
    llama.set_norm_epsilon(golden["norm_epsilon"]);
    llama.set_tied(golden["tied"]);
    llama.set_qkv_bias(golden["qkv_bias"]);
    llama.set_qk_norm(golden.value("qk_norm", false));
    if (golden.value("activation", "swiglu") == "geglu") {
      llama.set_activation(v1::LlamaSpec::ACTIVATION_GEGLU);
    }
    if (golden.value("norm_offset", false)) llama.set_norm_offset(true);
    if (golden.value("post_norms", false)) llama.set_post_norms(true);
    if (golden.value("wide_qk_norm", false)) llama.set_wide_qk_norm(true);
    if (!golden.value("pre_norms", true)) llama.set_pre_norms(false);
    if (golden.value("scale_embedding", false)) llama.set_scale_embedding(true);
    if (golden.contains("window")) {
      const json& window = golden["window"];
      llama.mutable_window()->set_positions(window["positions"]);
      llama.mutable_window()->set_full_every(window.value("full_every", 0));
      if (window.contains("rope_theta")) {
        llama.mutable_window()->set_rope_theta(window["rope_theta"]);
      }
    }
    if (golden.contains("experts")) {
      const json& experts = golden["experts"];
      llama.mutable_experts()->set_count(experts["count"]);
      llama.mutable_experts()->set_per_token(experts["per_token"]);
      llama.mutable_experts()->set_hidden(experts["hidden"]);
      llama.mutable_experts()->set_normalize(experts["normalize"]);
      llama.mutable_experts()->set_balance_loss(experts["balance_loss"]);
    }
    if (!golden.contains("rope_scaling")) return model;
    const json& scaling = golden["rope_scaling"];
    llama.mutable_rope_scaling()->set_factor(scaling["factor"]);
    if (scaling.value("type", "llama3") == "linear") {
      llama.mutable_rope_scaling()->set_type(v1::RopeScalingSpec::TYPE_LINEAR);
      return model;
    }
    llama.mutable_rope_scaling()->set_low_freq_factor(scaling["low_freq_factor"]);
    llama.mutable_rope_scaling()->set_high_freq_factor(scaling["high_freq_factor"]);
    llama.mutable_rope_scaling()->set_original_context(scaling["original_context"]);
    return model;
  }

  // ---- the formulas of the generators ----

  static uint32_t Token(int64_t i, int64_t vocabulary) {
    return static_cast<uint32_t>((i * i + 3 * (i / 5)) % vocabulary);
  }

  static float Uniform(int64_t parameter, int64_t element) {
    const uint64_t wide = static_cast<uint64_t>(element) * 2654435761u +
                          static_cast<uint64_t>(parameter) * 40503u + 12345u;
    uint32_t mixed = static_cast<uint32_t>(wide);
    mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
    return static_cast<float>(mixed / 2147483648.0 - 1);
  }

  // `norm` is a text that only the names of norms contain, in small letters.
  static float InitialWeight(const std::string& name, const char* norm, int64_t parameter,
                             int64_t element) {
    const float value = Uniform(parameter, element) * 0.3f;
    const std::string lower = absl::AsciiStrToLower(name);
    const bool norm_weight = lower.find(norm) != std::string::npos && lower.ends_with(".weight");
    return norm_weight ? value + 1.0f : value;
  }

  // ---- the run ----

  void Open(const std::string& file_name) {
    const char* folder = std::getenv("MILEPOST_GOLDEN_FOLDER");
    const std::string path =
        absl::StrCat(folder != nullptr ? folder : "tests/golden", "/", file_name);
    std::ifstream file(path);
    ASSERT_TRUE(file) << path << "; tests run in the repository's root";
    golden_ = json::parse(file);
    if (!folder_.empty()) return;
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-golden-XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // `separator`, if there is one, ends each sample.
  void WriteTokens(const json& model, int64_t separator = -1) const {
    const int64_t count = golden_["samples"].get<int64_t>() * model["context"].get<int64_t>() + 1;
    std::vector<uint32_t> tokens(count);
    const int64_t length = model["context"];
    for (int64_t i = 0; i < count; ++i) {
      const bool ends = separator >= 0 && i % length == length - 1;
      tokens[i] = ends ? static_cast<uint32_t>(separator) : Token(i, model["vocabulary"]);
    }
    auto writer = data::NpyWriter::Create(folder_ + "/train.npy", data::TokenType::kUint8);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ((*writer)->Append(tokens), absl::OkStatus());
    ASSERT_EQ((*writer)->Finish(), absl::OkStatus());
  }

  // Byte i of sample n of make_resnet_curve.py's images.
  static uint8_t Pixel(int64_t n, int64_t i, int64_t size) {
    const int64_t y = i / 3 / size, x = i / 3 % size, c = i % 3;
    return static_cast<uint8_t>(
        (n * 97 + y * y * (31 + 2 * n) + x * x * 17 + c * 101 + x * y * (7 + n)) % 256);
  }

  // Uses the formulas of make_resnet_curve.py.
  void WriteImages(int64_t samples, int64_t size, int64_t classes) const {
    std::string pixels, labels;
    for (int64_t n = 0; n < samples; ++n) {
      const auto label = static_cast<int32_t>(n % classes);
      labels.append(reinterpret_cast<const char*>(&label), sizeof(label));
      for (int64_t i = 0; i < size * size * 3; ++i) {
        pixels.push_back(static_cast<char>(Pixel(n, i, size)));
      }
    }
    runtime::WriteNpy(folder_ + "/train.npy", "|u1",
                      absl::StrCat(samples, ", ", size, ", ", size, ", 3"), pixels);
    runtime::WriteNpy(folder_ + "/train.labels.npy", "<i4", absl::StrCat(samples, ","), labels);
  }

  // `spec` has the fields that this function does not set.
  v1::JobSpec Spec(const v1::ModelSpec& model, int stage, int64_t micro,
                   v1::JobSpec spec = {}) const {
    const json& train = golden_["train"];
    spec.set_name("golden");
    *spec.mutable_model() = model;
    if (model.has_lora() || spec.train().has_dpo()) {
      spec.mutable_train()->set_init_from(folder_);  // not read here
    }
    spec.mutable_data()->set_train(folder_ + "/train.npy");
    v1::TrainSpec& t = *spec.mutable_train();
    t.set_steps(train["steps"]);
    t.set_precision(v1::PRECISION_FP32);
    t.mutable_batch()->set_global(golden_["samples"]);
    t.mutable_batch()->set_micro(micro);
    t.mutable_zero()->set_stage(stage);
    SetOptimizer(*t.mutable_optimizer());
    t.mutable_schedule()->set_type(v1::ScheduleSpec::TYPE_COSINE);
    t.mutable_schedule()->set_warmup_steps(train["warmup_steps"]);
    t.mutable_schedule()->set_final_lr_ratio(train["final_lr_ratio"]);
    t.set_clip_norm(train["clip_norm"]);
    spec.mutable_resources()->set_ranks(1);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  void SetOptimizer(v1::OptimizerSpec& optimizer) const {
    const json& train = golden_["train"];
    const std::string kind = golden_.value("optimizer", "adamw");
    const std::map<std::string, v1::OptimizerSpec::Type> types = {
        {"adamw", v1::OptimizerSpec::TYPE_ADAMW},
        {"sgd", v1::OptimizerSpec::TYPE_SGD},
        {"lion", v1::OptimizerSpec::TYPE_LION},
        {"adan", v1::OptimizerSpec::TYPE_ADAN},
        {"lamb", v1::OptimizerSpec::TYPE_LAMB},
        {"muon", v1::OptimizerSpec::TYPE_MUON},
        {"adamw_8bit", v1::OptimizerSpec::TYPE_ADAMW_8BIT},
    };
    optimizer.set_type(types.at(kind));
    optimizer.set_lr(train["lr"]);
    optimizer.set_weight_decay(train["weight_decay"]);
    if (train.contains("beta1")) optimizer.set_beta1(train["beta1"]);
    if (train.contains("beta2")) optimizer.set_beta2(train["beta2"]);
    if (train.contains("beta3")) optimizer.set_beta3(train["beta3"]);
    if (train.contains("epsilon")) optimizer.set_epsilon(train["epsilon"]);
    if (train.contains("momentum")) optimizer.set_momentum(train["momentum"]);
    if (train.contains("adamw_lr")) optimizer.set_adamw_lr(train["adamw_lr"]);
  }

  // Sets PyTorch's initial weights in the same way as a checkpoint is restored. `parameters` has
  // the generator's order.
  static void SetWeights(const json& parameters, const char* norm,
                         runtime::TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    ASSERT_EQ(session.FetchState(), absl::OkStatus());
    const v1::TrainerState state = session.trainer_state();
    std::map<std::string, int64_t> index;
    for (const json& name : parameters) index.emplace(name, index.size());
    const auto fill = [&](const std::vector<v1::TensorInfo>& tensors,
                          const std::vector<runtime::StateInterval>& targets) {
      for (const runtime::StateInterval& target : targets) {
        const v1::TensorInfo& tensor = tensors[target.tensor];
        if (tensor.kind() != "master") continue;  // m and v are zero
        const std::string name(absl::StripPrefix(tensor.name(), models::kReferencePrefix));
        ASSERT_TRUE(index.contains(name)) << tensor.name();
        const auto read = [&](int64_t begin, int64_t end, float* values) {
          for (int64_t e = begin; e < end; ++e) {
            values[e - begin] = InitialWeight(name, norm, index.at(name), e);
          }
          return absl::OkStatus();
        };
        ASSERT_EQ(runtime::FillInterval(tensor, target, read), absl::OkStatus());
      }
    };
    fill(session.state_tensors(), session.RestoreTargets());
    fill(session.base_tensors(), session.BaseTargets(/*part=*/0));
    session.StartAverages();
    ASSERT_EQ(session.FinishRestore(state), absl::OkStatus());
  }

  static runtime::SessionOptions Options() {
#if defined(MILEPOST_GOLDEN_DEVICE)
    return runtime::OnDevice(/*seed=*/1)(/*rank=*/0);
#else
    return {.threads = 1};
#endif
  }

  // Checks how far the weights, or what is kept of them as `kind`, are from PyTorch's final ones,
  // relative to these. The distance is estimated from products with vectors of signs, for each
  // tensor and for all of them.
  static void ExpectTheWeights(runtime::TrainingSession& session, const json& golden,
                               const char* kind = "master") {
    double all_differences = 0;
    double all_squares = 0;
    size_t seen = 0;
    for (const runtime::StateInterval& source : session.RestoreTargets()) {  // whole ones
      const v1::TensorInfo& tensor = session.state_tensors()[source.tensor];
      if (tensor.kind() != kind) continue;
      ++seen;
      const json& wanted = golden.at(tensor.name());
      const auto* data = reinterpret_cast<const float*>(source.data);
      std::vector<float> values(data, data + source.end);
      std::fill(values.begin() + wanted["ignored"][0].get<int64_t>(),
                values.begin() + wanted["ignored"][1].get<int64_t>(), 0.0F);
      double differences = 0;
      double squares = 0;
      for (int64_t e = 0; e < source.end; ++e) squares += double{values[e]} * values[e];
      for (size_t k = 0; k < wanted["products"].size(); ++k) {
        double product = 0;
        for (int64_t e = 0; e < source.end; ++e) {
          product += Uniform(1000 + static_cast<int64_t>(k), e) >= 0 ? values[e] : -values[e];
        }
        differences += std::pow(product - wanted["products"][k].get<double>(), 2);
      }
      differences /= static_cast<double>(wanted["products"].size());
      const double norm = wanted["norm"];
      EXPECT_NEAR(std::sqrt(squares), norm, kTolerance * norm) << tensor.name();
      EXPECT_LE(std::sqrt(differences), kTolerance * norm) << tensor.name();
      all_differences += differences;
      all_squares += norm * norm;
    }
    EXPECT_EQ(seen, golden.size());
    EXPECT_LT(std::sqrt(all_differences), kTolerance * std::sqrt(all_squares));
    RecordProperty("relative_difference", std::to_string(std::sqrt(all_differences / all_squares)));
  }

  // Trains `spec` and compares every step, and the final weights if there are any, with `golden`
  // ("parameters", "steps", "final"). Then it calls `after` with the session.
  static void ExpectTheCurve(const v1::JobSpec& spec, const json& golden, const char* norm,
                             const std::function<void(runtime::TrainingSession&)>& after = {}) {
    auto group = comm::MakeInProcessGroup(1);
    auto session = runtime::TrainingSession::Create(spec, Options(), group[0].get());
    ASSERT_TRUE(session.ok()) << session.status();
    SetWeights(golden["parameters"], norm, **session);
    ASSERT_EQ(golden["steps"].size(), 20u);
    for (const json& expected : golden["steps"]) {
      const absl::StatusOr<runtime::StepReport> report = (*session)->Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      const auto near = [&](const char* field, double value) {
        const double wanted = expected[field];
        EXPECT_NEAR(value, wanted, kTolerance * std::abs(wanted))
            << field << " of step " << report->step;
      };
      near("loss", report->train_loss);
      near("grad_norm", report->grad_norm);
      near("lr", report->lr);
      for (size_t head = 0; expected.contains("heads") && head < expected["heads"].size(); ++head) {
        const double wanted = expected["heads"][head];
        EXPECT_NEAR(report->head_losses[head], wanted, kTolerance * wanted)
            << "head " << head << ", step " << report->step;
      }
    }
    ASSERT_EQ((*session)->FetchState(), absl::OkStatus());
    if (golden.contains("final")) ExpectTheWeights(**session, golden["final"]);
    if (after) after(**session);
  }

  json golden_;
  std::string folder_;
};

}  // namespace milepost

#endif  // MILEPOST_TESTS_GOLDEN_CURVE_H_
