// Trains a tiny ViT from the weights and on the images that make_vit_curve.py gave Hugging Face's
// transformers.
#include "engine/models/model.h"
#include "engine/ops/backward.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

class VitCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("vit_curve.json"); }

  static void SetRgb(const json& values, v1::RgbSpec& rgb) {
    rgb.set_red(values[0]);
    rgb.set_green(values[1]);
    rgb.set_blue(values[2]);
  }

  // Makes the case all that there is.
  v1::ModelSpec Take(const std::string& name) {
    const json all = golden_;
    golden_ = json(all["cases"][name]);
    v1::ModelSpec model;
    v1::VitSpec& vit = *model.mutable_vit();
    vit.set_layers(all["model"]["layers"]);
    vit.set_width(all["model"]["width"]);
    vit.set_heads(all["model"]["heads"]);
    vit.set_hidden(all["model"]["hidden"]);
    vit.set_classes(all["model"]["classes"]);
    vit.set_patch_size(all["model"]["patch_size"]);
    vit.set_norm_epsilon(all["model"]["norm_epsilon"]);
    vit.set_image_size(all["image_size"]);
    vit.set_label_smoothing(golden_["label_smoothing"]);
    SetRgb(all["pixel_mean"], *vit.mutable_pixel_mean());
    SetRgb(all["pixel_deviation"], *vit.mutable_pixel_deviation());
    return model;
  }

  void ExpectTheEvaluation(runtime::TrainingSession& session) const {
    const auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    const double loss = golden_["evaluation"]["loss"];
    EXPECT_NEAR(evaluation->loss, loss, kTolerance * loss);
    EXPECT_NEAR(evaluation->heads[0].accuracy, golden_["evaluation"]["accuracy"].get<double>(),
                1e-6);
  }

  void Expect(const char* name, int stage, int64_t micro) {
    const v1::ModelSpec model = Take(name);
    WriteImages(golden_["samples"], model.vit().image_size(), model.vit().classes());
    v1::JobSpec spec = Spec(model, stage, micro);
    spec.mutable_data()->set_validation(spec.data().train());
    ExpectTheCurve(spec, golden_, "layernorm",
                   [this](runtime::TrainingSession& session) { ExpectTheEvaluation(session); });
  }
};

TEST_F(VitCurve, LabelSmoothing) { Expect("adamw", 0, 12); }

TEST_F(VitCurve, AccumulatedOverMicroSteps) { Expect("adamw", 2, 3); }

TEST_F(VitCurve, OtherOptimizers) {
  for (const char* name : {"muon", "lamb"}) {
    SCOPED_TRACE(name);
    Open("vit_curve.json");
    Expect(name, 1, 6);
  }
}

// What the linear layer of the classifier makes.
graph::ValueId LogitsOf(const graph::Graph& graph) {
  for (const graph::Op& op : graph.ops) {
    if (op.kind == graph::OpKind::kClassifierLossBackward) return op.inputs[0];
  }
  return graph::kNoValue;
}

// The graph by itself, in fp64, before the first step.
TEST_F(VitCurve, LogitsAndGradients) {
  v1::JobSpec spec;
  *spec.mutable_model() = Take("adamw");
  NormalizeJobSpec(&spec);
  const int64_t samples = golden_["samples"], size = spec.model().vit().image_size();
  auto graph = models::BuildModel(spec.model(), {.batch = samples});
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(ops::AddBackward(*graph), absl::OkStatus());
  graph::ReferenceInterpreter reference(*graph);
  const json& names = golden_["parameters"];
  for (const graph::Parameter& parameter : graph->parameters) {
    const std::string& own = graph->values[parameter.value].name;
    const auto place = std::find(names.begin(), names.end(), own) - names.begin();
    std::vector<double>& values = reference.values(parameter.value);
    for (size_t e = 0; e < values.size(); ++e) {
      values[e] = InitialWeight(own, "layernorm", place, static_cast<int64_t>(e));
    }
  }
  std::vector<double>& pixels = reference.values(graph->Input("images"));
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = Pixel(static_cast<int64_t>(i) / (size * size * 3),
                      static_cast<int64_t>(i) % (size * size * 3), size);
  }
  for (int64_t n = 0; n < samples; ++n) {
    reference.integers(graph->Input("targets"))[n] =
        static_cast<int32_t>(n % spec.model().vit().classes());
  }
  reference.Run({.gradient_scale = 1.0 / static_cast<double>(samples)});
  const std::vector<double>& logits = reference.values(LogitsOf(*graph));
  const int64_t classes = spec.model().vit().classes();
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(logits[i], golden_["logits"][i / classes][i % classes].get<double>(), 1e-5);
  }
  for (const graph::Parameter& parameter : graph->parameters) {
    const std::string& name = graph->values[parameter.value].name;
    double squares = 0;
    for (const double g : reference.values(parameter.gradient)) squares += g * g;
    const double wanted = golden_["gradient_norms"][name];
    // A key's bias moves all scores of a query alike: its gradient is 0 but for rounding.
    const bool rounding = name.ends_with("attention.key.bias");
    EXPECT_NEAR(std::sqrt(squares), wanted, rounding ? 1e-7 : 1e-4 * wanted) << name;
  }
}

}  // namespace
}  // namespace milepost
