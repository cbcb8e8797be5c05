// milepost plan
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/fit.h"
#include "client/cli/format.h"
#include "common/exit_codes.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/plan/device_profile.h"
#include "engine/plan/estimate.h"
#include "engine/plan/planner.h"
#include "engine/plan/printer.h"

namespace milepost::client {
namespace {

constexpr size_t kMaxProfileBytes = 64 << 10;

// The spec for another number of ranks: the same global batch, by other accumulation.
absl::Status ChangeRanks(int ranks, v1::JobSpec* spec) {
  spec->mutable_resources()->set_ranks(ranks);
  spec->mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(spec);
  return Annotate(ValidateJobSpec(*spec), absl::StrCat("with --ranks ", ranks));
}

// A file when it looks like one, a built-in profile otherwise.
absl::StatusOr<plan::DeviceProfile> LoadDevice(const std::string& device) {
  if (!absl::StrContains(device, '/') && !absl::EndsWith(device, ".json")) {
    auto profile = plan::BuiltInProfile(device);
    if (!profile.ok()) return Annotate(profile.status(), "--device");
    return profile;
  }
  std::ifstream file(device, std::ios::binary);
  std::string text(kMaxProfileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--device: cannot read ", device));
  }
  return plan::ParseProfile(text, device);
}

// CPU threads of a rank: those of the spec, or its part of the profile's machine, or of this one.
int ThreadsOn(const plan::DeviceProfile& profile, const v1::JobSpec& spec) {
  if (profile.threads == 0) return 1;
  if (profile.threads == 1 || spec.resources().threads_per_rank() > 0) return ThreadsPerRank(spec);
  const int there = profile.ranks_per_host > 0 ? profile.ranks_per_host : spec.resources().ranks();
  return std::max(1, profile.threads / there);
}

}  // namespace

int PlanCommand(const GlobalOptions& global, const PlanOptions& options) {
  auto spec = LoadJobSpec(options.spec);
  if (!spec.ok()) return Fail(spec.status());
  if (options.ranks) {
    const absl::Status changed = ChangeRanks(*options.ranks, &*spec);
    if (!changed.ok()) return Fail(changed);
  }
  const auto profile = LoadDevice(options.device.empty() ? "cpu" : options.device);
  if (!profile.ok()) return Fail(profile.status());
  const int threads = ThreadsOn(*profile, *spec);
  const auto plan = PlanOnHost(*spec, threads);
  if (!plan.ok()) return Fail(plan.status());
  const int64_t available = profile->memory_bytes > 0 ? plan::UsableBytes(*profile)
                                                      : HostBytesPerRank(spec->resources().ranks());
  const plan::PrintOptions print = {
      .available_bytes = available,
      .estimate = plan::EstimateStep(*plan, plan::ForThreads(*profile, threads)),
      .device = profile->name,
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
