// Training steps of a model on a GPU, one rank. Prints one line of JSON; torch_step.py with
// `--device cuda` is its peer, gpu_step_vs_torch runs both.
//
//   build/release/bench/gpu_step --layers 12 --width 768 --heads 12 --vocabulary 50304
//   --context 1024 --batch 16
//
// The floor is the step's matrix products (attention's included) at the rate of one large cuBLASLt
// product of the same precision, measured afterwards in the same process.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "bench/step_model.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/measure/gpu/gpu_bench.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"
#include "engine/runtime/gpu/cuda/gpu_step_engine.h"

namespace milepost::bench {
namespace {

// Of the whole GPU: driver, libraries and context are part of it.
absl::StatusOr<int64_t> UsedBytes() {
  size_t free = 0;
  size_t total = 0;
  MP_RETURN_IF_ERROR(runtime::CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return static_cast<int64_t>(total - free);
}

// Medians of where each step's time went.
struct Split {
  std::vector<double> forward, backward, update, exposed, communication;
  void Add(const runtime::StepReport& report) {
    forward.push_back(report.forward_seconds);
    backward.push_back(report.backward_seconds);
    update.push_back(report.update_seconds);
    exposed.push_back(report.communication_wait_seconds);
    communication.push_back(report.communication_seconds);
  }
  nlohmann::ordered_json Json() const {
    return {{"forward", Median(forward)},
            {"backward", Median(backward)},
            {"update", Median(update)},
            {"communication_wait", Median(exposed)},
            {"communication", Median(communication)}};
  }
};

// Of the second step, whose ops are timed one by one: the costliest kinds first.
nlohmann::ordered_json OpTable(std::vector<runtime::OpKindTime> times, double rate) {
  constexpr size_t kMost = 15;
  constexpr const char* kPhases[] = {"forward", "backward", "update", "recompute"};
  std::sort(times.begin(), times.end(),
            [](const runtime::OpKindTime& a, const runtime::OpKindTime& b) {
              return a.seconds > b.seconds;
            });
  times.resize(std::min(times.size(), kMost));
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const runtime::OpKindTime& time : times) {
    if (time.seconds <= 0) break;
    table.push_back({{"op", graph::Name(time.kind)},
                     {"phase", kPhases[static_cast<int>(time.phase)]},
                     {"runs", time.runs},
                     {"milliseconds", time.seconds * 1e3},
                     {"gigabytes_per_second", time.bytes / time.seconds / 1e9},
                     {"ratio_to_floor", time.flops / rate / time.seconds}});
  }
  return table;
}

struct Options {
  StepFlags step;
  bool capture = true;
  int timed_algorithms = runtime::GpuOptions().timed_algorithms;
  std::string cache_folder = runtime::DefaultCacheFolder();
};

absl::Status Run(const Options& options) {
  const StepFlags& flags = options.step;
  const double start = MonotonicSeconds();
  // The first call makes the context, which no plan counts.
  MP_ASSIGN_OR_RETURN(const int64_t bare_context, UsedBytes());
  auto group = comm::MakeInProcessGroup(1);
  const runtime::SessionOptions session_options = {
      .threads = flags.threads,
      .engine = runtime::GpuStepEngine({.cache_folder = options.cache_folder,
                                        .timed_algorithms = options.timed_algorithms,
                                        .capture = options.capture})};
  MP_ASSIGN_OR_RETURN(auto session, MakeSession(flags, session_options, group[0].get()));
  const double opened = MonotonicSeconds() - start;
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  const double initialised = MonotonicSeconds() - start;
  MP_RETURN_IF_ERROR(session->Step(false).status());
  const double first_step = MonotonicSeconds() - start;
  for (int64_t i = 1; i < flags.warmup; ++i) MP_RETURN_IF_ERROR(session->Step(false).status());
  std::vector<double> seconds;
  Split split;
  double loss = 0;
  for (int64_t i = 0; i < flags.steps; ++i) {
    MP_ASSIGN_OR_RETURN(const runtime::StepReport report, session->Step(false));
    seconds.push_back(report.seconds);
    split.Add(report);
    loss = report.train_loss;
  }
  MP_ASSIGN_OR_RETURN(const int64_t used, UsedBytes());
  const plan::StepPlan plan = session->plan();
  const int64_t beside = session->beside_bytes();
  const std::vector<runtime::OpKindTime> ops = session->op_times();
  session.reset();
  // With what the libraries have loaded, which stays: all that is there when nothing trains.
  MP_ASSIGN_OR_RETURN(const int64_t context, UsedBytes());
  MP_ASSIGN_OR_RETURN(const double rate,
                      runtime::MeasureProductRate(absl::AsciiStrToUpper(flags.precision), {}));
  const double step = Median(seconds);
  const auto tokens = static_cast<double>(flags.batch * flags.accumulation * SampleSize(flags));
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const nlohmann::ordered_json result = {{"precision", flags.precision},
                                         {"parameters", plan.parameters},
                                         {"tokens_per_second", tokens / step},
                                         {"step_seconds_median", step},
                                         {"step_seconds_min", *least},
                                         {"step_seconds_max", *most},
                                         {"opened_seconds", opened},
                                         {"initialised_seconds", initialised},
                                         {"first_step_seconds", first_step},
                                         {"flops_per_step", plan.flops_per_step},
                                         {"floor_gflops", rate / 1e9},
                                         {"floor_seconds", plan.flops_per_step / rate},
                                         {"ratio_to_floor", plan.flops_per_step / rate / step},
                                         {"arena_bytes", plan.arena_bytes},
                                         {"beside_bytes", beside},
                                         {"bare_context_bytes", bare_context},
                                         {"context_bytes", context},
                                         {"used_bytes", used},
                                         {"loss", loss},
                                         {"split_seconds", split.Json()},
                                         {"ops", OpTable(ops, rate)}};
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::Options options;
  CLI::App app{"Training steps of a model on a GPU"};
  milepost::bench::AddStepFlags(app, &options.step);
  app.add_flag("!--no-graphs", options.capture, "no CUDA graphs");
  app.add_option("--cache", options.cache_folder, "where the choice of algorithms is kept");
  app.add_option("--timed-algorithms", options.timed_algorithms, "of cuBLASLt's proposals");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::bench::Run(options); !status.ok()) {
    std::fprintf(stderr, "gpu_step: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
