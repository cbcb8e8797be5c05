// Training steps op by op on a GPU and on the CPU, each op from the same bytes: the first op whose
// results differ, with its shapes, its worst element and what it read (diff_engine.h).
//
//   build/release/bench/gpu_diff spec.yaml             # any spec of one rank
//   build/release/bench/gpu_diff --family llama --layers 2 --width 256 --heads 4 --precision bf16
//   build/release/bench/gpu_diff spec.yaml --all       # a line for each op
//
// Exit code 1: an op differs, or nothing could be compared.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "bench/step_model.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/gpu/backend/op_diff.h"
#include "engine/runtime/gpu/cuda/gpu_step_engine.h"

namespace milepost::bench {
namespace {

struct Options {
  StepFlags step;
  std::string spec;
  bool all = false;
  int most = 1;  // ops that differ, described
};

// Each op once, however many steps and micro-steps it differs in.
struct Seen {
  int64_t ops = 0;
  std::set<int64_t> wrong;
  std::set<int64_t> told;
};

void Report(const Options& options, const runtime::OpDiff& op, Seen* seen) {
  ++seen->ops;
  if (options.all && seen->told.insert(op.index).second) {
    std::printf("%s\n", runtime::Line(op).c_str());
  }
  if (!op.Differs() || !seen->wrong.insert(op.index).second) return;
  if (static_cast<int>(seen->wrong.size()) <= options.most) {
    std::printf("%s", runtime::Describe(op).c_str());
  }
  std::fflush(stdout);
}

absl::StatusOr<std::unique_ptr<runtime::TrainingSession>> Open(
    const Options& options, const runtime::SessionOptions& session, comm::Communicator* rank) {
  if (options.spec.empty()) return MakeSession(options.step, session, rank);
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobSpec(options.spec));
  return runtime::TrainingSession::Create(spec, session, rank);
}

absl::StatusOr<Seen> Run(const Options& options) {
  Seen seen;
  auto group = comm::MakeInProcessGroup(1);
  const runtime::SessionOptions session_options = {
      .threads = options.step.threads,
      .engine = runtime::GpuDiffEngine(
          {.note = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }},
          [&](const runtime::OpDiff& op) { Report(options, op, &seen); })};
  MP_ASSIGN_OR_RETURN(auto session, Open(options, session_options, group[0].get()));
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  for (int64_t i = 0; i < options.step.steps; ++i) {
    MP_RETURN_IF_ERROR(session->Step(false).status());
  }
  return seen;
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::Options options;
  options.step.steps = 2;
  CLI::App app{"The first op whose result on a GPU is not the CPU's"};
  app.add_option("spec", options.spec, "a job spec of one rank; none: the flags' model, on noise")
      ->check(CLI::ExistingFile);
  milepost::bench::AddStepFlags(app, &options.step);
  app.add_flag("--all", options.all, "a line for each op, of its first run");
  app.add_option("--most", options.most, "how many ops that differ are described")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const auto seen = milepost::bench::Run(options);
  if (!seen.ok()) {
    std::fprintf(stderr, "gpu_diff: %s\n", std::string(seen.status().message()).c_str());
    return 1;
  }
  std::printf("%lld ops compared, %zu differ\n", static_cast<long long>(seen->ops),
              seen->wrong.size());
  return seen->wrong.empty() ? 0 : 1;
}
