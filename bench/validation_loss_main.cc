// The validation loss that a spec ends with, trained in this process without a coordinator: what
// ways to store a job's state cost in quality.
//
//   build/release/bench/validation_loss examples/quickstart.yaml --set train.optimizer.master=none
//
// Prints a line of JSON. Its figures are in docs/internals/numerics.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/overrides.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/session/training_session.h"
#include "nlohmann/json.hpp"

namespace milepost::bench {
namespace {

absl::StatusOr<v1::JobSpec> SpecWith(const std::string& path,
                                     const std::vector<std::string>& changes) {
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadJobSpec(path));
  Overrides overrides;
  for (const std::string& change : changes) {
    MP_ASSIGN_OR_RETURN(*overrides.Add(), ParseOverride(change));
  }
  MP_RETURN_IF_ERROR(ApplyOverrides(overrides, "--set", &spec));
  NormalizeJobSpec(&spec);
  MP_RETURN_IF_ERROR(ValidateJobSpec(spec));
  return spec;
}

absl::StatusOr<double> TrainRank(const v1::JobSpec& spec, comm::Communicator* communicator) {
  MP_ASSIGN_OR_RETURN(auto session,
                      runtime::TrainingSession::Create(spec, {.threads = 1}, communicator));
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  while (session->step() < spec.train().steps()) {
    MP_ASSIGN_OR_RETURN(const runtime::StepReport report, session->Step(false));
    if (communicator->rank() == 0 && session->step() % 100 == 0) {
      std::fprintf(stderr, "step %lld: loss %.5f\n", static_cast<long long>(session->step()),
                   report.train_loss);
    }
  }
  MP_ASSIGN_OR_RETURN(const runtime::EvaluationReport report, session->Evaluate());
  return report.loss;
}

absl::StatusOr<double> Train(const v1::JobSpec& spec) {
  auto group = comm::MakeInProcessGroup(spec.resources().ranks());
  std::vector<absl::StatusOr<double>> losses(group.size());
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    ranks.emplace_back([&, rank] { losses[rank] = TrainRank(spec, group[rank].get()); });
  }
  for (std::thread& rank : ranks) rank.join();
  return losses[0];
}

int Main(int argc, char** argv) {
  CLI::App app{"The validation loss that a spec ends with."};
  std::string path;
  std::vector<std::string> changes;
  app.add_option("spec", path, "a job spec")->required();
  app.add_option("--set", changes, "a field of it: path=value; several times");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<v1::JobSpec> spec = SpecWith(path, changes);
  const absl::StatusOr<double> loss = spec.ok() ? Train(*spec) : spec.status();
  if (!loss.ok()) {
    std::fprintf(stderr, "validation_loss: %s\n", std::string(loss.status().message()).c_str());
    return 1;
  }
  const nlohmann::json line = {{"spec", path}, {"set", changes}, {"validation_loss", *loss}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) { return milepost::bench::Main(argc, argv); }
