// Trains tiny ResNets from the weights and on the images that make_resnet_curve.py gave Hugging
// Face's transformers, and compares 20 steps of losses, gradient norms and learning rates, the
// parameters and running statistics after them, and the evaluation.
#include <cstring>

#include "absl/strings/escaping.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class ResNetCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("resnet_curve.json"); }

  v1::ModelSpec Model() const {
    const json& golden = golden_["model"];
    v1::ModelSpec model;
    v1::ResNetSpec& resnet = *model.mutable_resnet();
    for (const int64_t layers : golden["stages"]) resnet.add_stages()->set_layers(layers);
    resnet.set_bottleneck(golden["bottleneck"]);
    resnet.set_width(golden["width"]);
    resnet.set_label_smoothing(golden["label_smoothing"]);
    resnet.set_image_size(size_);
    resnet.set_classes(classes_);
    return model;
  }

  // Relative norm of the difference between a tensor and the golden one.
  static double Difference(const float* found, const std::string& encoded) {
    std::string bytes;
    EXPECT_TRUE(absl::Base64Unescape(encoded, &bytes));
    double difference = 0, norm = 0;
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
      float expected;
      std::memcpy(&expected, bytes.data() + i * sizeof(float), sizeof(float));
      difference += std::pow(found[i] - expected, 2);
      norm += std::pow(expected, 2);
    }
    return std::sqrt(difference / norm);
  }

  void ExpectTheEnd(runtime::TrainingSession& session) const {
    for (const runtime::StateInterval& i : session.RestoreTargets()) {
      const v1::TensorInfo& tensor = session.state_tensors()[i.tensor];
      const bool statistic = tensor.kind() == state::kStatisticKind;
      if (tensor.dtype() != "F32" || (!statistic && tensor.kind() != "master")) continue;
      const std::string& golden = golden_[statistic ? "statistics" : "weights"][tensor.name()];
      EXPECT_LT(Difference(reinterpret_cast<const float*>(i.data), golden), kTolerance)
          << tensor.name();
    }
    const auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    const double loss = golden_["evaluation"]["loss"];
    EXPECT_NEAR(evaluation->loss, loss, kTolerance * loss);
    EXPECT_NEAR(evaluation->heads[0].accuracy, golden_["evaluation"]["accuracy"].get<double>(),
                1e-6);
  }

  void Expect(const char* name) {
    size_ = golden_["image_size"];
    classes_ = golden_["classes"];
    golden_ = json(golden_["cases"][name]);
    WriteImages(golden_["samples"], size_, classes_);
    v1::JobSpec spec = Spec(Model(), 1, golden_["samples"]);
    spec.mutable_data()->set_validation(spec.data().train());
    ExpectTheCurve(spec, golden_, "normalization",
                   [this](runtime::TrainingSession& session) { ExpectTheEnd(session); });
  }

  int64_t size_ = 0;
  int64_t classes_ = 0;
};

TEST_F(ResNetCurve, BottlenecksWithLabelSmoothing) { Expect("bottleneck"); }

TEST_F(ResNetCurve, BasicLayersUnderEveryOtherOptimizer) {
  for (const char* name : {"basic-sgd", "basic-lion", "basic-lamb", "basic-adamw_8bit"}) {
    SCOPED_TRACE(name);
    Open("resnet_curve.json");
    Expect(name);
  }
}

}  // namespace
}  // namespace milepost
