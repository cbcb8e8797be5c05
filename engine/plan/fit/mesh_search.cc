#include "engine/plan/fit/mesh_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/plan/fit/mesh_bounds.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

constexpr double kAsFast = 1.01;
// Drafts need a little less than what is packed: some more are measured than are asked for.
constexpr size_t kSpare = 3;

struct Rate {
  const char* name;
  double DeviceProfile::*value;
};

constexpr Rate kRates[] = {{"memory_bandwidth", &DeviceProfile::memory_bandwidth},
                           {"host_bandwidth", &DeviceProfile::host_bandwidth},
                           {"network_bandwidth", &DeviceProfile::network_bandwidth},
                           {"host_device_bandwidth", &DeviceProfile::host_device_bandwidth},
                           {"host_memory_bandwidth", &DeviceProfile::host_memory_bandwidth},
                           {"op_seconds", &DeviceProfile::op_seconds},
                           {"collective_seconds", &DeviceProfile::collective_seconds}};
constexpr double kFactors[] = {0.5, 2};

// One rate of the profile at so many times what it is.
std::vector<std::pair<Sensitivity, DeviceProfile>> Varied(const DeviceProfile& profile) {
  std::vector<std::pair<Sensitivity, DeviceProfile>> varied;
  for (const double factor : kFactors) {
    auto& [rate, with] = varied.emplace_back(Sensitivity{"matmul", factor}, profile);
    for (auto& [dtype, product] : with.matmul) product.achieved *= factor;
  }
  for (const Rate& rate : kRates) {
    if (profile.*rate.value <= 0) continue;
    for (const double factor : kFactors) {
      auto& [sensitivity, with] = varied.emplace_back(Sensitivity{rate.name, factor}, profile);
      with.*rate.value *= factor;
    }
  }
  return varied;
}

}  // namespace

MeshSearch::MeshSearch(const v1::JobSpec& spec, MeshSpace space, const RankPlace& place)
    : spec_(spec),
      space_(std::move(space)),
      place_(place),
      candidates_(Candidates(spec, space_, place)),
      all_(candidates_.size()) {}

absl::StatusOr<const ScaledDraft*> MeshSearch::DraftOf(const Setting& setting) {
  const auto [found, added] = drafts_.try_emplace(KeyOf(setting));
  if (!added) return found->second.has_value() ? &*found->second : nullptr;
  auto draft = DraftScaled(WithSetting(spec_, setting), place_);
  if (absl::IsInvalidArgument(draft.status())) {  // a budget of activations that is too small
    if (refusal_.ok()) refusal_ = draft.status();
    return nullptr;
  }
  if (!draft.ok()) {
    drafts_.erase(found);
    return draft.status();
  }
  found->second = *std::move(draft);
  return &*found->second;
}

absl::StatusOr<const ScaledDraft*> MeshSearch::AlikeOf(const Setting& setting) {
  Setting alike = setting;
  alike.pipeline = alike.context = 1;
  alike.schedule = PipelineSchedule::kOneForwardOneBackward;
  alike.chunks = 1;
  // Of no more micro-batches than any of them has.
  alike.accumulation =
      std::max<int64_t>(1, setting.accumulation / (setting.pipeline * setting.context));
  const auto [found, added] = alike_.try_emplace(ComputeKeyOf(setting), KeyOf(alike));
  if (added) return DraftOf(alike);
  const auto& draft = drafts_.at(found->second);
  return draft.has_value() ? &*draft : nullptr;
}

PlanOptions MeshSearch::OptionsWith(const Setting& setting, const ScaledDraft& alike) const {
  PlanOptions options = alike.more.options;
  options.pipeline = setting.pipeline;
  options.context = setting.context;
  options.schedule = setting.schedule;
  options.chunks = setting.chunks;
  options.world = spec_.resources().ranks() / (setting.tensor * setting.pipeline);
  options.accumulation = setting.accumulation;
  options.zero_stage = setting.stage;
  options.shard_ranks = setting.group;
  options.offload_optimizer = setting.offload;
  return options;
}

absl::StatusOr<const LayerPasses*> MeshSearch::LayerOf(const Setting& setting) {
  const auto found = layers_.find(LayerKeyOf(setting));
  if (found != layers_.end()) return &found->second;
  MP_ASSIGN_OR_RETURN(LayerPasses layer, DraftLayerPasses(WithSetting(spec_, setting), place_));
  return &layers_.emplace(LayerKeyOf(setting), std::move(layer)).first->second;
}

const MeshSearch::Passes& MeshSearch::PassesOf(const Setting& setting) {
  const auto [found, added] = passes_.try_emplace(PassesKeyOf(setting), Passes{});
  if (added && setting.pipeline > 1) {
    const PipelineShape shape = {setting.schedule, setting.pipeline,
                                 static_cast<int>(setting.accumulation), setting.chunks};
    const PipelineTime time = TimeOf(shape);
    found->second = {time.step / time.busy, MostInFlight(shape).front()};
    if (setting.schedule != PipelineSchedule::kOneForwardOneBackward) {
      found->second.orders = OrdersOf(shape);
    }
  }
  return found->second;
}

absl::StatusOr<std::optional<double>> MeshSearch::LeastBytes(const Setting& setting) {
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const alike, AlikeOf(setting));
  if (alike == nullptr) return std::nullopt;
  const PlanOptions options = OptionsWith(setting, *alike);
  if (setting.pipeline == 1) return LeastBytesOf(options, *alike);
  Setting without = setting;
  without.recompute = Recompute::kNone;
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const keeps_all, AlikeOf(without));
  return LeastBytesOfStage(options, *alike, keeps_all == nullptr ? *alike : *keeps_all,
                           SizesOf(spec_.model()).layers, PassesOf(setting).in_flight);
}

// Those with larger micro-batches stand behind those with smaller ones, and need no less.
absl::Status MeshSearch::Sieve() {
  if (sieved_) return absl::OkStatus();
  const double most = static_cast<double>(place_.memory_bytes) / kBoundPart;
  std::vector<Setting> fit;
  const auto same_batch = [](const Setting& a, const Setting& b) {
    return ComputeKeyOf(a) == ComputeKeyOf(b) && PipelineKeyOf(a) == PipelineKeyOf(b) &&
           a.context == b.context;
  };
  std::optional<std::tuple<int, PipelineKey, int, int, Recompute>> too_large;
  size_t end = 0;
  for (size_t begin = 0; begin < candidates_.size(); begin = end) {
    const Setting& first = candidates_[begin];
    while (end < candidates_.size() && same_batch(candidates_[end], first)) ++end;
    const std::tuple row(first.tensor, PipelineKeyOf(first), first.context, first.expert,
                         first.recompute);
    if (too_large == row) continue;
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const alike, AlikeOf(first));
    const size_t before = fit.size();
    bool many_ops = false;
    for (size_t i = begin; alike != nullptr && i < end; ++i) {
      if (!FewOps(OptionsWith(candidates_[i], *alike), *alike)) {
        many_ops = true;
        continue;
      }
      MP_ASSIGN_OR_RETURN(const std::optional<double> bytes, LeastBytes(candidates_[i]));
      if (bytes.has_value() && *bytes <= most) fit.push_back(candidates_[i]);
    }
    if (fit.size() == before && !many_ops) too_large = row;
  }
  candidates_ = std::move(fit);
  sieved_ = true;
  return absl::OkStatus();
}

MeshSearch::Preference MeshSearch::RankOf(const Setting& setting) const {
  const auto stage = std::find(space_.stages.begin(), space_.stages.end(), setting.stage);
  return {setting.pipeline,  setting.tensor,
          setting.context,   setting.expert,
          setting.schedule,  setting.offload,
          setting.recompute, static_cast<size_t>(stage - space_.stages.begin()),
          setting.group > 0, setting.bytes};
}

absl::StatusOr<double> MeshSearch::LeastSecondsOf(const Setting& setting, Known* known) {
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const alike, AlikeOf(setting));
  const auto [seconds, added] = known->alike.try_emplace(ComputeKeyOf(setting));
  if (added) {
    seconds->second = {alike->MicroStepSeconds(known->profile),
                       alike->TensorSeconds(known->profile)};
  }
  return plan::LeastSecondsOf(OptionsWith(setting, *alike), *alike, seconds->second,
                              SizesOf(spec_.model()).layers, PassesOf(setting).waiting,
                              known->profile);
}

absl::StatusOr<double> MeshSearch::LeastSecondsOfPasses(const Setting& setting,
                                                        const PlanOptions& options, Known* known) {
  MP_ASSIGN_OR_RETURN(const LayerPasses* const layer, LayerOf(setting));
  const auto [times, first] = known->layers.try_emplace(LayerKeyOf(setting));
  if (first) times->second = layer->Seconds(known->profile);
  const auto [passes, added] =
      known->passes.try_emplace({LayerKeyOf(setting), PassesKeyOf(setting)});
  if (added) {
    passes->second = plan::LeastSecondsOfPasses(
        options, SizesOf(spec_.model()).layers, times->second,
        layer->TransferSeconds(options, known->profile), PassesOf(setting).orders);
  }
  return passes->second;
}

absl::StatusOr<double> MeshSearch::LeastSecondsOfStages(const Setting& setting, Known* known) {
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const alike, AlikeOf(setting));
  const PlanOptions options = OptionsWith(setting, *alike);
  MP_ASSIGN_OR_RETURN(const LayerPasses* const layer, LayerOf(setting));
  if (layer->layers == 0) return 0;
  if (!FewOpsOfStages(options, SizesOf(spec_.model()).layers, *layer)) {
    return std::numeric_limits<double>::infinity();
  }
  MP_ASSIGN_OR_RETURN(const double passes, LeastSecondsOfPasses(setting, options, known));
  return plan::LeastSecondsOfStages(options, *alike, known->alike.at(ComputeKeyOf(setting)),
                                    SizesOf(spec_.model()).layers, passes, known->profile);
}

absl::StatusOr<const ScaledDraft*> MeshSearch::DraftThatMayFit(const Setting& setting) {
  if (setting.pipeline == 1) return DraftOf(setting);
  const auto too_large = [&] {
    const auto found = too_large_.find(GrowingKeyOf(setting));
    return found != too_large_.end() && found->second <= setting.micro;
  };
  if (too_large()) return nullptr;
  Setting least = setting;
  least.group = 0;
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftOf(least));
  if (draft != nullptr && draft->bytes > place_.memory_bytes) {
    int64_t& micro = too_large_.try_emplace(GrowingKeyOf(setting), setting.micro).first->second;
    micro = std::min(micro, setting.micro);
    return nullptr;
  }
  // What cannot be planned has too many ops, in whatever groups.
  return setting.group == 0 || draft == nullptr ? draft : DraftOf(setting);
}

namespace {

// Open settings, the least bound first; of equal ones that which came first.
struct Candidate {
  double seconds = 0;
  size_t index = 0;
  bool close = false;  // from short drafts
  bool operator>(const Candidate& other) const {
    return std::tie(seconds, index) > std::tie(other.seconds, other.index);
  }
};

}  // namespace

absl::StatusOr<std::optional<MeshSearch::Seen>> MeshSearch::SeenOf(const Setting& setting,
                                                                   double least,
                                                                   const DeviceProfile& profile) {
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftThatMayFit(setting));
  if (draft == nullptr) return std::nullopt;
  Seen seen = {setting};
  seen.setting.bytes = draft->bytes;
  seen.setting.host_bytes = draft->host_bytes;
  if (!Fits(seen.setting, place_)) return std::nullopt;
  seen.seconds = std::max(least, draft->Seconds(profile));
  return seen;
}

absl::StatusOr<std::vector<MeshSearch::Seen>> MeshSearch::Rank(const DeviceProfile& profile,
                                                               size_t count, const Wanted& wanted,
                                                               double most) {
  MP_RETURN_IF_ERROR(Sieve());
  Known known = {.profile = profile};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> open;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (wanted != nullptr && !wanted(candidates_[i])) continue;
    MP_ASSIGN_OR_RETURN(const double seconds, LeastSecondsOf(candidates_[i], &known));
    open.push({seconds, i, candidates_[i].pipeline == 1});
  }
  const auto sooner = [](const Seen& a, const Seen& b) { return a.seconds < b.seconds; };
  std::vector<Seen> ranked;
  while (!open.empty()) {
    const Candidate next = open.top();
    open.pop();
    if (next.seconds > most) break;
    const bool enough = ranked.size() >= count;
    if (enough &&
        next.seconds > std::max(ranked[count - 1].seconds, kAsFast * ranked.front().seconds)) {
      break;
    }
    const Setting& setting = candidates_[next.index];
    if (!next.close) {
      MP_ASSIGN_OR_RETURN(const double closer, LeastSecondsOfStages(setting, &known));
      if (std::isfinite(closer)) open.push({std::max(next.seconds, closer), next.index, true});
      continue;
    }
    MP_ASSIGN_OR_RETURN(const std::optional<Seen> seen, SeenOf(setting, next.seconds, profile));
    if (!seen.has_value()) continue;
    ranked.insert(std::upper_bound(ranked.begin(), ranked.end(), *seen, sooner), *seen);
  }
  const auto slower = std::find_if(ranked.begin(), ranked.end(), [&](const Seen& seen) {
    return seen.seconds > kAsFast * ranked.front().seconds;
  });
  std::stable_sort(ranked.begin(), slower, [&](const Seen& a, const Seen& b) {
    return RankOf(a.setting) < RankOf(b.setting);
  });
  return ranked;
}

absl::StatusOr<const RankedSetting*> MeshSearch::ExactOf(const Setting& setting) {
  const auto known = exact_.find(KeyOf(setting));
  if (known != exact_.end()) return &known->second;
  const v1::JobSpec spec = WithSetting(spec_, setting);
  MP_ASSIGN_OR_RETURN(PlanOptions options, OptionsFromSpec(spec, place_.threads));
  PipelineDraft stages;
  if (setting.pipeline > 1) {
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftOf(setting));
    stages = draft->stages;
    options.stage = stages.largest;
  }
  MP_ASSIGN_OR_RETURN(const StepPlan plan, MeasureTraining(spec, options, place_.planning));
  RankedSetting& exact = exact_[KeyOf(setting)];
  exact.setting = setting;
  exact.setting.bytes = RequiredBytes(plan, plan.arena_bytes, place_.host_memory);
  exact.setting.host_bytes = HostBytes(plan);
  exact.estimate = EstimateStage(CostsOf(plan), place_.profile, stages.Seconds(place_.profile));
  exact.setting.seconds = exact.estimate.seconds;
  return &exact;
}

namespace {

// Within a micro-batch.
bool Exchanges(const Setting& s) {
  return s.tensor > 1 || s.context > 1 || s.expert > 1 || s.stage == 3;
}

}  // namespace

absl::StatusOr<std::optional<RankedSetting>> MeshSearch::SideBySideOf(
    const RankedSetting& in_turn) {
  const bool may_be_in_turn = absl::c_linear_search(space_.side_by_side, 1);
  std::optional<RankedSetting> best;
  if (may_be_in_turn) best = in_turn;
  for (const int together : space_.side_by_side) {
    Setting setting = in_turn.setting;
    setting.side_by_side =
        setting.pipeline > 1 ? 1
                             : static_cast<int>(std::gcd(setting.accumulation, int64_t{together}));
    if (may_be_in_turn && (setting.side_by_side == 1 || !Exchanges(setting))) continue;
    const absl::StatusOr<const RankedSetting*> exact = ExactOf(setting);
    // A budget of activations that is too small for several micro-batches.
    if (absl::IsInvalidArgument(exact.status())) continue;
    MP_RETURN_IF_ERROR(exact.status());
    if (!Fits((*exact)->setting, place_)) continue;
    const bool faster =
        !best.has_value() || kAsFast * (*exact)->setting.seconds < best->setting.seconds;
    if (faster) best = **exact;
  }
  return best;
}

absl::StatusOr<std::vector<RankedSetting>> MeshSearch::Best(size_t count, const Wanted& wanted) {
  std::vector<RankedSetting> best;
  for (size_t tried = count + kSpare;; tried *= 2) {
    MP_ASSIGN_OR_RETURN(std::vector<Seen> ranked, Rank(place_.profile, tried, wanted));
    const bool all = ranked.size() < tried;
    ranked.resize(std::min(ranked.size(), tried));
    best.clear();
    for (const Seen& seen : ranked) {
      MP_ASSIGN_OR_RETURN(const RankedSetting* const exact, ExactOf(seen.setting));
      if (!Fits(exact->setting, place_)) continue;
      MP_ASSIGN_OR_RETURN(const std::optional<RankedSetting> beside, SideBySideOf(*exact));
      if (beside.has_value()) best.push_back(*beside);
    }
    if (all || best.size() >= count) break;
  }
  const bool none = std::none_of(drafts_.begin(), drafts_.end(),
                                 [](const auto& draft) { return draft.second.has_value(); });
  if (none) MP_RETURN_IF_ERROR(refusal_);
  std::stable_sort(best.begin(), best.end(), [](const RankedSetting& a, const RankedSetting& b) {
    return a.setting.seconds < b.setting.seconds;
  });
  const auto slower = std::find_if(best.begin(), best.end(), [&](const RankedSetting& one) {
    return one.setting.seconds > kAsFast * best.front().setting.seconds;
  });
  const auto chosen =
      std::min_element(best.begin(), slower, [&](const RankedSetting& a, const RankedSetting& b) {
        return RankOf(a.setting) < RankOf(b.setting);
      });
  if (chosen != best.end()) std::rotate(best.begin(), chosen, chosen + 1);
  best.resize(std::min(best.size(), count));
  return best;
}

absl::StatusOr<std::optional<double>> MeshSearch::LeastSeconds(const Wanted& wanted) {
  MP_ASSIGN_OR_RETURN(const std::vector<Seen> ranked, Rank(place_.profile, 1, wanted));
  std::optional<double> least;
  for (const Seen& seen : ranked) least = std::min(least.value_or(seen.seconds), seen.seconds);
  return least;
}

absl::StatusOr<std::vector<Sensitivity>> MeshSearch::RestsOn(const RankedSetting& chosen) {
  std::vector<Sensitivity> found;
  Setting in_turn = chosen.setting;
  in_turn.side_by_side = 1;
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftOf(in_turn));
  for (auto& [sensitivity, profile] : Varied(place_.profile)) {
    if (draft == nullptr) continue;
    // What would be as fast as the choice is not looked for.
    const double seconds = draft->Seconds(profile);
    MP_ASSIGN_OR_RETURN(const std::vector<Seen> ranked,
                        Rank(profile, 1, nullptr, seconds / kAsFast));
    if (!ranked.empty() && seconds > kAsFast * ranked.front().seconds &&
        KeyOf(ranked.front().setting) != KeyOf(in_turn)) {
      sensitivity.instead = ranked.front().setting;
      sensitivity.ratio = seconds / ranked.front().seconds;
    }
    found.push_back(sensitivity);
  }
  return found;
}

absl::StatusOr<std::vector<std::pair<double, Setting>>> MeshSearch::SmallestBounds() {
  std::vector<std::pair<double, Setting>> open;
  for (const Setting& setting : Candidates(spec_, space_, place_)) {
    if (setting.recompute != space_.recomputes.back() || setting.group != 0) continue;
    if (setting.schedule != PipelineSchedule::kOneForwardOneBackward) continue;  // needs no less
    const bool larger = !open.empty() && open.back().second.tensor == setting.tensor &&
                        open.back().second.pipeline == setting.pipeline &&
                        open.back().second.context == setting.context &&
                        open.back().second.expert == setting.expert &&
                        setting.micro > open.back().second.micro;
    if (larger) continue;
    MP_ASSIGN_OR_RETURN(const std::optional<double> bytes, LeastBytes(setting));
    if (bytes.has_value()) open.emplace_back(kBoundPart * *bytes, setting);
  }
  std::stable_sort(open.begin(), open.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return open;
}

absl::StatusOr<std::optional<Setting>> MeshSearch::Smallest() {
  MP_ASSIGN_OR_RETURN(const auto open, SmallestBounds());
  std::optional<Setting> least;
  for (const auto& [bytes, setting] : open) {
    if (least.has_value() && bytes > static_cast<double>(least->bytes)) break;
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftOf(setting));
    if (draft == nullptr || (least.has_value() && draft->bytes >= least->bytes)) continue;
    least = setting;
    least->bytes = draft->bytes;
    least->host_bytes = draft->host_bytes;
  }
  // Of a pipeline another stage may need more.
  if (least.has_value()) MP_RETURN_IF_ERROR(Assess(spec_, place_, /*exact=*/false, &*least));
  return least;
}

std::string MeshText(int ranks, const Setting& setting) {
  const std::string contexts =
      setting.context > 1 ? absl::StrCat(" x ", setting.context, " context") : "";
  const std::string stages =
      setting.pipeline > 1 ? absl::StrCat(setting.pipeline, " stages x ") : "";
  const std::string experts =
      setting.expert > 1 ? absl::StrCat(" (", setting.expert, " expert)") : "";
  return absl::StrCat(ranks / setting.ModelRanks(), " data", contexts, experts, " x ", stages,
                      setting.tensor, " tensor");
}

}  // namespace milepost::plan
