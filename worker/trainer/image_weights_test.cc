// A ResNet that Hugging Face's transformers saved (tests/golden/make_resnet_weights.py), with its
// running statistics, and a ViT (make_vit_weights.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/models/hugging_face.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"
#include "engine/state/layout.h"
#include "worker/trainer/initial_weights.h"

namespace milepost::worker {
namespace {

using runtime::StateInterval;
using runtime::TrainingSession;

constexpr char kFolder[] = "tests/golden/resnet";  // tests run in the source folder
constexpr char kVitFolder[] = "tests/golden/vit";

void EvaluateOnGoldenImages(const runtime::TinyImages& job, v1::JobSpec& spec) {
  spec.mutable_data()->set_train(job.path("golden.npy"));
  spec.mutable_data()->set_validation(job.path("golden.npy"));
  spec.mutable_train()->mutable_validation()->set_samples(12);
}

v1::JobSpec VitSpecOf(const runtime::TinyImages& job, int ranks, int stage) {
  v1::JobSpec spec = job.Spec(
      {.ranks = ranks, .stage = stage, .global_batch = 12, .micro_batch = 12 / ranks, .vit = true});
  absl::StatusOr<v1::ModelSpec> model = models::ModelOfHfFolder(kVitFolder);
  EXPECT_TRUE(model.ok()) << model.status();
  v1::VitSpec& vit = *model->mutable_vit();
  v1::RgbSpec& mean = *vit.mutable_pixel_mean();
  mean.set_red(0.5), mean.set_green(0.25), mean.set_blue(0.75);
  v1::RgbSpec& deviation = *vit.mutable_pixel_deviation();
  deviation.set_red(0.5), deviation.set_green(0.25), deviation.set_blue(0.4);
  *spec.mutable_model() = *std::move(model);
  EvaluateOnGoldenImages(job, spec);
  NormalizeJobSpec(&spec);
  return spec;
}

v1::JobSpec SpecOf(const runtime::TinyImages& job, int ranks, int stage) {
  v1::JobSpec spec =
      job.Spec({.ranks = ranks, .stage = stage, .global_batch = 12, .micro_batch = 12 / ranks});
  v1::ResNetSpec* resnet = spec.mutable_model()->mutable_resnet();
  resnet->set_width(4);
  resnet->mutable_stages(1)->set_layers(1);
  EvaluateOnGoldenImages(job, spec);
  return spec;
}

// The images of make_resnet_curve.py.
void WriteImages(const runtime::TinyImages& job) {
  constexpr int64_t kSamples = 12, kSize = runtime::TinyImages::kSize;
  std::string pixels, labels;
  for (int64_t n = 0; n < kSamples; ++n) {
    const auto label = static_cast<int32_t>(n % runtime::TinyImages::kClasses);
    labels.append(reinterpret_cast<const char*>(&label), sizeof(label));
    for (int64_t i = 0; i < kSize * kSize * 3; ++i) {
      const int64_t y = i / 3 / kSize, x = i / 3 % kSize, c = i % 3;
      pixels.push_back(static_cast<char>(
          (n * 97 + y * y * (31 + 2 * n) + x * x * 17 + c * 101 + x * y * (7 + n)) % 256));
    }
  }
  runtime::WriteNpy(job.path("golden.npy"), "|u1", "12, 32, 32, 3", pixels);
  runtime::WriteNpy(job.path("golden.labels.npy"), "<i4", "12,", labels);
}

// Evaluates the folder's model by the spec.
void ExpectTransformersLoss(const std::string& folder, const v1::JobSpec& spec,
                            TrainingSession& session) {
  std::ifstream file(folder + "/expected.json");
  const auto expected = nlohmann::json::parse(file);
  ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
  ASSERT_EQ(
      ReadInitialWeights(folder, spec.model(), session.state_tensors(), session.RestoreTargets()),
      absl::OkStatus());
  ASSERT_EQ(session.FinishRestore(session.trainer_state()), absl::OkStatus());
  const auto evaluation = session.Evaluate();
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_NEAR(evaluation->loss, expected["loss"].get<double>(), 1e-5);
  EXPECT_NEAR(evaluation->heads[0].accuracy, expected["accuracy"].get<double>(), 1e-6);
}

TEST(VitWeightsTest, EvaluatesAsTransformersDoes) {
  const runtime::TinyImages job;
  WriteImages(job);
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 3}}) {
    const v1::JobSpec spec = VitSpecOf(job, ranks, stage);
    runtime::RunRanks(spec, [&](int, TrainingSession& session) {
      ExpectTransformersLoss(kVitFolder, spec, session);
    });
  }
}

TEST(ResNetWeightsTest, EvaluatesAsTransformersDoes) {
  const runtime::TinyImages job;
  WriteImages(job);
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 0}, {2, 3}}) {
    const v1::JobSpec spec = SpecOf(job, ranks, stage);
    runtime::RunRanks(spec, [&](int, TrainingSession& session) {
      ExpectTransformersLoss(kFolder, spec, session);
      // The embedder's counter is the sixth entry of the state dict.
      for (const StateInterval& i : session.RestoreTargets()) {
        const v1::TensorInfo& tensor = session.state_tensors()[i.tensor];
        if (tensor.name() != "resnet.embedder.embedder.normalization.num_batches_tracked") continue;
        int64_t batches = 0;
        std::memcpy(&batches, i.data, sizeof(batches));
        EXPECT_EQ(batches, 5);
      }
    });
  }
}

TEST(ResNetWeightsTest, RefusesAnotherModelsConfig) {
  const runtime::TinyImages job;
  v1::JobSpec spec = SpecOf(job, 1, 0);
  spec.mutable_model()->mutable_resnet()->set_classes(6);
  spec.mutable_model()->mutable_resnet()->set_bottleneck(false);
  const absl::Status status = ReadInitialWeights(kFolder, spec.model(), {}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              testing::HasSubstr("num_labels is 5, model.resnet.classes needs 6"));
  EXPECT_THAT(status.message(), testing::HasSubstr("layer_type is \"bottleneck\""));
}

}  // namespace
}  // namespace milepost::worker
