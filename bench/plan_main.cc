// How long plans of large models take, and how much memory planning needs: a 70B Llama on 512 ranks
// has to come back in under 2 s and 1 GiB. And how long the search for the fastest mesh takes, with
// what its choice rests on: under 5 s for that model, under 20 s for a 405B on 16,384 ranks. Prints
// a line for each.
//
//   build/release/bench/plan    # in the source folder
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/mesh_search.h"
#include "engine/plan/planner/planner.h"

namespace milepost {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

v1::JobSpec Llama70b(int stage, v1::Recompute recompute) {
  v1::JobSpec spec;
  v1::LlamaSpec* model = spec.mutable_model()->mutable_llama();
  model->set_layers(80);
  model->set_width(8192);
  model->set_heads(64);
  model->set_kv_heads(8);
  model->set_hidden(28672);
  model->set_context(8192);
  model->set_vocabulary(128256);
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(4);
  spec.mutable_train()->mutable_zero()->set_stage(stage);
  spec.mutable_train()->set_recompute(recompute);
  spec.mutable_resources()->set_ranks(512);
  NormalizeJobSpec(&spec);
  return spec;
}

int Run(int stage, v1::Recompute recompute) {
  const v1::JobSpec spec = Llama70b(stage, recompute);
  const double start = Seconds();
  const auto options = plan::OptionsFromSpec(spec, 1);
  if (!options.ok()) return 1;
  const auto plan = plan::PlanTraining(spec, *options);
  if (!plan.ok()) return 1;
  const double planned = Seconds();
  const plan::StepEstimate estimate = plan::EstimateStep(*plan, *plan::BuiltInProfile("h200"));
  const double estimated = Seconds();
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "llama 70B, 512 ranks, stage %d, recompute %-9s  %5zu ops  %6.1f GiB a rank  "
      "plan %.3f s  estimate %.3f s (%.2f s a step)  peak %ld MiB\n",
      stage, plan::Name(options->recompute), plan->train.ops.size(),
      static_cast<double>(plan->arena_bytes) / (1 << 30), planned - start, estimated - planned,
      estimate.seconds, usage.ru_maxrss >> 10);
  return 0;
}

int Search(const char* example) {
  auto spec = LoadJobSpec(example);
  if (!spec.ok()) return 1;
  NormalizeJobSpec(&*spec);
  const plan::DeviceProfile profile = *plan::BuiltInProfile(spec->resources().profile());
  const plan::RankPlace place = {.memory_bytes = plan::UsableBytes(profile),
                                 .memory_of = "an " + profile.name,
                                 .host_memory = false,
                                 .profile = profile};
  const double start = Seconds();
  plan::MeshSearch search(*spec, plan::WholeSpace(*spec, place), place);
  const auto best = search.Best(5);
  if (!best.ok() || best->empty()) return 1;
  const double found = Seconds();
  if (!search.RestsOn(best->front()).ok()) return 1;
  std::printf("%-28s %5zu settings  %4zu drafts  best five %.3f s  what they rest on %.3f s\n",
              example, search.candidates(), search.drafts(), found - start, Seconds() - found);
  return 0;
}

}  // namespace
}  // namespace milepost

int main() {
  int failures = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    for (auto recompute : {milepost::v1::RECOMPUTE_NONE, milepost::v1::RECOMPUTE_FULL}) {
      failures += milepost::Run(stage, recompute);
    }
  }
  for (const char* example : {"examples/llama3-70b.yaml", "examples/llama3-405b.yaml"}) {
    failures += milepost::Search(example);
  }
  return failures == 0 ? 0 : 1;
}
