// milepost plan
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/disk_needs.h"
#include "client/cli/fit.h"
#include "client/cli/format.h"
#include "client/cli/inputs.h"
#include "client/cli/job_arguments.h"
#include "client/cli/plan_json.h"
#include "client/cli/progress_view.h"
#include "common/exit_codes.h"
#include "common/regular_file.h"
#include "common/spec/parse.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/planning.h"
#include "engine/plan/printing/draw_schedule.h"
#include "engine/plan/printing/printer.h"

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
  const auto text = ReadRegularFile(device, kMaxProfileBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--device: ", text.status().message()));
  }
  return plan::ParseProfile(*text, device);
}

// CPU threads of a rank: those of the spec, or its part of the profile's machine, or of this one.
int ThreadsOn(const plan::DeviceProfile& profile, const v1::JobSpec& spec) {
  if (profile.threads == 0) return 1;
  if (profile.threads == 1 || spec.resources().threads_per_rank() > 0) return ThreadsPerRank(spec);
  const int there = profile.ranks_per_host > 0 ? profile.ranks_per_host : spec.resources().ranks();
  return std::max(1, profile.threads / there);
}

// A rank of this host, or one of `device`.
absl::StatusOr<plan::RankPlace> PlaceFor(const std::string& device, const v1::JobSpec& spec) {
  if (spec.has_script()) {
    return absl::InvalidArgumentError(
        "script: there is no plan of it: nobody knows what a program of your own needs");
  }
  MP_ASSIGN_OR_RETURN(plan::RankPlace place, PlaceOnHost(spec));
  if (device.empty()) return place;
  MP_ASSIGN_OR_RETURN(const plan::DeviceProfile profile, LoadDevice(device));
  place.threads = ThreadsOn(profile, spec);
  place.profile = plan::ForThreads(profile, place.threads);
  if (profile.memory_bytes != 0) SetDeviceMemory(profile, spec, &place);
  return place;
}

absl::StatusOr<plan::StepPlan> PlanFor(const v1::JobSpec& spec, const plan::RankPlace& place) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, place.threads));
  MP_ASSIGN_OR_RETURN(options, plan::AtLargestStage(spec, options, place.planning));
  return plan::PlanTraining(spec, options);
}

// Every stage's plan, for how long its passes take.
absl::Status DrawTo(const std::string& file, const v1::JobSpec& spec,
                    const plan::RankPlace& place) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, place.threads));
  if (options.pipeline == 1) {
    return absl::InvalidArgumentError(
        "--draw: there is no pipeline whose schedule could be drawn; give resources.mesh.pipeline");
  }
  std::vector<plan::PassTimes> times;
  for (options.stage = 0; options.stage < options.pipeline; ++options.stage) {
    MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, plan::DraftTraining(spec, options));
    times.push_back(plan::SecondsOfPasses(plan, place.profile));
  }
  const std::string title = absl::StrCat(spec.name(), " on ", place.profile.name);
  std::ofstream out(file);
  out << plan::DrawSchedule(plan::ShapeOf(options), times, title);
  out.close();
  if (out.good()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--draw: cannot write ", file));
}

}  // namespace

absl::StatusOr<std::string> PlanJsonOn(const v1::JobSpec& given, const std::string& device) {
  v1::JobSpec spec = given;
  NormalizeJobSpec(&spec);
  MP_RETURN_IF_ERROR(ValidateJobSpec(spec));
  if (absl::StrContains(device, '/') || absl::EndsWith(device, ".json")) {
    return absl::InvalidArgumentError("device: there is no such profile");
  }
  MP_ASSIGN_OR_RETURN(plan::RankPlace place, PlaceFor(device, spec));
  plan::Planning planning(plan::kLimitsOfRequest);
  place.planning = &planning;
  if (!device.empty()) {
    spec.mutable_resources()->set_device(place.host_memory ? v1::DEVICE_KIND_CPU
                                                           : v1::DEVICE_KIND_CUDA);
  }
  MP_ASSIGN_OR_RETURN(const plan::Resolved resolved, plan::ResolveAuto(spec, place));
  MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, PlanFor(resolved.spec, place));
  auto json = nlohmann::ordered_json::parse(
      plan::PlanJson(plan, {.place = place,
                            .estimate = plan::EstimateStep(plan, place.profile),
                            .device = place.profile.name,
                            .choices = resolved.choices,
                            .unit = absl::StrCat(SampleUnit(spec), "s"),
                            .schedule = false}));
  const absl::Status fits = plan::CheckFits(resolved.spec, plan, place);
  if (!fits.ok()) json["problem"] = std::string(fits.message());
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int PlanCommand(const GlobalOptions& global, const PlanOptions& options) {
  auto spec = LoadSpec({.path = options.spec, .base = std::nullopt, .overrides = options.set});
  if (!spec.ok()) return Fail(spec.status());
  if (options.ranks) {
    const absl::Status changed = ChangeRanks(*options.ranks, &*spec);
    if (!changed.ok()) return Fail(changed);
  }
  const auto place = PlaceFor(options.device, *spec);
  if (!place.ok()) return Fail(place.status());
  if (!options.device.empty()) {  // what ops need beside their results is the device's
    spec->mutable_resources()->set_device(place->host_memory ? v1::DEVICE_KIND_CPU
                                                             : v1::DEVICE_KIND_CUDA);
  }
  const auto resolved = plan::ResolveAuto(*spec, *place);
  if (!resolved.ok()) return Fail(resolved.status());
  const auto plan = PlanFor(resolved->spec, *place);
  if (!plan.ok()) return Fail(plan.status());
  const plan::PrintOptions print = {.place = *place,
                                    .estimate = plan::EstimateStep(*plan, place->profile),
                                    .device = place->profile.name,
                                    .choices = resolved->choices,
                                    .unit = absl::StrCat(SampleUnit(*spec), "s"),
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
  if (!options.draw.empty()) {
    const absl::Status drawn = DrawTo(options.draw, resolved->spec, *place);
    if (!drawn.ok()) return Fail(drawn);
    Note(absl::StrCat("the schedule is drawn in ", options.draw));
  }
  const absl::Status fits = plan::CheckFits(resolved->spec, *plan, *place);
  if (!fits.ok()) return Fail(fits);
  std::vector<std::string> elsewhere;
  const absl::Status readable = CheckReadsHere(resolved->spec, &elsewhere);
  if (!readable.ok()) return Fail(readable);
  const absl::Status writable = CheckStateFolderHere(resolved->spec, &elsewhere);
  if (!writable.ok()) return Fail(writable);
  if (!elsewhere.empty()) Note(TellElsewhere(elsewhere));
  const std::string faster = TellFasterPrecision(
      resolved->spec, *place, options.device.empty() ? "this host" : place->profile.name);
  if (!faster.empty()) Hint(faster);
  std::string flags;
  for (const std::string& one : options.set) absl::StrAppend(&flags, " --set ", ShellWord(one));
  if (options.device.empty() && place->host_memory) {
    Hint(
        "times are those of a built-in profile; of this machine: milepost bench device --out "
        "this.json, then --device this.json");
  }
  if (options.spec != "-") Hint(absl::StrCat("milepost run ", ShellWord(options.spec), flags));
  return kExitOk;
}

}  // namespace milepost::client
