// How long the stages of a pipeline wait: 1F1B beside zero-bubble, each trained for real by ranks
// of one thread in this process. Prints one line of JSON.
//
//   build/release/bench/pipeline_bubble --stages 4 --accumulation 8
//
// Every op of a step is timed by the clock of the thread that runs it, so that ranks which share a
// core do not count each other's time. With these times of its passes each schedule is then laid
// out on a core for each rank (plan/pipeline/schedule.h): `idle` is what stages wait there. With
// at least as many free cores as stages `waited`, by the ranks' own reports, tells the same
// directly. The floor is what stages wait because one computes longer than the others.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/step_model.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/plan/pipeline/schedule.h"
#include "engine/runtime/cpu/cpu_step_engine.h"

namespace milepost::bench {
namespace {

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool Computes(const plan::PlannedOp& op) {
  return op.stream == plan::Stream::kCompute && op.op.attributes.pass >= 0;
}

// One rank's, of the steps that count.
struct RankTimes {
  std::vector<double> by_pass;  // seconds, of a step
  std::vector<double> waited;   // shares of steps
  std::vector<double> steps;    // seconds
  absl::Status status;
};

absl::Status RunRank(const StepFlags& flags, runtime::SessionOptions options,
                     comm::Communicator* communicator, RankTimes* times) {
  options.threads = 1;
  const runtime::OpWrapper timed = [times](const plan::PlannedOp& op, runtime::BoundOp run) {
    if (!Computes(op)) return run;
    return runtime::BoundOp(
        [times, pass = op.op.attributes.pass, run = std::move(run)](const auto& context) {
          const double start = ThreadSeconds();
          absl::Status status = run(context);
          times->by_pass[pass] += ThreadSeconds() - start;
          return status;
        });
  };
  options.engine = [&timed](const runtime::StepEngineArguments& arguments) {
    return runtime::WrappedCpuStepEngine(arguments, timed);
  };
  MP_ASSIGN_OR_RETURN(auto session, MakeSession(flags, options, communicator));
  times->by_pass.resize(static_cast<size_t>(3 * flags.accumulation));
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  for (int64_t i = 0; i < flags.warmup; ++i) MP_RETURN_IF_ERROR(session->Step(false).status());
  std::fill(times->by_pass.begin(), times->by_pass.end(), 0.0);
  for (int64_t i = 0; i < flags.steps; ++i) {
    MP_ASSIGN_OR_RETURN(const runtime::StepReport report, session->Step(false));
    times->steps.push_back(report.seconds);
    times->waited.push_back(report.communication_wait_seconds / report.seconds);
  }
  for (double& seconds : times->by_pass) seconds /= static_cast<double>(flags.steps);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankTimes>> RunStages(const StepFlags& flags) {
  auto calls = comm::MakeInProcessGroup(flags.stages);
  auto activations = comm::MakeInProcessGroup(flags.stages);
  auto gradients = comm::MakeInProcessGroup(flags.stages);
  std::vector<RankTimes> times(static_cast<size_t>(flags.stages));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < times.size(); ++rank) {
    threads.emplace_back([&, rank] {
      runtime::SessionOptions options;
      options.transfers = {activations[rank].get(), gradients[rank].get()};
      times[rank].status = RunRank(flags, options, calls[rank].get(), &times[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const RankTimes& rank : times) MP_RETURN_IF_ERROR(rank.status);
  return times;
}

struct Bubble {
  double idle = 0;    // share of all stages' time
  double floor = 0;   // of it, because stages are not alike
  double step = 0;    // seconds, with a core for each stage
  double waited = 0;  // as `idle`, on this machine
};

// The mean of each kind of pass, by stage.
std::vector<plan::PassTimes> PassTimesOf(const plan::PipelineShape& shape,
                                         const std::vector<RankTimes>& ranks) {
  std::vector<plan::PassTimes> times(ranks.size());
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    const auto passes = plan::PassesOf(shape, static_cast<int>(stage));
    for (size_t i = 0; i < passes.size(); ++i) {
      times[stage][static_cast<size_t>(passes[i].kind)] +=
          ranks[stage].by_pass[i] / shape.micro_batches;
    }
  }
  return times;
}

Bubble BubbleOf(const plan::PipelineShape& shape, const std::vector<RankTimes>& ranks) {
  Bubble bubble;
  double busy = 0, longest = 0;
  for (const auto& stage : TimelineOf(shape, PassTimesOf(shape, ranks))) {
    double of_stage = 0;
    for (const plan::TimedPass& pass : stage) of_stage += pass.end - pass.begin;
    busy += of_stage;
    longest = std::max(longest, of_stage);
    bubble.step = std::max(bubble.step, stage.back().end);
  }
  for (const RankTimes& rank : ranks) bubble.waited += Median(rank.waited) / shape.stages;
  bubble.idle = 1 - busy / (shape.stages * bubble.step);
  bubble.floor = 1 - busy / (shape.stages * longest);
  return bubble;
}

absl::Status Run(StepFlags flags, int64_t rounds) {
  const std::pair<v1::PipelineSchedule, plan::PipelineSchedule> schedules[] = {
      {v1::PIPELINE_SCHEDULE_1F1B, plan::PipelineSchedule::kOneForwardOneBackward},
      {v1::PIPELINE_SCHEDULE_ZERO_BUBBLE, plan::PipelineSchedule::kZeroBubble}};
  std::vector<Bubble> bubbles[2];
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < 2; ++i) {
      flags.schedule = schedules[i].first;
      MP_ASSIGN_OR_RETURN(const std::vector<RankTimes> ranks, RunStages(flags));
      bubbles[i].push_back(BubbleOf(
          {schedules[i].second, flags.stages, static_cast<int>(flags.accumulation)}, ranks));
    }
  }
  const auto median = [](const std::vector<Bubble>& of, double Bubble::*field) {
    std::vector<double> values;
    for (const Bubble& bubble : of) values.push_back(bubble.*field);
    return Median(values);
  };
  nlohmann::ordered_json result = {{"stages", flags.stages},
                                   {"micro_batches", flags.accumulation},
                                   {"cores", std::thread::hardware_concurrency()}};
  const char* names[] = {"1f1b", "zero_bubble"};
  for (size_t i = 0; i < 2; ++i) {
    result[names[i]] = {{"idle", median(bubbles[i], &Bubble::idle)},
                        {"floor", median(bubbles[i], &Bubble::floor)},
                        {"step_seconds", median(bubbles[i], &Bubble::step)},
                        {"waited", median(bubbles[i], &Bubble::waited)}};
  }
  result["idle_ratio"] = median(bubbles[1], &Bubble::idle) / median(bubbles[0], &Bubble::idle);
  std::puts(result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::StepFlags flags;
  flags.layers = 16;
  flags.width = 256;
  flags.heads = 4;
  flags.context = 128;
  flags.batch = 4;
  flags.accumulation = 8;
  flags.stages = 4;
  flags.precision = "fp32";
  flags.steps = 4;
  flags.warmup = 1;
  int64_t rounds = 5;
  CLI::App app{"How long the stages of a pipeline wait."};
  milepost::bench::AddStepFlags(app, &flags);
  app.add_option("--stages", flags.stages)->check(CLI::Range(2, 16));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 100));
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::bench::Run(flags, rounds); !status.ok()) {
    std::fprintf(stderr, "pipeline_bubble: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
