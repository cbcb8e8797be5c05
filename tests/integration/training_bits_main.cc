// Prints the bits of small training runs: losses, norms and a hash of the state, one line for each
// of some families, ZeRO stages, precisions and optimizers, on the CPU and on the fake device. Two
// builds that should compute the same print the same on one machine (scripts/behaviour).
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"
#include "tests/integration/on_device.h"
#include "xxhash.h"

namespace milepost::runtime {
namespace {

using Types = v1::OptimizerSpec;

struct Run {
  std::string name;
  v1::JobSpec spec;
};

v1::JobSpec WithOptimizer(v1::JobSpec spec, Types::Type type) {
  v1::OptimizerSpec& optimizer = *spec.mutable_train()->mutable_optimizer();
  optimizer.Clear();
  optimizer.set_type(type);
  NormalizeJobSpec(&spec);
  return spec;
}

v1::JobSpec Offloading(v1::JobSpec spec, v1::OffloadTarget target, bool activations) {
  v1::OffloadSpec* offload = spec.mutable_train()->mutable_offload();
  offload->set_optimizer(target);
  offload->set_activations(activations);
  if (target == v1::OFFLOAD_TARGET_NVME) {
    offload->set_path(std::filesystem::path(spec.data().train()).parent_path().string());
  }
  NormalizeJobSpec(&spec);
  return spec;
}

std::vector<Run> TextRuns(const TinyJob& job) {
  constexpr auto kFp32 = v1::PRECISION_FP32, kBf16 = v1::PRECISION_BF16, kFp16 = v1::PRECISION_FP16,
                 kFp8 = v1::PRECISION_FP8;
  const auto of = [&](int ranks, int stage, v1::Precision precision, TinyOptions options = {}) {
    options.ranks = ranks;
    options.stage = stage;
    options.precision = precision;
    options.steps = 4;
    return job.Spec(options);
  };
  const TinyOptions dropout = {.dropout = 0.1}, llama = {.llama = true, .qk_norm = true},
                    tied = {.llama = true, .tied = true, .qkv_bias = true},
                    bert = {.dropout = 0.1, .bert = true, .documents = true},
                    heads = {.llama = true, .documents = true, .heads = true};
  TinyOptions full = llama, selective = dropout;
  full.recompute = v1::RECOMPUTE_FULL;
  selective.recompute = v1::RECOMPUTE_SELECTIVE;
  return {
      {"gpt2 fp32", of(1, 0, kFp32)},
      {"gpt2 fp32 dropout zero 3", of(2, 3, kFp32, dropout)},
      {"gpt2 bf16 selective zero 2", of(2, 2, kBf16, selective)},
      {"gpt2 fp16 zero 1", of(2, 1, kFp16, dropout)},
      {"gpt2 fp8 zero 1", of(2, 1, kFp8)},
      {"gpt2 bf16 hybrid zero 3", of(4, 3, kBf16, {.group = 2, .global_batch = 16})},
      {"gpt2 bf16 lion zero 2", WithOptimizer(of(2, 2, kBf16), Types::TYPE_LION)},
      {"gpt2 fp32 lamb zero 3", WithOptimizer(of(2, 3, kFp32), Types::TYPE_LAMB)},
      {"gpt2 bf16 sgd zero 1", WithOptimizer(of(3, 1, kBf16), Types::TYPE_SGD)},
      {"gpt2 bf16 offload host", Offloading(of(2, 2, kBf16), v1::OFFLOAD_TARGET_HOST, true)},
      {"gpt2 bf16 offload disk", Offloading(of(1, 1, kBf16), v1::OFFLOAD_TARGET_NVME, false)},
      {"llama fp32 qk_norm", of(1, 0, kFp32, llama)},
      {"llama bf16 full zero 3", of(2, 3, kBf16, full)},
      {"llama fp8 zero 3", of(2, 3, kFp8, {.llama = true})},
      {"llama bf16 tied bias zero 1", of(2, 1, kBf16, tied)},
      {"llama fp32 muon zero 2", WithOptimizer(of(2, 2, kFp32, llama), Types::TYPE_MUON)},
      {"llama bf16 muon zero 3", WithOptimizer(of(2, 3, kBf16, llama), Types::TYPE_MUON)},
      {"llama bf16 adamw_8bit zero 3",
       WithOptimizer(of(2, 3, kBf16, llama), Types::TYPE_ADAMW_8BIT)},
      {"bert fp32 zero 1", of(2, 1, kFp32, bert)},
      {"bert bf16 lamb zero 2", WithOptimizer(of(2, 2, kBf16, bert), Types::TYPE_LAMB)},
      {"bert fp16 zero 3", of(3, 3, kFp16, bert)},
      {"heads fp32 zero 2", of(2, 2, kFp32, heads)},
      {"heads bf16 zero 3", of(2, 3, kBf16, heads)},
  };
}

std::vector<Run> ImageRuns(const TinyImages& job) {
  const auto of = [&](int ranks, int stage, v1::Precision precision, bool bottleneck) {
    return job.Spec({.ranks = ranks,
                     .stage = stage,
                     .precision = precision,
                     .micro_batch = 12 / ranks,
                     .bottleneck = bottleneck,
                     .steps = 4});
  };
  return {
      {"resnet fp32", of(1, 0, v1::PRECISION_FP32, true)},
      {"resnet fp32 basic zero 3", of(2, 3, v1::PRECISION_FP32, false)},
      {"resnet bf16 sgd zero 1",
       WithOptimizer(of(2, 1, v1::PRECISION_BF16, true), Types::TYPE_SGD)},
      {"vit fp32 zero 1", job.Spec({.stage = 1, .steps = 4, .heads = true, .vit = true})},
      {"vit bf16 dropout zero 3", job.Spec({.ranks = 2,
                                            .stage = 3,
                                            .precision = v1::PRECISION_BF16,
                                            .steps = 4,
                                            .vit = true,
                                            .dropout = 0.1})},
  };
}

uint64_t HashOf(const Snapshot& state) {
  XXH3_state_t* hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  for (const TensorData& tensor : state.data) {
    XXH3_64bits_update(hash, tensor.at(0),
                       tensor.size() * static_cast<size_t>(tensor.element_bytes()));
  }
  const uint64_t digest = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return digest;
}

void Print(const Run& run, const char* device, const OptionsOfRank& options) {
  std::string line;
  Snapshot state;
  std::mutex mutex;
  RunRanks(
      run.spec,
      [&](int rank, TrainingSession& session) {
        ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
        while (session.step() < run.spec.train().steps()) {
          const auto report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          if (rank != 0) continue;
          absl::StrAppendFormat(&line, " %a/%a", report->train_loss, report->grad_norm);
        }
        const auto evaluation = session.Evaluate();
        ASSERT_TRUE(evaluation.ok()) << evaluation.status();
        if (rank == 0) absl::StrAppendFormat(&line, " validation %a", evaluation->loss);
        Save(session, state, mutex);
      },
      options);
  printf("%s on the %s:%s state %016llx\n", run.name.c_str(), device, line.c_str(),
         static_cast<unsigned long long>(HashOf(state)));
  fflush(stdout);
}

int Main() {
  const TinyJob job;
  const TinyImages images;
  std::vector<Run> runs = TextRuns(job);
  for (Run& run : ImageRuns(images)) runs.push_back(std::move(run));
  for (const Run& run : runs) {
    Print(run, "cpu", [](int) { return SessionOptions{}; });
    Print(run, "device", OnDevice(1, /*capture=*/true, run.spec.resources().ranks()));
  }
  return testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}

}  // namespace
}  // namespace milepost::runtime

int main() { return milepost::runtime::Main(); }
