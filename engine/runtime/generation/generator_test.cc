#include "engine/runtime/generation/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "common/spec/validate.h"
#include "engine/kernels/cpu/random.h"
#include "engine/models/model.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/ops/reference/reference_interpreter.h"

namespace milepost::runtime {
namespace {

using ::testing::HasSubstr;

const EmitToken kGoOn = [](const TokenScore&) { return true; };
constexpr int64_t kShortContext = 12;
constexpr int64_t kSmallVocabulary = 37;

v1::ModelSpec Model() {
  v1::ModelSpec model;
  v1::Gpt2Spec* gpt2 = model.mutable_gpt2();
  gpt2->set_layers(2);
  gpt2->set_width(32);
  gpt2->set_heads(4);
  gpt2->set_context(kShortContext);
  gpt2->set_vocabulary(kSmallVocabulary);
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
  llama->set_context(kShortContext);
  llama->set_vocabulary(kSmallVocabulary);
  NormalizeJobSpec(&spec);
  return spec.model();
}

std::vector<float> Weights(size_t tensor, int64_t elements) {
  std::vector<float> weights(static_cast<size_t>(elements));
  kernels::NormalInit(weights.data(), elements, 0, 0.3F, 1, tensor, 0);
  return weights;
}

std::unique_ptr<Generator> MakeGenerator(const GeneratorOptions& options, bool finish = true,
                                         const v1::ModelSpec& model = Model()) {
  auto generator = Generator::Create(model, options);
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
  EXPECT_EQ(generator.Generate(prompt, options,
                               [&](const TokenScore& made) {
                                 tokens.push_back(made.token.token);
                                 return true;
                               }),
            absl::OkStatus());
  return tokens;
}

// What the model is to see when it chooses the token after `text`, with a prompt of `prompt` tokens
// and a window of `size`.
std::vector<int32_t> WindowOf(const std::vector<int32_t>& text, int64_t prompt, int64_t size) {
  int64_t begin = std::max<int64_t>(0, prompt - size);
  for (int64_t end = prompt + 1; end <= static_cast<int64_t>(text.size()); ++end) {
    if (end - begin > size) begin = end - std::max<int64_t>(1, size / 2);
  }
  return {text.begin() + begin, text.end()};
}

// Greedy choice of the fp64 reference, which runs the whole window: no cache.
int32_t ReferenceNext(const v1::ModelSpec& model, const std::vector<int32_t>& window) {
  auto graph = models::BuildModel(
      model, {.mode = models::Mode::kGeneration, .sequence = static_cast<int64_t>(window.size())});
  EXPECT_TRUE(graph.ok()) << graph.status();
  graph::ReferenceInterpreter reference(*graph);
  for (size_t i = 0; i < graph->parameters.size(); ++i) {
    const graph::ValueId id = graph->parameters[i].value;
    const std::vector<float> weights = Weights(i, graph::Elements(graph->values[id].shape));
    reference.values(id).assign(weights.begin(), weights.end());
  }
  reference.integers(graph->Input("tokens")) = window;
  reference.Run({});
  const std::vector<double>& logits = reference.values(graph->logits);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<int32_t> Text(int64_t tokens) {
  std::vector<int32_t> text(static_cast<size_t>(tokens));
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<int32_t>((i * i + 3 * i + 1) % kSmallVocabulary);
  }
  return text;
}

// Generates greedily and compares each token.
void ExpectReferencesText(Generator& generator, const v1::ModelSpec& model, int64_t prompt,
                          int64_t window, int64_t tokens) {
  SCOPED_TRACE(testing::Message() << "prompt " << prompt << " window " << window);
  std::vector<int32_t> text = Text(prompt);
  for (int32_t token : Generate(generator, text, {.tokens = tokens, .temperature = 0})) {
    ASSERT_EQ(token, ReferenceNext(model, WindowOf(text, prompt, window))) << text.size();
    text.push_back(token);
  }
  EXPECT_EQ(static_cast<int64_t>(text.size()), prompt + tokens);
}

// Short and long prompts, one longer than the context, windows that fill up several times; one text
// after another.
TEST(Generator, GreedyTextIsTheReferencesAlsoWhenTheWindowIsFull) {
  for (const v1::ModelSpec& model : {Model(), LlamaModel()}) {
    auto generator = MakeGenerator({}, true, model);
    for (int64_t prompt : {3, 1, 12, 11, 40}) {
      ExpectReferencesText(*generator, model, prompt, kShortContext, 2 * kShortContext + 3);
    }
    for (int64_t window : {1, 2, 5}) {
      auto narrow = MakeGenerator({.window = window}, true, model);
      ExpectReferencesText(*narrow, model, 4, window, 11);
    }
  }
}

// More tokens than are run through the model at once.
TEST(Generator, LongPromptsComeInChunks) {
  for (v1::ModelSpec model : {Model(), LlamaModel()}) {
    constexpr int64_t kLong = 150;
    model.has_gpt2() ? model.mutable_gpt2()->set_context(kLong)
                     : model.mutable_llama()->set_context(kLong);
    auto generator = MakeGenerator({}, true, model);
    for (int64_t prompt : {64, 65, 130, 148}) {
      ExpectReferencesText(*generator, model, prompt, kLong, 4);
    }
  }
}

TEST(Generator, AdaptersWithMagnitudesMakeTheReferencesText) {
  for (v1::ModelSpec model : {Model(), LlamaModel()}) {
    model.mutable_lora()->set_rank(2);
    model.mutable_lora()->set_dora(true);
    auto generator = MakeGenerator({}, true, model);
    ExpectReferencesText(*generator, model, 5, kShortContext, kShortContext);
  }
}

// Trained beside 4 bits, adapters go on beside what these are.
TEST(Generator, WhatWasAdaptedIn4BitsIsRounded) {
  v1::ModelSpec model = LlamaModel();
  model.mutable_lora()->set_rank(2);
  const GenerateOptions options{.tokens = 40, .temperature = 1, .seed = 3};
  const auto wide = Generate(*MakeGenerator({}, true, model), {1, 2}, options);
  auto rounded = MakeGenerator({}, /*finish=*/false, model);
  for (const StateInterval& target : rounded->LoadTargets()) {
    const std::string& name = rounded->tensors()[target.tensor].name();
    if (!absl::StrContains(name, "_proj.weight")) continue;  // a layer of the blocks, no adapter
    kernels::RoundToNf4(reinterpret_cast<float*>(target.data), target.end);
  }
  ASSERT_EQ(rounded->FinishLoad(), absl::OkStatus());
  const auto want = Generate(*rounded, {1, 2}, options);
  EXPECT_NE(want, wide);
  model.mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
  EXPECT_EQ(Generate(*MakeGenerator({}, true, model), {1, 2}, options), want);
}

TEST(Generator, IsRepeatableAndFollowsTheSeed) {
  for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    auto generator = MakeGenerator({.precision = precision});
    const GenerateOptions options{.tokens = 30, .temperature = 1, .top_k = 10, .seed = 5};
    const std::vector<int32_t> tokens = Generate(*generator, {1, 2}, options);
    EXPECT_EQ(tokens.size(), 30u);
    EXPECT_EQ(Generate(*generator, {1, 2}, options), tokens);  // nothing is left of the first text
    EXPECT_EQ(Generate(*MakeGenerator({.precision = precision}), {1, 2}, options), tokens);
    EXPECT_EQ(Generate(*MakeGenerator({.precision = precision, .threads = 3}), {1, 2}, options),
              tokens);
    GenerateOptions other = options;
    other.seed = 6;
    EXPECT_NE(Generate(*generator, {1, 2}, other), tokens);
  }
}

TEST(Generator, AWindowTakesTheMemoryOfItsOwnTokens) {
  v1::ModelSpec model = LlamaModel();
  model.mutable_llama()->set_context(1 << 20);
  const auto bytes = [&](int64_t window) {
    auto generator = Generator::Create(model, {.window = window});
    EXPECT_TRUE(generator.ok()) << generator.status();
    return (*generator)->plan().arena_bytes;
  };
  constexpr int64_t kBytesPerToken = 2 * 2 * 2 * 8 * 4;  // layers, keys and values, heads, width
  EXPECT_EQ(bytes(4096) - bytes(1024), 3072 * kBytesPerToken);
}

TEST(Generator, EndsWhereNoMoreIsWanted) {
  auto generator = MakeGenerator({});
  const GenerateOptions options = {.tokens = 6, .temperature = 0};
  const std::vector<int32_t> whole = Generate(*generator, {1, 2}, options);
  std::vector<int32_t> part;
  EXPECT_EQ(generator->Generate(std::vector<int32_t>{1, 2}, options,
                                [&](const TokenScore& made) {
                                  part.push_back(made.token.token);
                                  return part.size() < 3;
                                }),
            absl::OkStatus());
  EXPECT_EQ(part, std::vector<int32_t>(whole.begin(), whole.begin() + 3));
  EXPECT_EQ(Generate(*generator, {1, 2}, options), whole);  // nothing is left of the part
}

TEST(Generator, SaysWhatIsWrong) {
  auto generator = MakeGenerator({});
  auto error = [&](const std::vector<int32_t>& prompt, const GenerateOptions& options) {
    const absl::Status status = generator->Generate(prompt, options, kGoOn);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({}, {}), HasSubstr("prompt is empty"));
  EXPECT_THAT(error({1, 37}, {}), HasSubstr("prompt token 1 has id 37"));
  EXPECT_THAT(error({1}, {.temperature = -1}), HasSubstr("temperature"));
  EXPECT_THAT(error({1}, {.top_k = -1}), HasSubstr("top_k"));
  EXPECT_EQ(MakeGenerator({}, false)->Generate(std::vector<int32_t>{1}, {}, kGoOn).code(),
            absl::StatusCode::kFailedPrecondition);
  v1::ModelSpec model;
  model.mutable_bert();
  EXPECT_THAT(Generator::Create(model, {}).status().message(), HasSubstr("BERT"));
  model.mutable_resnet();
  EXPECT_THAT(Generator::Create(model, {}).status().message(), HasSubstr("ResNet"));
}

}  // namespace
}  // namespace milepost::runtime
