#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/spec/validate.h"
#include "engine/graph/reference/reference_interpreter.h"
#include "engine/kernels/cpu/random.h"
#include "engine/models/model.h"
#include "engine/runtime/session.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 12;
constexpr int64_t kVocabulary = 37;

v1::ModelSpec Model() {
  v1::ModelSpec model;
  v1::Gpt2Spec* gpt2 = model.mutable_gpt2();
  gpt2->set_layers(2);
  gpt2->set_width(32);
  gpt2->set_heads(4);
  gpt2->set_context(kContext);
  gpt2->set_vocabulary(kVocabulary);
  return model;
}

v1::ModelSpec LlamaModel() {
  v1::JobSpec spec;
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_layers(2);
  llama->set_width(32);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_hidden(40);
  llama->set_context(kContext);
  llama->set_vocabulary(kVocabulary);
  NormalizeJobSpec(&spec);
  return spec.model();
}

std::vector<float> Weights(size_t tensor, int64_t elements) {
  std::vector<float> weights(static_cast<size_t>(elements));
  kernels::NormalInit(weights.data(), elements, 0, 0.3F, 1, tensor, 0);
  return weights;
}

std::unique_ptr<Generator> MakeGenerator(v1::Precision precision, bool finish = true,
                                         const v1::ModelSpec& model = Model()) {
  auto generator = Generator::Create(model, precision, 1);
  EXPECT_TRUE(generator.ok()) << generator.status();
  for (const StateInterval& target : (*generator)->LoadTargets()) {
    const std::vector<float> weights = Weights(static_cast<size_t>(target.tensor), target.end);
    std::memcpy(target.data, weights.data(), weights.size() * sizeof(float));
  }
  if (finish) {
    EXPECT_TRUE((*generator)->FinishLoad().ok());
  }
  return *std::move(generator);
}

std::vector<int32_t> Generate(Generator& generator, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options) {
  std::vector<int32_t> tokens;
  EXPECT_EQ(generator.Generate(prompt, options, [&](int32_t t) { tokens.push_back(t); }),
            absl::OkStatus());
  return tokens;
}

// Greedy choice of the fp64 reference on exactly the window's tokens: no padding at all.
int32_t ReferenceNext(const v1::ModelSpec& model, const std::vector<int32_t>& text) {
  const auto length = std::min<int64_t>(static_cast<int64_t>(text.size()), kContext);
  auto graph = models::BuildModel(model, {.mode = models::Mode::kGeneration, .sequence = length});
  EXPECT_TRUE(graph.ok()) << graph.status();
  graph::ReferenceInterpreter reference(*graph);
  for (size_t i = 0; i < graph->parameters.size(); ++i) {
    const graph::ValueId id = graph->parameters[i].value;
    const std::vector<float> weights = Weights(i, graph::Elements(graph->values[id].shape));
    reference.values(id).assign(weights.begin(), weights.end());
  }
  reference.integers(graph->Input("tokens")).assign(text.end() - length, text.end());
  reference.Run({});
  const std::vector<double>& logits = reference.values(graph->logits);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(Generator, GreedyTextIsTheReferencesAlsoWhenTheWindowSlides) {
  for (const v1::ModelSpec& model : {Model(), LlamaModel()}) {
    auto generator = MakeGenerator(v1::PRECISION_FP32, true, model);
    std::vector<int32_t> text = {3, 1, 4};
    for (int32_t token : Generate(*generator, text, {.tokens = 2 * kContext, .temperature = 0})) {
      EXPECT_EQ(token, ReferenceNext(model, text)) << "after " << text.size();
      text.push_back(token);
    }
    EXPECT_EQ(text.size(), 3u + 2 * kContext);
    // A prompt longer than the context: its end counts.
    EXPECT_EQ(Generate(*generator, text, {.tokens = 1, .temperature = 0})[0],
              ReferenceNext(model, text));
  }
}

TEST(Generator, IsRepeatableAndFollowsTheSeed) {
  for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    auto generator = MakeGenerator(precision);
    const GenerateOptions options{.tokens = 30, .temperature = 1, .top_k = 10, .seed = 5};
    const std::vector<int32_t> tokens = Generate(*generator, {1, 2}, options);
    EXPECT_EQ(tokens.size(), 30u);
    EXPECT_EQ(Generate(*MakeGenerator(precision), {1, 2}, options), tokens);
    GenerateOptions other = options;
    other.seed = 6;
    EXPECT_NE(Generate(*generator, {1, 2}, other), tokens);
  }
}

TEST(Generator, SaysWhatIsWrong) {
  auto generator = MakeGenerator(v1::PRECISION_FP32);
  auto error = [&](const std::vector<int32_t>& prompt, const GenerateOptions& options) {
    const absl::Status status = generator->Generate(prompt, options, [](int32_t) {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({}, {}), HasSubstr("prompt is empty"));
  EXPECT_THAT(error({1, 37}, {}), HasSubstr("prompt token 1 has id 37"));
  EXPECT_THAT(error({1}, {.temperature = -1}), HasSubstr("temperature"));
  EXPECT_THAT(error({1}, {.top_k = -1}), HasSubstr("top_k"));
  EXPECT_EQ(MakeGenerator(v1::PRECISION_FP32, false)->Generate({{1}}, {}, [](int32_t) {}).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace milepost::runtime
