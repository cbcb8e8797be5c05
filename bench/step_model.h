// What benchmarks of training steps share: a session of the model that their flags choose, on
// noise.
#ifndef MILEPOST_BENCH_STEP_MODEL_H_
#define MILEPOST_BENCH_STEP_MODEL_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/session/training_session.h"

namespace milepost::bench {

struct StepFlags {
  std::string family = "gpt2";
  int64_t layers = 6;
  int64_t width = 384;
  int64_t heads = 6;
  int64_t kv_heads = 2;   // Llama only
  int64_t hidden = 1024;  // Llama and BERT
  int64_t experts = 0;    // Llama only; 0: one MLP for all tokens
  int64_t per_token = 2;  // of the experts
  int64_t vocabulary = 256;
  int64_t context = 256;
  int64_t depth = 50;   // ResNet only
  int64_t image = 224;  // ResNet only
  int64_t batch = 8;
  int64_t accumulation = 1;
  int threads = 2;
  int64_t steps = 8;
  int64_t warmup = 3;
  std::string precision = "bf16";
  bool bf16_states = false;
  bool bf16_gradients = false;
  bool fast = false;             // train.determinism
  int64_t recompute_budget = 0;  // bytes; 0: nothing is recomputed
  int64_t lora = 0;              // rank of adapters of all layers; 0: none
  bool nf4 = false;              // the adapted matrices in 4 bits
  bool dora = false;             // adapters with magnitudes
  bool dpo = false;              // of pairs: two answers to a sample
  // Of pipeline_bubble: as many ranks.
  int stages = 1;
  v1::PipelineSchedule schedule = v1::PIPELINE_SCHEDULE_UNSPECIFIED;
};

void AddStepFlags(CLI::App& app, StepFlags* flags);

// Tokens of a sample; 1 for an image.
int64_t SampleSize(const StepFlags& flags);

// One rank of the model, still without parameters.
absl::StatusOr<std::unique_ptr<runtime::TrainingSession>> MakeSession(
    const StepFlags& flags, const runtime::SessionOptions& options,
    comm::Communicator* communicator);

double MonotonicSeconds();
double Median(std::vector<double> values);

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_STEP_MODEL_H_
