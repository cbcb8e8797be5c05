// milepost plan
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/fit.h"
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

}  // namespace

int PlanCommand(const GlobalOptions& global, const PlanOptions& options) {
  auto spec = LoadJobSpec(options.spec);
  if (!spec.ok()) return Fail(spec.status());
  if (options.ranks) {
    const absl::Status changed = ChangeRanks(*options.ranks, &*spec);
    if (!changed.ok()) return Fail(changed);
  }
  const auto plan = PlanOnHost(*spec);
  if (!plan.ok()) return Fail(plan.status());
  const int64_t available = HostBytesPerRank(spec->resources().ranks());
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
  if (const absl::Status fits = CheckFits(*spec, *plan, available); !fits.ok()) {
    return Fail(fits);
  }
  Hint(absl::StrCat("milepost run ", options.spec));
  return kExitOk;
}

}  // namespace milepost::client
