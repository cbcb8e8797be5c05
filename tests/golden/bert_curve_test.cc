// Trains tiny BERTs from the weights and on the tokens that make_bert_curve.py gave Hugging Face's
// transformers. Which tokens are masked, that program found out by itself.
#include "engine/models/model.h"
#include "engine/ops/backward.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "tests/golden/curve.h"

namespace milepost {
namespace {

// A key's bias moves all scores of a query alike. Its gradient is 0 but for rounding, and Adam
// makes steps of any size of it, in torch as here.
bool OnlyRounding(const std::string& name) {
  return name.ends_with("self.key.bias") || name.ends_with("k_lin.bias");
}

class BertCurve : public GoldenCurve {
 protected:
  void SetUp() override { Open("bert_curve.json"); }

  v1::ModelSpec Model(const char* name) const {
    const json& golden = golden_["model"];
    v1::ModelSpec model;
    v1::BertSpec& bert = *model.mutable_bert();
    bert.set_layers(golden["layers"]);
    bert.set_width(golden["width"]);
    bert.set_heads(golden["heads"]);
    bert.set_hidden(golden["hidden"]);
    bert.set_context(golden["context"]);
    bert.set_vocabulary(golden["vocabulary"]);
    const bool segments = golden_["cases"][name]["data"].contains("segment_separator");
    bert.set_segments(segments ? golden["segments"].get<int64_t>() : 0);
    bert.set_norm_epsilon(golden["norm_epsilon"]);
    return model;
  }

  // One sample: every sample of a run is that one, masked anew.
  void WriteSample() const {
    const int64_t length = golden_["model"]["context"];
    std::vector<uint32_t> tokens(length);
    for (int64_t i = 0; i < length; ++i) tokens[i] = i >= 44 ? 5 : Token(i, 60);
    auto writer = data::NpyWriter::Create(folder_ + "/train.npy", data::TokenType::kUint8);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_EQ((*writer)->Append(tokens), absl::OkStatus());
    ASSERT_EQ((*writer)->Finish(), absl::OkStatus());
  }

  v1::JobSpec BertSpec(const char* name, int stage, int64_t micro) const {
    v1::JobSpec spec;
    v1::DataSpec& data = *spec.mutable_data();
    const json& of_case = golden_["cases"][name]["data"];
    if (of_case.contains("segment_separator")) {
      data.set_segment_separator(of_case["segment_separator"]);
    }
    if (of_case.contains("document_separator")) {
      data.set_document_separator(of_case["document_separator"]);
      data.set_padding(of_case["padding"]);
    }
    v1::MaskingSpec& masking = *data.mutable_masking();
    masking.set_probability(golden_["masking"]["probability"]);
    masking.set_mask_token(golden_["masking"]["mask_token"]);
    for (const json& token : golden_["masking"]["special_tokens"]) {
      masking.add_special_tokens(token);
    }
    spec.mutable_train()->set_seed(golden_["seed"]);
    return Spec(Model(name), stage, micro, spec);
  }

  void Expect(const char* name, int stage, int64_t micro) const {
    WriteSample();
    ExpectTheCurve(BertSpec(name, stage, micro), golden_["cases"][name], "norm");
  }

  graph::ReferenceInterpreter Initialised(const graph::Graph& graph, const char* name) const {
    graph::ReferenceInterpreter reference(graph);
    const json& names = golden_["cases"][name]["parameters"];
    for (const graph::Parameter& parameter : graph.parameters) {
      const std::string& own = graph.values[parameter.value].name;
      const auto place = std::find(names.begin(), names.end(), own) - names.begin();
      std::vector<double>& values = reference.values(parameter.value);
      for (size_t e = 0; e < values.size(); ++e) {
        values[e] = InitialWeight(own, "norm", place, static_cast<int64_t>(e));
      }
    }
    return reference;
  }
};

TEST_F(BertCurve, OneDocument) { Expect("bert", 0, 8); }

TEST_F(BertCurve, AccumulatedOverMicroSteps) { Expect("bert", 1, 2); }

TEST_F(BertCurve, DocumentsAndPadding) { Expect("documents", 2, 4); }

TEST_F(BertCurve, DistilBertHasNoSegments) { Expect("distilbert", 1, 4); }

TEST_F(BertCurve, EveryOptimizer) {
  for (const char* optimizer : {"sgd", "lion", "lamb", "muon", "adamw_8bit"}) {
    SCOPED_TRACE(optimizer);
    Open(absl::StrCat("bert_", optimizer, "_curve.json"));
    Expect("bert", 1, 8);
  }
}

// The graph by itself, in fp64, before the first step.
TEST_F(BertCurve, LogitsAndGradients) {
  const json& golden = golden_["cases"]["bert"];
  const int64_t length = golden_["model"]["context"];
  models::ModelOptions options{.mode = models::Mode::kGeneration, .sequence = length};
  options.segments = true;
  const auto tokens = golden["first_inputs"].get<std::vector<std::vector<int32_t>>>();
  std::vector<int32_t> segments(length);
  bool second = false;
  for (int64_t t = 0; t < length; ++t) {
    segments[t] = second ? 1 : 0;
    second |= t < 44 && Token(t, 60) == 9;
  }
  const auto generation = models::BuildModel(Model("bert"), options);
  ASSERT_TRUE(generation.ok()) << generation.status();
  graph::ReferenceInterpreter reference = Initialised(*generation, "bert");
  reference.integers(generation->Input("tokens")) = tokens[0];
  reference.integers(generation->Input("segments")) = segments;
  for (const auto& [position, logits] : golden["logits"].items()) {
    reference.Run({.position = std::stoll(position)});
    for (size_t v = 0; v < logits.size(); ++v) {
      EXPECT_NEAR(reference.values(generation->logits)[v], logits[v].get<double>(), 1e-4);
    }
  }

  options.mode = models::Mode::kTraining;
  options.batch = golden_["samples"];
  auto training = models::BuildModel(Model("bert"), options);
  ASSERT_TRUE(training.ok()) << training.status();
  ASSERT_EQ(ops::AddBackward(*training), absl::OkStatus());
  graph::ReferenceInterpreter backward = Initialised(*training, "bert");
  int64_t valid = 0;
  for (int64_t b = 0; b < options.batch; ++b) {
    for (int64_t t = 0; t < length; ++t) {
      const int32_t target = golden["first_targets"][b][t];
      backward.integers(training->Input("tokens"))[b * length + t] = tokens[b][t];
      backward.integers(training->Input("segments"))[b * length + t] = segments[t];
      backward.integers(training->Input("targets"))[b * length + t] = std::max(target, -1);
      valid += target >= 0 ? 1 : 0;
    }
  }
  backward.Run({.gradient_scale = 1.0 / static_cast<double>(valid)});
  for (const graph::Parameter& parameter : training->parameters) {
    const std::string& name = training->values[parameter.value].name;
    double squares = 0;
    for (const double g : backward.values(parameter.gradient)) squares += g * g;
    const double wanted = golden["gradient_norms"][name];
    EXPECT_NEAR(std::sqrt(squares), wanted, OnlyRounding(name) ? 1e-7 : 1e-4 * wanted) << name;
  }
}

}  // namespace
}  // namespace milepost
