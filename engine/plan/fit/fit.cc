#include "engine/plan/fit/fit.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/spec/auto_fields.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"
#include "engine/plan/fit/mesh_choice.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/fit/stage_drafts.h"
#include "engine/plan/human_units.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

constexpr double kSameSpeed = 1.01;
constexpr int64_t kMostSequencesAtOnce = 4096;  // of a micro-batch that `auto` looks at
constexpr size_t kMostRows = 6;

std::string GiB(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

// What `auto` chooses among, the preferred values first where several are as fast. Stage 1 sends no
// more than stage 0 and keeps less.
SettingSpace AutoSpace(const v1::JobSpec& spec) {
  const Setting given = SettingOf(spec);
  SettingSpace space = {{given.micro}, {given.stage}, {given.recompute}, {given.offload}};
  if (MicroIsAuto(spec)) space.micros = MicrosUpTo(spec, kMostSequencesAtOnce);
  // Gradients in bf16 are of one micro-step, which has all sequences.
  const bool rounds = spec.train().grad_dtype() == v1::GRAD_DTYPE_BF16;
  if (rounds && MicroIsAuto(spec)) space.micros = {given.micro * given.accumulation};
  if (StageIsAuto(spec)) {
    space.stages = {1, 0, 2, 3};
    if (StateRanks(spec.resources()) == Islands(spec)) space.stages = {1};  // all the same
  }
  if (RecomputeIsAuto(spec)) {
    space.recomputes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  }
  return space;
}

class Chooser {
 public:
  Chooser(const v1::JobSpec& spec, const RankPlace& place)
      : spec_(spec), place_(place), space_(AutoSpace(spec)) {}

  // nullopt: nothing fits; Refusal() says so.
  absl::StatusOr<std::optional<Resolved>> Resolve() {
    if (space_.micros.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.batch.micro: auto: no micro-batch of at most ", kMostSequencesAtOnce,
                       " divides what a rank ", "has of train.batch.global (",
                       spec_.train().batch().global(), ")",
                       PipelineStages(spec_.resources()) > 1
                           ? absl::StrCat(" into at most ", kMaxMicroBatches, " for a pipeline")
                           : "",
                       ": take another train.batch.global, or more ranks"));
    }
    MP_ASSIGN_OR_RETURN(settings_, Search(spec_, space_, place_));
    // By the least bytes a setting may seem to fit that does not quite: then the next one.
    while (!settings_.empty()) {
      MP_ASSIGN_OR_RETURN(Setting chosen, Preferred());
      MP_RETURN_IF_ERROR(Assess(spec_, place_, /*exact=*/true, &chosen));
      if (Fits(chosen, place_)) return Explained(chosen);
      MP_RETURN_IF_ERROR(NextSmaller(chosen));
    }
    return std::nullopt;
  }

  absl::Status Refusal() const {
    Setting least = SettingOf(spec_);
    least.micro = space_.micros.front();
    least.accumulation = SettingOf(spec_).micro * SettingOf(spec_).accumulation / least.micro;
    least.stage = space_.stages.back();
    least.recompute = space_.recomputes.back();
    MP_RETURN_IF_ERROR(Assess(spec_, place_, /*exact=*/true, &least));
    return absl::InvalidArgumentError(absl::StrCat(
        "does not fit whatever is chosen for the fields that are auto: a rank needs ",
        GiB(least.bytes), " even with train.batch.micro: ", least.micro,
        ", train.zero.stage: ", least.stage, " and train.recompute: ", Name(least.recompute),
        ", and ", place_.memory_of, " has ", GiB(place_.memory_bytes),
        "; shorten data.sequence_length, use more ranks, or make the model smaller"));
  }

 private:
  double Fastest() const {
    double fastest = settings_[0].seconds;
    for (const Setting& setting : settings_) fastest = std::min(fastest, setting.seconds);
    return fastest;
  }

  // The first in order of preference of those that are as good as the fastest, with the smallest
  // micro-batch that is so too.
  absl::StatusOr<Setting> Preferred() const {
    const double limit = kSameSpeed * Fastest();
    const auto rank = [&](const Setting& s) {
      const auto stage = std::find(space_.stages.begin(), space_.stages.end(), s.stage);
      return std::tuple(s.recompute, stage - space_.stages.begin());
    };
    const Setting* best = nullptr;
    for (const Setting& setting : settings_) {
      if (setting.seconds > limit) continue;
      if (best == nullptr || rank(setting) < rank(*best)) best = &setting;
    }
    return Smallest(*best, limit);
  }

  absl::StatusOr<Setting> Smallest(const Setting& largest, double limit) const {
    Setting found = largest;
    size_t low = 0;
    size_t high = IndexOf(largest.micro);
    while (low < high) {
      const size_t middle = (low + high) / 2;
      Setting setting = WithMicro(largest, space_.micros[middle]);
      MP_RETURN_IF_ERROR(Assess(spec_, place_, /*exact=*/false, &setting));
      if (setting.seconds <= limit) {
        found = setting;
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return found;
  }

  // Replaces the setting of `failed`'s stage and recomputation by one of a smaller micro-batch.
  absl::Status NextSmaller(const Setting& failed) {
    const auto same = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) {
      return s.stage == failed.stage && s.recompute == failed.recompute;
    });
    const size_t index = IndexOf(failed.micro);
    if (index == 0) {
      settings_.erase(same);
      return absl::OkStatus();
    }
    *same = WithMicro(failed, space_.micros[index - 1]);
    return Assess(spec_, place_, /*exact=*/false, &*same);
  }

  size_t IndexOf(int64_t micro) const {
    return static_cast<size_t>(std::find(space_.micros.begin(), space_.micros.end(), micro) -
                               space_.micros.begin());
  }

  static Setting WithMicro(Setting setting, int64_t micro) {
    setting.accumulation = setting.micro * setting.accumulation / micro;
    setting.micro = micro;
    return setting;
  }

  absl::StatusOr<std::optional<Resolved>> Explained(const Setting& chosen) const {
    Resolved resolved = {.spec = WithSetting(spec_, chosen)};
    const auto add = [&](absl::string_view field, const auto& value, const std::string& reason) {
      v1::Choice& choice = resolved.choices.emplace_back();
      choice.set_field(std::string(field));
      choice.set_value(absl::StrCat(value));
      choice.set_reason(reason);
    };
    if (MicroIsAuto(spec_)) {
      MP_ASSIGN_OR_RETURN(const std::string reason, WhyMicro(chosen));
      add("train.batch.micro", chosen.micro, reason);
    }
    if (StageIsAuto(spec_)) add("train.zero.stage", chosen.stage, WhyStage(chosen));
    if (RecomputeIsAuto(spec_)) {
      add("train.recompute", Name(chosen.recompute), WhyRecompute(chosen));
    }
    if (resolved.choices.empty()) return resolved;
    v1::Choice& first = resolved.choices.front();
    first.set_reason(absl::StrCat(first.reason(), "; expected ", HumanSeconds(chosen.seconds),
                                  " a step, ", GiB(chosen.bytes), " of the ",
                                  GiB(place_.memory_bytes), " of ", place_.memory_of));
    return resolved;
  }

  absl::StatusOr<std::string> WhyMicro(const Setting& chosen) const {
    const size_t next = IndexOf(chosen.micro) + 1;
    if (next >= space_.micros.size()) return "all sequences of a rank at once";
    Setting larger = WithMicro(chosen, space_.micros[next]);
    if (!Assess(spec_, place_, /*exact=*/false, &larger).ok() || !Fits(larger, place_)) {
      return absl::StrCat(larger.micro, " does not fit");
    }
    return absl::StrCat("more is faster by less than 1%");
  }

  // "2 does not fit, 3 takes 1.12 times as long".
  template <typename Value, typename Get, typename Text>
  std::string Others(const std::vector<Value>& values, const Setting& chosen, const Get& get,
                     const Text& text) const {
    std::vector<std::string> parts;
    for (const Value& value : values) {
      if (value == get(chosen)) continue;
      std::optional<double> least;
      for (const Setting& setting : settings_) {
        if (get(setting) != value) continue;
        least = std::min(least.value_or(setting.seconds), setting.seconds);
      }
      const double times = least.value_or(0) / chosen.seconds;
      parts.push_back(!least ? absl::StrCat(text(value), " does not fit")
                      : times < kSameSpeed
                          ? absl::StrCat(text(value), " is no faster")
                          : absl::StrFormat("%s takes %.2f times as long", text(value), times));
    }
    return parts.empty() ? "no ranks to share it out among" : absl::StrJoin(parts, ", ");
  }

  std::string WhyStage(const Setting& chosen) const {
    return Others(
        space_.stages, chosen, [](const Setting& s) { return s.stage; },
        [](int stage) { return absl::StrCat(stage); });
  }

  std::string WhyRecompute(const Setting& chosen) const {
    return Others(
        space_.recomputes, chosen, [](const Setting& s) { return s.recompute; },
        [](Recompute recompute) { return std::string(Name(recompute)); });
  }

  const v1::JobSpec& spec_;
  const RankPlace& place_;
  const SettingSpace space_;
  std::vector<Setting> settings_;
};

// What could be changed about a job that does not fit: less of what it asks for, never more.
SettingSpace SmallerSpace(const v1::JobSpec& spec, const RankPlace& place) {
  const Setting given = SettingOf(spec);
  SettingSpace space = {MicrosUpTo(spec, given.micro), {}, {given.recompute}, {given.offload}};
  const v1::OptimizerSpec::Type optimizer = spec.train().optimizer().type();
  const bool in_memory = spec.train().has_powersgd() || spec.train().has_sync();
  const bool can_offload = optimizer != v1::OptimizerSpec::TYPE_LAMB &&
                           optimizer != v1::OptimizerSpec::TYPE_MUON && !place.host_memory &&
                           TensorRanks(spec.resources()) == 1 && !in_memory &&
                           spec.train().offload().optimizer() == v1::OFFLOAD_TARGET_NONE;
  if (can_offload) space.offloads.push_back(true);
  if (given.offload && place.host_bytes > 0) space.offloads.push_back(false);
  if (space.micros.empty()) space.micros = {given.micro};
  const bool stays = StateRanks(spec.resources()) == Islands(spec) || spec.train().has_powersgd();
  const int last = stays ? given.stage : 3;
  for (int stage = given.stage; stage <= last; ++stage) space.stages.push_back(stage);
  if (given.recompute == Recompute::kNone) space.recomputes.push_back(Recompute::kSelective);
  if (given.recompute != Recompute::kFull) space.recomputes.push_back(Recompute::kFull);
  return space;
}

int Changes(const Setting& given, const Setting& other) {
  return (given.micro != other.micro) + (given.stage != other.stage) +
         (given.recompute != other.recompute) + (given.offload != other.offload);
}

// Those that fit, the least changed first, then the fastest.
absl::StatusOr<std::vector<Setting>> Nearest(const v1::JobSpec& spec, const RankPlace& place) {
  const Setting given = SettingOf(spec);
  MP_ASSIGN_OR_RETURN(std::vector<Setting> settings,
                      Search(spec, SmallerSpace(spec, place), place));
  const auto key = [&](const Setting& s) {
    return std::tuple(Changes(given, s), s.seconds, s.bytes);
  };
  std::stable_sort(settings.begin(), settings.end(),
                   [&](const Setting& a, const Setting& b) { return key(a) < key(b); });
  std::vector<Setting> nearest;
  for (Setting& setting : settings) {
    if (nearest.size() == kMostRows) break;
    MP_RETURN_IF_ERROR(Assess(spec, place, /*exact=*/true, &setting));
    if (Changes(given, setting) > 0 && Fits(setting, place)) {
      nearest.push_back(setting);
    }
  }
  return nearest;
}

std::string Rows(const v1::JobSpec& spec, const std::vector<Setting>& settings) {
  const Setting given = SettingOf(spec);
  size_t width = 0;
  for (const Setting& setting : settings) {
    width = std::max(width, Difference(given, setting).size());
  }
  std::string text;
  for (const Setting& setting : settings) {
    absl::StrAppendFormat(&text, "\n  %-*s  %10s  %s a step", static_cast<int>(width),
                          Difference(given, setting), GiB(setting.bytes),
                          HumanSeconds(setting.seconds));
  }
  return text;
}

struct StorageField {
  const char* field;
  std::string value;
};

// What train.memory: low has changed.
std::vector<StorageField> StorageChanges(const v1::JobSpec& from, const v1::JobSpec& to) {
  const v1::OptimizerSpec& before = from.train().optimizer();
  const v1::OptimizerSpec& after = to.train().optimizer();
  std::vector<StorageField> changes;
  if (before.type() != after.type()) changes.push_back({"train.optimizer.type", "adamw_8bit"});
  const bool bf16 = after.state_dtype() == v1::STATE_DTYPE_BF16;
  if (before.state_dtype() != after.state_dtype() && bf16) {
    changes.push_back({"train.optimizer.state_dtype", "bf16"});
  }
  if (before.master() != after.master()) changes.push_back({"train.optimizer.master", "none"});
  if (from.train().grad_dtype() != to.train().grad_dtype()) {
    changes.push_back({"train.grad_dtype", "bf16"});
  }
  return changes;
}

// "train.optimizer.type: adamw_8bit and train.optimizer.master: none"; "what is given".
std::string StorageDifference(const v1::JobSpec& from, const v1::JobSpec& to) {
  std::vector<std::string> parts;
  for (const StorageField& change : StorageChanges(from, to)) {
    parts.push_back(absl::StrCat(change.field, ": ", change.value));
  }
  return parts.empty() ? "what is given" : absl::StrJoin(parts, " and ");
}

// `tried`: what does less harm, and does not fit.
void AddStorageChoices(const v1::JobSpec& spec, const std::vector<std::string>& tried,
                       Resolved* resolved) {
  const auto add = [&](absl::string_view field, absl::string_view value,
                       const std::string& reason) {
    v1::Choice& choice = resolved->choices.emplace_back();
    choice.set_field(std::string(field));
    choice.set_value(std::string(value));
    choice.set_reason(reason);
  };
  const std::vector<StorageField> changes = StorageChanges(spec, resolved->spec);
  if (changes.empty()) return add("train.memory", "exact", "it fits with what is given");
  for (const StorageField& change : changes) {
    add(change.field, change.value,
        absl::StrCat("train.memory: low; does not fit with ", absl::StrJoin(tried, ", nor with ")));
  }
}

}  // namespace

absl::StatusOr<DeviceProfile> ProfileOf(const v1::JobSpec& spec, int threads) {
  const bool gpu = spec.resources().device() == v1::DEVICE_KIND_CUDA;
  const std::string& name = spec.resources().profile();
  auto profile = BuiltInProfile(!name.empty() ? name : gpu ? "h200" : "cpu");
  if (!profile.ok()) return Annotate(profile.status(), "resources.profile");
  return ForThreads(*std::move(profile), threads);
}

absl::StatusOr<Resolved> ResolveAuto(const v1::JobSpec& spec, const RankPlace& place) {
  if (!HasAutoFields(spec)) return Resolved{.spec = spec};
  if (place.memory_bytes <= 0) {
    const char* field = TensorIsAuto(spec)      ? "resources.mesh.tensor: auto"
                        : MicroIsAuto(spec)     ? "train.batch.micro: auto"
                        : StageIsAuto(spec)     ? "train.zero.stage: auto"
                        : RecomputeIsAuto(spec) ? "train.recompute: auto"
                                                : "train.memory: low";
    return absl::InvalidArgumentError(
        absl::StrCat(field,
                     " needs to know the memory of a rank: give resources.memory, or start the "
                     "workers before the job is submitted"));
  }
  if (TensorIsAuto(spec)) return ResolveMesh(spec, place);
  const std::vector<v1::JobSpec> storages =
      MemoryIsLow(spec) ? StoragesOf(spec) : std::vector<v1::JobSpec>{spec};
  std::vector<std::string> tried;
  for (const v1::JobSpec& storage : storages) {
    Chooser chooser(storage, place);
    MP_ASSIGN_OR_RETURN(std::optional<Resolved> resolved, chooser.Resolve());
    if (resolved.has_value()) {
      if (MemoryIsLow(spec)) AddStorageChoices(spec, tried, &*resolved);
      return *std::move(resolved);
    }
    tried.push_back(StorageDifference(spec, storage));
    if (&storage != &storages.back()) continue;
    if (!MemoryIsLow(spec)) return chooser.Refusal();
    return Annotate(chooser.Refusal(), absl::StrCat("train.memory: low, with ", tried.back()));
  }
  return absl::InternalError("there is no storage to choose");
}

namespace {

absl::Status HostIsTooSmall(const v1::JobSpec& spec, const StepPlan& plan, const RankPlace& place) {
  const std::string text = absl::StrCat(
      "does not fit: a rank needs ", GiB(HostBytes(plan)), " of host memory (",
      GiB(HostBytes(plan) - plan.host_arena_bytes),
      " of it while it starts or saves a checkpoint), and has ", GiB(place.host_bytes));
  std::vector<Setting> nearest;
  if (place.memory_bytes > 0) {
    MP_ASSIGN_OR_RETURN(nearest, Nearest(spec, place));
  }
  if (!nearest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, "; what fits, bytes of a rank and expected time:", Rows(spec, nearest)));
  }
  if (TensorRanks(spec.resources()) > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        text, "; use more ranks with hosts of their own at train.zero.stage 1 or above"));
  }
  const bool to_disk = spec.train().offload().optimizer() == v1::OFFLOAD_TARGET_HOST;
  return absl::InvalidArgumentError(absl::StrCat(
      text, "; use more ranks with hosts of their own at train.zero.stage 1 or above, or offload ",
      to_disk ? "to a disk (train.offload.optimizer: nvme)" : "less (train.offload)"));
}

bool CanBePacked(const v1::JobSpec& spec) {
  return spec.model().has_lora() &&
         spec.model().lora().quantize_base() != v1::BASE_QUANTIZATION_NF4 &&
         spec.train().precision() != v1::PRECISION_FP8;
}

// "keep what adapters adapt in 4 bits (...), "; empty: they do, or it would not fit either, as far
// as that can be told.
std::string In4Bits(const v1::JobSpec& spec, const RankPlace& place) {
  if (!CanBePacked(spec)) return "";
  v1::JobSpec packed = spec;
  packed.mutable_model()->mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
  Setting setting = SettingOf(packed);
  const Setting given = setting;
  if (!Assess(packed, place, /*exact=*/true, &setting).ok()) return "";
  if (!Fits(setting, place)) {
    const auto nearest = Nearest(packed, place);
    if (!nearest.ok() || nearest->empty()) return "";
    setting = nearest->front();
  }
  const std::string with = Difference(given, setting);
  return absl::StrCat("keep what adapters adapt in 4 bits (model.lora.quantize_base: nf4, ",
                      with.empty() ? "" : absl::StrCat("with ", with, ", "), "needs ",
                      GiB(setting.bytes), "), ");
}

}  // namespace

absl::Status CheckFits(const v1::JobSpec& spec, const StepPlan& plan, const RankPlace& place) {
  if (!place.host_memory && place.host_bytes > 0 && HostBytes(plan) > place.host_bytes) {
    return HostIsTooSmall(spec, plan, place);
  }
  const int64_t needed = RequiredBytes(plan, plan.arena_bytes, place.host_memory);
  if (place.memory_bytes <= 0 || needed <= place.memory_bytes) return absl::OkStatus();
  const std::string copy = place.host_memory
                               ? absl::StrCat(" (", GiB(needed - plan.arena_bytes),
                                              " of it while it starts or saves a checkpoint)")
                               : "";
  // Where rounding hides the difference it is told in bytes.
  const bool close = GiB(needed) == GiB(place.memory_bytes);
  const auto shown = [&](int64_t bytes) {
    return close ? absl::StrCat(bytes, " bytes") : GiB(bytes);
  };
  std::string text = absl::StrCat("does not fit: a rank needs ", shown(needed), copy, ", and ",
                                  place.memory_of, " has ", shown(place.memory_bytes));
  MP_ASSIGN_OR_RETURN(const std::vector<Setting> nearest, Nearest(spec, place));
  if (nearest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(text,
                     "; no micro-batch, stage or recomputation makes it fit: shorten "
                     "data.sequence_length, use more ranks with memory of their own, ",
                     TensorRanks(spec.resources()) > 1    ? "a larger resources.mesh.tensor, "
                     : ContextRanks(spec.resources()) > 1 ? "a larger resources.mesh.context, "
                     : StoragesOf(spec).size() > 1        ? "let train.memory be low, "
                                                          : "",
                     In4Bits(spec, place), "or make the model smaller"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(text, "; what fits, bytes of a rank and expected time:", Rows(spec, nearest)));
}

absl::StatusOr<FittingPlan> PlanThatFits(const v1::JobSpec& spec, const RankPlace& place) {
  MP_ASSIGN_OR_RETURN(Resolved resolved, ResolveAuto(spec, place));
  MP_ASSIGN_OR_RETURN(PlanOptions options, OptionsFromSpec(resolved.spec, place.threads));
  MP_ASSIGN_OR_RETURN(options, AtLargestStage(resolved.spec, options, place.planning));
  FittingPlan fitting = {.spec = std::move(resolved.spec), .choices = std::move(resolved.choices)};
  MP_ASSIGN_OR_RETURN(fitting.plan, PlanTraining(fitting.spec, options, place.planning));
  MP_RETURN_IF_ERROR(CheckFits(fitting.spec, fitting.plan, place));
  return fitting;
}

}  // namespace milepost::plan
