// Texts made on the fake device against the CPU's, token for token.
#include "engine/runtime/gpu/backend/cuda_generation_engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/runtime/generation/generator.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

GenerationEngineFactory OnDevice(uint64_t seed, bool capture) {
  return [=](const v1::ModelSpec& model, const plan::PlanOptions& options) {
    CudaEngineParts parts;
    parts.device = std::make_unique<FakeDevice>(seed);
    parts.products = std::make_unique<kernels::cuda::HostProducts>();
    parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
    parts.capture = capture;
    return CudaGenerationEngine(model, options, std::move(parts));
  };
}

std::unique_ptr<Generator> Make(const v1::ModelSpec& model, const GeneratorOptions& options) {
  auto generator = Generator::Create(model, options);
  EXPECT_TRUE(generator.ok()) << generator.status();
  for (const StateInterval& target : (*generator)->LoadTargets()) {
    std::vector<float> weights(static_cast<size_t>(target.end));
    kernels::NormalInit(weights.data(), target.end, 0, 0.3F, 1,
                        static_cast<uint64_t>(target.tensor), 0);
    std::memcpy(target.data, weights.data(), weights.size() * sizeof(float));
  }
  EXPECT_EQ((*generator)->FinishLoad(), absl::OkStatus());
  return *std::move(generator);
}

std::vector<int32_t> Text(Generator& generator, int64_t prompt, const GenerateOptions& options) {
  std::vector<int32_t> text;
  for (int64_t i = 0; i < prompt; ++i) {
    text.push_back(static_cast<int32_t>((i * i + 3 * i + 1) % TinyJob::kVocabulary));
  }
  EXPECT_EQ(generator.Generate(std::vector<int32_t>(text), options,
                               [&](const TokenScore& made) {
                                 text.push_back(made.token.token);
                                 return true;
                               }),
            absl::OkStatus());
  return text;
}

// With log-probabilities of the likeliest, of a text and of what follows it.
std::vector<TokenScore> Scores(Generator& generator, int64_t length) {
  std::vector<int32_t> text;
  for (int64_t i = 0; i < length; ++i) {
    text.push_back(static_cast<int32_t>((i * i + 3 * i + 1) % TinyJob::kVocabulary));
  }
  std::vector<TokenScore> scores;
  const auto keep = [&](const TokenScore& score) {
    scores.push_back(score);
    return true;
  };
  EXPECT_EQ(generator.Score(text, 3, keep), absl::OkStatus());
  const GenerateOptions options = {.tokens = 2, .temperature = 0, .best = 3};
  EXPECT_EQ(generator.Generate(text, options, keep), absl::OkStatus());
  return scores;
}

void ExpectSameScores(const std::vector<TokenScore>& got, const std::vector<TokenScore>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token.token, want[i].token.token) << i;
    EXPECT_NEAR(got[i].token.log_prob, want[i].token.log_prob, 1e-4) << i;
    ASSERT_EQ(got[i].best.size(), want[i].best.size()) << i;
    for (size_t j = 0; j < got[i].best.size(); ++j) {
      EXPECT_NEAR(got[i].best[j].log_prob, want[i].best[j].log_prob, 1e-4) << i << " " << j;
    }
  }
}

struct GenerationCase {
  const char* name;
  TinyOptions model;
  v1::Precision precision;
};

void PrintTo(const GenerationCase& test, std::ostream* out) { *out << test.name; }

class CudaGeneration : public testing::TestWithParam<GenerationCase> {};

// Short prompts and ones longer than the window, which fills up; the likeliest tokens and drawn
// ones; one text after another, so that captured programs are launched again. In bf16 tokens may be
// others, where two are about as likely: there cuda_backend_test.cc compares the ops.
TEST_P(CudaGeneration, TextsAreTheCpus) {
  const TinyJob job;
  const v1::ModelSpec model = job.Spec(GetParam().model).model();
  const GeneratorOptions options = {.precision = GetParam().precision, .window = 16};
  const auto cpu = Make(model, options);
  for (const bool capture : {false, true}) {
    GeneratorOptions on_device = options;
    on_device.engine = OnDevice(3, capture);
    const auto device = Make(model, on_device);
    for (const int64_t prompt : {1, 5, 30}) {
      for (const double temperature : {0.0, 0.7}) {
        SCOPED_TRACE(absl::StrCat(capture ? "captured, " : "", "prompt of ", prompt));
        const GenerateOptions how = {
            .tokens = 20, .temperature = temperature, .top_k = 12, .seed = 4};
        EXPECT_EQ(Text(*device, prompt, how), Text(*cpu, prompt, how));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaGeneration,
    testing::Values(GenerationCase{"Gpt2", {}, v1::PRECISION_FP32},
                    GenerationCase{"Llama", {.llama = true, .qk_norm = true}, v1::PRECISION_FP32},
                    GenerationCase{"Gemma3", {.llama = true, .gemma3 = true}, v1::PRECISION_FP32},
                    GenerationCase{"Experts",
                                   {.llama = true, .experts = 5, .per_token = 2},
                                   v1::PRECISION_FP32},
                    GenerationCase{"ExpertsF16",
                                   {.llama = true, .experts = 5, .per_token = 2},
                                   v1::PRECISION_FP16},
                    GenerationCase{"Olmo3", {.llama = true, .olmo3 = true}, v1::PRECISION_FP32},
                    GenerationCase{"LlamaF16", {.llama = true, .tied = true}, v1::PRECISION_FP16}),
    [](const auto& info) { return info.param.name; });

TEST_P(CudaGeneration, ScoresAreTheCpus) {
  const TinyJob job;
  v1::ModelSpec model = job.Spec(GetParam().model).model();
  constexpr int64_t kLong = 90;  // more than are run at once
  model.has_gpt2() ? model.mutable_gpt2()->set_context(kLong)
                   : model.mutable_llama()->set_context(kLong);
  GeneratorOptions options = {.scores = true};
  const auto cpu = Make(model, options);
  options.engine = OnDevice(3, /*capture=*/true);  // a program's first run is not captured
  const auto device = Make(model, options);
  for (const int64_t length : {88, 2, 70}) {
    SCOPED_TRACE(absl::StrCat(length, " tokens"));
    ExpectSameScores(Scores(*device, length), Scores(*cpu, length));
  }
  // What is kept of the text before changes no bit.
  Scores(*device, 88);
  EXPECT_EQ(Scores(*device, 70), Scores(*Make(model, options), 70));
}

// Side by side, against the CPU's of one after the other; prompts of several chunks.
TEST_P(CudaGeneration, TextsSideBySideAreTheCpus) {
  const TinyJob job;
  const v1::ModelSpec model = job.Spec(GetParam().model).model();
  GeneratorOptions options = {.precision = GetParam().precision, .window = 16};
  const auto cpu = Make(model, options);
  options.texts = 3;
  for (const bool capture : {false, true}) {
    options.engine = OnDevice(3, capture);
    const auto device = Make(model, options);
    std::vector<std::vector<int32_t>> want, got(5);
    std::vector<size_t> of_slot(3);
    const GenerateOptions how = {.tokens = 20, .temperature = 0.7, .top_k = 12, .seed = 4};
    const std::vector<int64_t> prompts = {1, 30, 5, 16, 2};
    for (size_t next = 0; next < prompts.size() || device->running() > 0;) {
      if (next < prompts.size() && device->running() < 3) {
        want.push_back(Text(*cpu, prompts[next], how));
        got[next].assign(want[next].begin(), want[next].begin() + prompts[next]);
        of_slot[*device->Start(got[next], how)] = next;
        ++next;
      }
      ASSERT_EQ(device->Step([&](int32_t slot, const TokenScore& made) {
        got[of_slot[slot]].push_back(made.token.token);
        return true;
      }),
                absl::OkStatus());
    }
    EXPECT_EQ(got, want) << capture;
  }
}

TEST(CudaGenerationPlan, IsTheDevices) {
  const TinyJob job;
  GeneratorOptions options{.window = 16};
  options.engine = OnDevice(3, true);
  const auto device = Make(job.Spec({}).model(), options);
  EXPECT_EQ(device->plan().options.device, plan::DeviceKind::kCuda);
  for (const plan::Buffer& buffer : device->plan().buffers) EXPECT_EQ(buffer.offset % 256, 0);
}

}  // namespace
}  // namespace milepost::runtime
