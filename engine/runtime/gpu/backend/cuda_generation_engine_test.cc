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
                               [&](int32_t token) {
                                 text.push_back(token);
                                 return true;
                               }),
            absl::OkStatus());
  return text;
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
                    GenerationCase{"LlamaF16", {.llama = true, .tied = true}, v1::PRECISION_FP16}),
    [](const auto& info) { return info.param.name; });

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
