// Greedy text from a GPT-2 or a Llama with random weights on this machine. Prints one line of JSON;
// torch_generate.py is its peer, generate_vs_torch runs both.
//
//   build/release/bench/generate --layers 12 --width 768 --heads 12 --vocabulary 50257
//   --context 1024 --prompt 64 --tokens 128
//
// The floor of a token is reading every parameter that its products have once: their bytes over the
// rate at which all threads read that many bytes, measured between the texts.
//
// With --parallel N as many texts are made side by side. A token's time is then that of one token
// of each, and tokens per second are those of all.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/random.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/generation/generator.h"

namespace milepost {
namespace {

struct Flags {
  std::string family = "gpt2";
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t kv_heads = 4;   // Llama only
  int64_t hidden = 2048;  // Llama only
  int64_t vocabulary = 50257;
  int64_t context = 1024;
  int64_t prompt = 64;
  int64_t tokens = 128;
  int64_t texts = 3;
  int64_t parallel = 1;
  int threads = 2;
  std::string precision = "fp32";
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// And begins anew.
double SecondsSince(double* start) {
  const double now = Seconds();
  return now - std::exchange(*start, now);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <typename Family>
void SetSizes(const Flags& flags, Family* model) {
  model->set_layers(flags.layers);
  model->set_width(flags.width);
  model->set_heads(flags.heads);
  model->set_context(flags.context);
  model->set_vocabulary(flags.vocabulary);
}

v1::ModelSpec Model(const Flags& flags) {
  v1::JobSpec spec;
  if (flags.family == "llama") {
    v1::LlamaSpec* model = spec.mutable_model()->mutable_llama();
    SetSizes(flags, model);
    model->set_kv_heads(flags.kv_heads);
    model->set_hidden(flags.hidden);
  } else {
    SetSizes(flags, spec.mutable_model()->mutable_gpt2());
  }
  NormalizeJobSpec(&spec);
  return spec.model();
}

using Words = uint64_t __attribute__((vector_size(64)));

// How fast all threads read memory that caches do not hold. The fastest time counts: other work on
// the machine only slows it down.
class Reader {
 public:
  static absl::StatusOr<Reader> Create(int64_t bytes, int threads) {
    bytes = std::max<int64_t>(bytes, 256 << 20);
    MP_ASSIGN_OR_RETURN(runtime::Arena memory, runtime::Arena::Allocate(bytes));
    std::memset(memory.data(), 1, static_cast<size_t>(bytes));
    return Reader(std::move(memory), bytes / static_cast<int64_t>(sizeof(Words)), threads);
  }

  void Measure() {
    const double start = Seconds();
    std::vector<std::thread> readers;
    std::vector<uint64_t> sums(static_cast<size_t>(threads_));
    for (int i = 0; i < threads_; ++i) {
      readers.emplace_back([this, i, &sums] { sums[i] = Sum(i); });
    }
    for (std::thread& reader : readers) reader.join();
    rate_ = std::max(rate_, static_cast<double>(count_) * sizeof(Words) / (Seconds() - start));
    for (uint64_t sum : sums) checksum_ += sum;
  }
  double Rate() const { return rate_; }
  uint64_t checksum() const { return checksum_; }  // so that the reads are not left out

 private:
  Reader(runtime::Arena memory, int64_t count, int threads)
      : memory_(std::move(memory)), count_(count), threads_(threads) {}

  uint64_t Sum(int thread) const {
    const auto* words = reinterpret_cast<const Words*>(memory_.data());
    Words sum[4] = {};
    const int64_t end = count_ * (thread + 1) / threads_;
    for (int64_t i = count_ * thread / threads_; i + 4 <= end; i += 4) {
      for (int64_t j = 0; j < 4; ++j) sum[j] += words[i + j];
    }
    const Words all = sum[0] + sum[1] + sum[2] + sum[3];
    return all[0] + all[7];
  }

  runtime::Arena memory_;
  const int64_t count_;
  const int threads_;
  double rate_ = 0;
  uint64_t checksum_ = 0;
};

struct Texts {
  std::vector<double> prompt_seconds;  // until all have their first token
  std::vector<double> token_seconds;   // of each further one
};

// `number`: no text begins as one before it did, whose keys and values would be used.
std::vector<int32_t> PromptOf(const Flags& flags, int64_t number) {
  std::vector<int32_t> prompt(static_cast<size_t>(flags.prompt));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>(Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {1, 2})[0] %
                                     static_cast<uint32_t>(flags.vocabulary));
  }
  prompt[0] = static_cast<int32_t>(number % flags.vocabulary);
  return prompt;
}

// As many texts as go side by side: their prompts, then token by token.
absl::Status Write(const Flags& flags, int64_t number, runtime::Generator& generator,
                   Texts* texts) {
  const runtime::GenerateOptions options = {.tokens = flags.tokens, .temperature = 0};
  double last = Seconds();
  for (int64_t i = 0; i < flags.parallel; ++i) {
    const std::vector<int32_t> prompt = PromptOf(flags, number * flags.parallel + i);
    MP_RETURN_IF_ERROR(generator.Start(prompt, options).status());
  }
  std::vector<bool> begun(static_cast<size_t>(flags.parallel), false);
  int64_t beginnings = 0;
  // Until the first one ends: they make their last tokens one after the other.
  while (generator.running() == flags.parallel) {
    MP_RETURN_IF_ERROR(generator.Step([&](int32_t text, const TokenScore& /*token*/) {
      if (begun[static_cast<size_t>(text)]) return true;
      begun[static_cast<size_t>(text)] = true;
      if (++beginnings == flags.parallel) texts->prompt_seconds.push_back(SecondsSince(&last));
      return true;
    }));
    if (beginnings == flags.parallel) texts->token_seconds.push_back(SecondsSince(&last));
  }
  while (generator.running() > 0) {
    MP_RETURN_IF_ERROR(generator.Step([](int32_t, const TokenScore&) { return true; }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<runtime::Generator>> Make(const Flags& flags) {
  const v1::Precision precision = flags.precision == "bf16"   ? v1::PRECISION_BF16
                                  : flags.precision == "fp16" ? v1::PRECISION_FP16
                                                              : v1::PRECISION_FP32;
  MP_ASSIGN_OR_RETURN(auto generator, runtime::Generator::Create(
                                          Model(flags), {.precision = precision,
                                                         .threads = flags.threads,
                                                         .window = flags.prompt + flags.tokens,
                                                         .texts = flags.parallel}));
  for (const runtime::StateInterval& target : generator->LoadTargets()) {
    kernels::NormalInit(reinterpret_cast<float*>(target.data), target.end, 0, 0.02F, 1,
                        static_cast<uint64_t>(target.tensor), 0);
  }
  MP_RETURN_IF_ERROR(generator->FinishLoad());
  return generator;
}

// Of the parameters that a token's products read whole: all but GPT-2's positions and a Llama's
// embedding.
int64_t ReadBytes(const Flags& flags, const plan::StepPlan& plan) {
  int64_t elements = plan.parameters;
  elements -= flags.width * (flags.family == "gpt2" ? flags.context : flags.vocabulary);
  return elements * (flags.precision == "fp32" ? 4 : 2);
}

absl::Status Run(const Flags& flags) {
  MP_ASSIGN_OR_RETURN(auto generator, Make(flags));
  Texts warmup, texts;
  MP_RETURN_IF_ERROR(Write(flags, flags.texts, *generator, &warmup));
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);  // before the reader's own memory
  const plan::StepPlan& plan = generator->plan();
  const int64_t bytes = ReadBytes(flags, plan);
  MP_ASSIGN_OR_RETURN(Reader reader, Reader::Create(bytes, flags.threads));
  for (int64_t i = 0; i < flags.texts; ++i) {
    MP_RETURN_IF_ERROR(Write(flags, i, *generator, &texts));
    for (int repeat = 0; repeat < 4; ++repeat) reader.Measure();
  }
  const double token = Median(texts.token_seconds);
  const double prompt = Median(texts.prompt_seconds);
  const double floor = static_cast<double>(bytes) / reader.Rate();
  const auto all = static_cast<double>(flags.parallel);
  const nlohmann::ordered_json result = {
      {"precision", flags.precision},
      {"threads", flags.threads},
      {"parameters", plan.parameters},
      {"prompt_seconds", prompt},
      {"parallel", flags.parallel},
      {"prompt_tokens_per_second", all * static_cast<double>(flags.prompt) / prompt},
      {"token_seconds", token},
      {"tokens_per_second", all / token},
      {"read_bytes", bytes},
      {"read_bytes_per_second", reader.Rate()},
      {"floor_seconds", floor},
      {"ratio_to_floor", floor / token},
      {"arena_bytes", plan.arena_bytes},
      {"peak_rss_bytes", usage.ru_maxrss * 1024},
      {"checksum", reader.checksum()}};
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) {
  milepost::Flags flags;
  CLI::App app{"Text from a model with random weights on this machine"};
  app.add_option("--family", flags.family)->check(CLI::IsMember({"gpt2", "llama"}));
  app.add_option("--layers", flags.layers);
  app.add_option("--width", flags.width);
  app.add_option("--heads", flags.heads);
  app.add_option("--kv-heads", flags.kv_heads, "llama only");
  app.add_option("--hidden", flags.hidden, "llama only");
  app.add_option("--vocabulary", flags.vocabulary);
  app.add_option("--context", flags.context);
  app.add_option("--prompt", flags.prompt, "tokens")->check(CLI::PositiveNumber);
  app.add_option("--tokens", flags.tokens, "to add")->check(CLI::Range(2, 1 << 20));
  app.add_option("--texts", flags.texts)->check(CLI::PositiveNumber);
  app.add_option("--parallel", flags.parallel, "texts side by side")
      ->check(CLI::Range(int64_t{1}, milepost::plan::kMostTexts));
  app.add_option("--threads", flags.threads);
  app.add_option("--precision", flags.precision)->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::Run(flags); !status.ok()) {
    std::fprintf(stderr, "generate: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
