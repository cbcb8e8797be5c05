#include "client/cli/fit.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/plan/planner.h"

namespace milepost::client {
namespace {

// What could be changed so that it fits.
std::string Remedy(v1::JobSpec spec, int64_t available) {
  v1::BatchSpec* batch = spec.mutable_train()->mutable_batch();
  for (int64_t micro = batch->micro() - 1; micro >= 1; --micro) {
    if (batch->global() % (micro * spec.resources().ranks()) != 0) continue;
    batch->set_micro(micro);
    batch->clear_accumulation();
    NormalizeJobSpec(&spec);
    const auto plan = PlanOnHost(spec);
    if (!plan.ok() || plan->arena_bytes > available) continue;
    return absl::StrCat("train.batch.micro: ", micro, " with accumulation: ", batch->accumulation(),
                        " needs ", HumanBytes(plan->arena_bytes), " per rank and fits");
  }
  return "no smaller micro-batch fits either: shorten data.sequence_length, use more ranks on more "
         "hosts, or make the model smaller";
}

}  // namespace

int ThreadsPerRank(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int asked = spec.resources().threads_per_rank();
  return asked > 0 ? asked : std::max(1, cores / ranks);
}

absl::StatusOr<plan::StepPlan> PlanOnHost(const v1::JobSpec& spec) {
  return PlanOnHost(spec, ThreadsPerRank(spec));
}

absl::StatusOr<plan::StepPlan> PlanOnHost(const v1::JobSpec& spec, int threads) {
  MP_ASSIGN_OR_RETURN(const plan::PlanOptions options, plan::OptionsFromSpec(spec, threads));
  return plan::PlanTraining(spec, options);
}

int64_t HostBytesPerRank(int ranks) {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return physical / ranks;
}

absl::Status CheckFits(const v1::JobSpec& spec, const plan::StepPlan& plan, int64_t available) {
  if (plan.arena_bytes <= available) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("does not fit this host: ", HumanBytes(plan.arena_bytes), " per rank, ",
                   HumanBytes(available), " there for each of ", spec.resources().ranks(),
                   " ranks; ", Remedy(spec, available)));
}

}  // namespace milepost::client
