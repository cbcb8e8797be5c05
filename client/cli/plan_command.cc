// milepost plan
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

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
#include "common/spec/auto_fields.h"
#include "common/spec/parse.h"
#include "common/spec/sizes.h"
#include "common/spec/to_yaml.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/fit/mesh_search.h"
#include "engine/plan/fit/stage_drafts.h"
#include "engine/plan/human_units.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/planning.h"
#include "engine/plan/printing/draw_schedule.h"
#include "engine/plan/printing/printer.h"
#include "engine/plan/printing/search_printer.h"

namespace milepost::client {
namespace {

constexpr size_t kMaxProfileBytes = 64 << 10;

// The spec for another number of ranks: the same global batch, by other accumulation.
absl::Status ChangeRanks(int ranks, v1::JobSpec* spec) {
  spec->mutable_resources()->set_ranks(ranks);
  v1::BatchSpec* batch = spec->mutable_train()->mutable_batch();
  batch->clear_accumulation();
  NormalizeJobSpec(spec);
  // As an elastic job has them at that size.
  if (batch->has_side_by_side()) {
    batch->set_side_by_side(
        static_cast<int>(std::gcd(batch->accumulation(), int64_t{batch->side_by_side()})));
    NormalizeJobSpec(spec);
  }
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

// What --hosts and --network say of the place.
absl::Status SetHosts(const PlanOptions& options, const v1::JobSpec& spec, plan::RankPlace* place) {
  int ranks_per_host = 0;
  if (options.hosts) {
    const int ranks = spec.resources().ranks();
    if (ranks % *options.hosts != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--hosts: ", *options.hosts, " do not share out ", ranks, " ranks evenly"));
    }
    ranks_per_host = ranks / *options.hosts;
    if (place->host_memory && spec.resources().memory() <= 0) {
      place->memory_bytes = HostBytesPerRank(ranks_per_host);
      place->memory_of = absl::StrCat("a host like this one over ", ranks_per_host, " ranks");
    }
  }
  place->profile = plan::OnHosts(std::move(place->profile), ranks_per_host, options.network);
  return absl::OkStatus();
}

// Whether the rest of an open spec is valid. Where its batch is too small for so many data ranks,
// context ranks may be what helps: then with as many as may be.
absl::Status ValidateOpen(v1::JobSpec spec) {
  const absl::Status status = ValidateJobSpec(spec);
  const std::vector<int> contexts = PossibleContexts(spec);
  if (status.ok() || TensorIsAuto(spec) || contexts.size() == 1) return status;
  spec.mutable_resources()->mutable_mesh()->set_context(contexts.back());
  NormalizeJobSpec(&spec);
  return ValidateJobSpec(spec).ok() ? absl::OkStatus() : status;
}

// The spec with all that a search chooses left open.
absl::StatusOr<v1::JobSpec> OpenSpec(v1::JobSpec spec, const PlanOptions& options) {
  if (MemoryIsLow(spec)) {
    return absl::InvalidArgumentError(
        "train.memory: low is not for --search, which does not change what is stored; take exact");
  }
  if (spec.train().has_powersgd()) {
    return absl::InvalidArgumentError(
        "train.powersgd is not for --search, whose meshes and ZeRO stages it does not work with; "
        "remove it");
  }
  if (spec.train().has_sync()) {
    return absl::InvalidArgumentError(
        "train.sync is not for --search, which knows no islands: search for the mesh of one island "
        "without it, with --ranks for the ranks of that");
  }
  if (options.ranks) spec.mutable_resources()->set_ranks(*options.ranks);
  spec.mutable_resources()->clear_mesh();
  v1::TrainSpec* train = spec.mutable_train();
  train->mutable_batch()->set_micro(kAuto);
  train->mutable_batch()->clear_accumulation();
  train->mutable_batch()->clear_side_by_side();
  train->mutable_zero()->set_stage(kAuto);
  train->mutable_zero()->set_group(0);
  train->set_recompute(v1::RECOMPUTE_AUTO);
  train->clear_recompute_budget();
  if (train->offload().optimizer() == v1::OFFLOAD_TARGET_HOST) {
    train->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NONE);
  }
  if (PossibleTensors(spec).size() > 1) {
    spec.mutable_resources()->mutable_mesh()->set_tensor(kAuto);
  }
  NormalizeJobSpec(&spec);
  MP_RETURN_IF_ERROR(Annotate(ValidateOpen(spec), "with what --search chooses left open"));
  return spec;
}

constexpr size_t kShown = 5;

absl::StatusOr<plan::SearchResult> SearchFor(const v1::JobSpec& spec,
                                             const plan::RankPlace& place) {
  plan::MeshSearch search(spec, plan::WholeSpace(spec, place), place);
  plan::SearchResult result = {.ranks = spec.resources().ranks(),
                               .place = place,
                               .candidates = search.candidates(),
                               .unit = absl::StrCat(SampleUnit(spec), "s")};
  MP_ASSIGN_OR_RETURN(result.best, search.Best(kShown));
  if (result.best.empty()) {
    MP_ASSIGN_OR_RETURN(const std::optional<plan::Setting> least, search.Smallest());
    if (!least.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.batch.global (", spec.train().batch().global(),
                       ") cannot be shared out among ", result.ranks, " ranks, whatever the mesh",
                       place.host_memory ? "" : " with context ranks that divide the heads",
                       ": use fewer ranks or a larger batch"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "nothing fits: a rank needs ", plan::HumanBytes(static_cast<double>(least->bytes)),
        " even with ", plan::MeshText(result.ranks, *least), " ranks, and ", place.memory_of,
        " has ", plan::HumanBytes(static_cast<double>(place.memory_bytes)),
        "; use more ranks, shorten data.sequence_length, or make the model smaller"));
  }
  MP_ASSIGN_OR_RETURN(result.rests_on, search.RestsOn(result.best.front()));
  result.drafts = search.drafts();
  return result;
}

absl::StatusOr<plan::SearchResult> SearchOn(const v1::JobSpec& given, const PlanOptions& options) {
  MP_ASSIGN_OR_RETURN(v1::JobSpec spec, OpenSpec(given, options));
  MP_ASSIGN_OR_RETURN(plan::RankPlace place, PlaceFor(options.device, spec));
  MP_RETURN_IF_ERROR(SetHosts(options, spec, &place));
  if (!options.device.empty()) {
    spec.mutable_resources()->set_device(place.host_memory ? v1::DEVICE_KIND_CPU
                                                           : v1::DEVICE_KIND_CUDA);
  }
  MP_ASSIGN_OR_RETURN(plan::SearchResult result, SearchFor(spec, place));
  result.had_pipeline = given.resources().mesh().has_pipeline();
  result.had_context = given.resources().mesh().has_context();
  result.had_expert = given.resources().mesh().has_expert();
  result.had_side_by_side = given.train().batch().has_side_by_side();
  return result;
}

int SearchCommand(const GlobalOptions& global, const v1::JobSpec& spec,
                  const PlanOptions& options) {
  const auto result = SearchOn(spec, options);
  if (!result.ok()) return Fail(result.status());
  switch (global.output) {
    case OutputFormat::kJson:
      Print(plan::SearchJson(*result) + "\n");
      break;
    case OutputFormat::kYaml:
      Print(JsonToYaml(nlohmann::ordered_json::parse(plan::SearchJson(*result))));
      break;
    default:
      Print(plan::SearchTable(*result));
  }
  std::string flags;
  for (const std::string& one : options.set) absl::StrAppend(&flags, " --set ", ShellWord(one));
  for (const std::string& one : plan::OverridesFor(*result)) {
    absl::StrAppend(&flags, " --set ", ShellWord(one));
  }
  if (options.spec != "-") Hint(absl::StrCat("milepost run ", ShellWord(options.spec), flags));
  return kExitOk;
}

struct Planned {
  plan::StepPlan plan;  // of a pipeline's stage that needs the most memory
  plan::StepEstimate estimate;
};

absl::StatusOr<Planned> PlanFor(const v1::JobSpec& spec, const plan::RankPlace& place) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, place.threads));
  plan::PipelineDraft stages;
  if (options.pipeline > 1) {
    MP_ASSIGN_OR_RETURN(stages, plan::DraftPipeline(spec, options, place.planning));
    options.stage = stages.largest;
  }
  Planned planned;
  MP_ASSIGN_OR_RETURN(planned.plan, plan::PlanTraining(spec, options));
  planned.estimate = plan::EstimateStage(plan::CostsOf(planned.plan), place.profile,
                                         stages.Seconds(place.profile));
  return planned;
}

absl::Status DrawTo(const std::string& file, const v1::JobSpec& spec,
                    const plan::RankPlace& place) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, place.threads));
  if (options.pipeline == 1) {
    return absl::InvalidArgumentError(
        "--draw: there is no pipeline whose schedule could be drawn; give resources.mesh.pipeline");
  }
  MP_ASSIGN_OR_RETURN(const plan::PipelineDraft draft, plan::DraftPipeline(spec, options));
  const std::vector<plan::PassTimes> times = plan::TimesOfRuns(draft.Seconds(place.profile));
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
  MP_ASSIGN_OR_RETURN(const Planned planned, PlanFor(resolved.spec, place));
  const plan::StepPlan& plan = planned.plan;
  auto json = nlohmann::ordered_json::parse(
      plan::PlanJson(plan, {.place = place,
                            .estimate = planned.estimate,
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
  if (options.search) return SearchCommand(global, *spec, options);
  if (options.ranks) {
    const absl::Status changed = ChangeRanks(*options.ranks, &*spec);
    if (!changed.ok()) return Fail(changed);
  }
  auto place = PlaceFor(options.device, *spec);
  if (!place.ok()) return Fail(place.status());
  const absl::Status hosts = SetHosts(options, *spec, &*place);
  if (!hosts.ok()) return Fail(hosts);
  if (!options.device.empty()) {  // what ops need beside their results is the device's
    spec->mutable_resources()->set_device(place->host_memory ? v1::DEVICE_KIND_CPU
                                                             : v1::DEVICE_KIND_CUDA);
  }
  const auto resolved = plan::ResolveAuto(*spec, *place);
  if (!resolved.ok()) return Fail(resolved.status());
  const auto planned = PlanFor(resolved->spec, *place);
  if (!planned.ok()) return Fail(planned.status());
  const plan::StepPlan* const plan = &planned->plan;
  const plan::PrintOptions print = {.place = *place,
                                    .estimate = planned->estimate,
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
