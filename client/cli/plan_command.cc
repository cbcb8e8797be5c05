// milepost plan
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "common/exit_codes.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/plan/planner.h"
#include "engine/plan/printer.h"

namespace milepost::client {
namespace {

// The spec for another number of ranks: the same global batch, by other accumulation.
absl::Status ChangeRanks(int ranks, v1::JobSpec* spec) {
  spec->mutable_resources()->set_ranks(ranks);
  spec->mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(spec);
  return Annotate(ValidateJobSpec(*spec), absl::StrCat("with --ranks ", ranks));
}

absl::StatusOr<plan::StepPlan> PlanSpec(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  const int asked = spec.resources().threads_per_rank();
  const int threads = asked > 0 ? asked : std::max(1, cores / ranks);
  MP_ASSIGN_OR_RETURN(const plan::PlanOptions options, plan::OptionsFromSpec(spec, threads));
  return plan::PlanTraining(spec, options);
}

// What one of `ranks` ranks on this host may use.
int64_t AvailableBytes(int ranks) {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / ranks;
}

// The largest smaller micro-batch that fits, by more accumulation.
void SuggestFitting(v1::JobSpec spec, int64_t available) {
  v1::BatchSpec* batch = spec.mutable_train()->mutable_batch();
  for (int64_t micro = batch->micro() - 1; micro >= 1; --micro) {
    if (batch->global() % (micro * spec.resources().ranks()) != 0) continue;
    batch->set_micro(micro);
    batch->clear_accumulation();
    NormalizeJobSpec(&spec);
    const auto plan = PlanSpec(spec);
    if (!plan.ok() || plan->arena_bytes > available) continue;
    return Hint(absl::StrCat("train.batch.micro: ", micro,
                             " with accumulation: ", batch->accumulation(), " needs ",
                             HumanBytes(plan->arena_bytes), " per rank and fits"));
  }
  Hint(
      "no smaller micro-batch fits either: shorten data.sequence_length, use more ranks, or make "
      "the model smaller");
}

}  // namespace

int PlanCommand(const GlobalOptions& global, const PlanOptions& options) {
  auto spec = LoadJobSpec(options.spec);
  if (!spec.ok()) return Fail(spec.status());
  if (options.ranks) {
    const absl::Status changed = ChangeRanks(*options.ranks, &*spec);
    if (!changed.ok()) return Fail(changed);
  }
  const auto plan = PlanSpec(*spec);
  if (!plan.ok()) return Fail(plan.status());
  const int64_t available = AvailableBytes(spec->resources().ranks());
  const plan::PrintOptions print = {.available_bytes = available,
                                    .schedule = global.output == OutputFormat::kWide};
  switch (global.output) {
    case OutputFormat::kJson:
      Print(plan::PlanJson(*plan, print) + "\n");
      break;
    case OutputFormat::kYaml:
      Print(JsonToYaml(nlohmann::ordered_json::parse(plan::PlanJson(*plan, print))));
      break;
    default:
      Print(plan::PlanTable(*plan, print));
  }
  if (plan->arena_bytes > available) {
    Note(absl::StrCat("does not fit this host: ", HumanBytes(plan->arena_bytes), " per rank, ",
                      HumanBytes(available), " there for each of ", spec->resources().ranks(),
                      " ranks"));
    SuggestFitting(*spec, available);
  } else {
    Hint(absl::StrCat("milepost run ", options.spec));
  }
  return kExitOk;
}

}  // namespace milepost::client
