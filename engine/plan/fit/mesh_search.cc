#include "engine/plan/fit/mesh_search.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/plan/estimates/links.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr double kAsFast = 1.01;
// Flat groups are padded for the number of ranks: bounds from other numbers are a little off.
constexpr double kBoundPart = 0.98;
// Drafts need a little less than what is packed: some more are measured than are asked for.
constexpr size_t kSpare = 3;

// Of what lives through the whole run, and the activations at their fullest moment.
double LeastBytesOf(const PlanOptions& o, const ScaledDraft& alike) {
  const auto shards = static_cast<double>(o.Shards());
  return alike.parameter_bytes / (o.ShardsParameters() ? shards : 1) +
         alike.gradient_bytes / (o.ShardsGradients() && o.pipeline == 1 ? shards : 1) +
         (o.offload_optimizer ? 0 : alike.optimizer_bytes / shards) +
         (o.pipeline == 1 ? alike.activation_bytes / o.context : 0);
}

// Of a pipeline. Its first stage keeps `in_flight` micro-batches of no fewer layers than any stage
// has at least; some stage has a part of all. Where gradients of weights are made later, one
// micro-batch has what `keeps_all`, without recomputation, keeps; where layers are computed again,
// one of them has.
double LeastBytesOfStage(const PlanOptions& o, const ScaledDraft& alike,
                         const ScaledDraft& keeps_all, int64_t layers, int in_flight) {
  const double whole = LeastBytesOf(o, alike);
  const double of_first = static_cast<double>(layers / o.pipeline) / static_cast<double>(layers);
  const double last = o.schedule == PipelineSchedule::kZeroBubble
                          ? std::max(alike.layer_bytes, keeps_all.layer_bytes)
                          : alike.layer_bytes;
  const double again =
      o.recompute == Recompute::kFull ? keeps_all.layer_bytes / static_cast<double>(layers) : 0;
  const double kept = alike.layer_bytes * (in_flight - 1) + last;
  return std::max(of_first * (whole + kept), (whole + last) / o.pipeline) + again;
}

// Of gradients and parameters alone, as a ring sends them. `elements`: of a stage.
double LeastDataSeconds(const PlanOptions& o, double elements, const DeviceProfile& profile) {
  if (o.world == 1) return 0;
  const double others = 1 - 1.0 / o.Shards();
  const double gradients = elements * static_cast<double>(ByteSize(o.grad_reduce));
  const double parameters = elements * static_cast<double>(ByteSize(o.compute_dtype));
  const double reduced = o.Shards() == 1 ? 2 * (1 - 1.0 / o.world) * gradients : others * gradients;
  double seconds = static_cast<double>(o.GradientsPass() ? o.MicroSteps() : 1) *
                   CollectiveSeconds(OpKind::kReduceGradients, reduced, o, profile);
  if (o.Replicas() > 1) {
    const double across = 2 * (1 - 1.0 / o.Replicas()) * gradients / o.Shards();
    seconds += CollectiveSeconds(OpKind::kReduceReplicas, across, o, profile);
  }
  // A stage's forward and backward of a micro-batch are far apart: each gathers.
  const int64_t gathers = o.ShardsParameters() ? o.accumulation * (o.pipeline > 1 ? 2 : 1) : 1;
  return seconds + static_cast<double>(gathers) * CollectiveSeconds(OpKind::kGatherParameters,
                                                                    others * parameters, o,
                                                                    profile);
}

// `bytes`: of the optimizer's states of a stage.
double UpdateSeconds(const PlanOptions& o, double bytes, const DeviceProfile& profile) {
  const double rate =
      o.offload_optimizer ? profile.host_memory_bandwidth : profile.memory_bandwidth;
  return rate > 0 ? 2 * bytes / o.Shards() / rate : 0;
}

// What a micro-batch that computes alike takes on a device.
struct AlikeSeconds {
  double compute = 0;
  double sums = 0;  // of tensor ranks
};

// Of a micro-batch, in the forward and the same again in the backward: of their own tokens context
// ranks send all heads but their own.
double LeastExchangeSeconds(const PlanOptions& o, const ScaledDraft& alike,
                            const DeviceProfile& profile) {
  if (o.context == 1) return 0;
  const double own = alike.attention_elements / o.context * (1 - 1.0 / o.context);
  return CollectiveSeconds(OpKind::kTokensToHeads,
                           own * static_cast<double>(ByteSize(o.compute_dtype)), o, profile);
}

// `waiting`: how many times as long as they compute stages take.
double BoundOf(const PlanOptions& o, const ScaledDraft& alike, const AlikeSeconds& seconds,
               double waiting, const DeviceProfile& profile) {
  const double stages = o.pipeline;
  const double micro_batches = static_cast<double>(o.accumulation) / stages;  // of a whole model
  const double computed = micro_batches * waiting * seconds.compute / o.context;
  const double summed = micro_batches * waiting * seconds.sums / o.context;
  const double update = UpdateSeconds(o, alike.optimizer_bytes / stages, profile);
  const double data = LeastDataSeconds(o, alike.trained_elements / stages, profile);
  if (o.pipeline == 1) {
    // In forwards, which have nothing else to do meanwhile; in backwards there are gradients.
    const double exchanged = micro_batches * LeastExchangeSeconds(o, alike, profile);
    return kBoundPart * std::max(computed + exchanged + update, summed + 2 * exchanged + data);
  }
  // A stage waits for sums, and what it sends of gradients goes beside its last pass alone.
  const double hidden = o.ShardsParameters() ? computed : seconds.compute / stages;
  return kBoundPart * (computed + summed + update + std::max(0.0, data - hidden));
}

// Whether a coordinator would plan it: all micro-batches are in a stage's program.
bool FewOps(const PlanOptions& o, const ScaledDraft& alike) {
  const double work = alike.layer_work / o.pipeline * static_cast<double>(o.accumulation);
  return o.pipeline == 1 || work <= static_cast<double>(kLimitsOfRequest.ops);
}

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
  options.world = spec_.resources().ranks() / (setting.tensor * setting.pipeline);
  options.accumulation = setting.accumulation;
  options.zero_stage = setting.stage;
  options.shard_ranks = setting.group;
  options.offload_optimizer = setting.offload;
  return options;
}

const MeshSearch::Passes& MeshSearch::PassesOf(const Setting& setting) {
  const auto [found, added] =
      passes_.try_emplace({PipelineKeyOf(setting), setting.accumulation}, Passes{});
  if (added && setting.pipeline > 1) {
    const PipelineShape shape = {setting.schedule, setting.pipeline,
                                 static_cast<int>(setting.accumulation)};
    const PipelineTime time = TimeOf(shape);
    found->second = {time.step / time.busy, MostInFlight(shape).front()};
  }
  return found->second;
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
  std::optional<std::tuple<int, PipelineKey, int, Recompute>> too_large;
  size_t end = 0;
  for (size_t begin = 0; begin < candidates_.size(); begin = end) {
    const Setting& first = candidates_[begin];
    while (end < candidates_.size() && same_batch(candidates_[end], first)) ++end;
    const std::tuple row(first.tensor, PipelineKeyOf(first), first.context, first.recompute);
    if (too_large == row) continue;
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const alike, AlikeOf(first));
    Setting without = first;
    without.recompute = Recompute::kNone;
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const keeps_all, AlikeOf(without));
    const auto least_bytes = [&](const Setting& setting, const PlanOptions& options) {
      if (setting.pipeline == 1) return LeastBytesOf(options, *alike);
      return LeastBytesOfStage(options, *alike, keeps_all == nullptr ? *alike : *keeps_all,
                               SizesOf(spec_.model()).layers, PassesOf(setting).in_flight);
    };
    const size_t before = fit.size();
    bool many_ops = false;
    for (size_t i = begin; alike != nullptr && i < end; ++i) {
      const PlanOptions options = OptionsWith(candidates_[i], *alike);
      if (!FewOps(options, *alike)) {
        many_ops = true;
      } else if (least_bytes(candidates_[i], options) <= most) {
        fit.push_back(candidates_[i]);
      }
    }
    if (fit.size() == before && !many_ops) too_large = row;
  }
  candidates_ = std::move(fit);
  sieved_ = true;
  return absl::OkStatus();
}

MeshSearch::Preference MeshSearch::RankOf(const Setting& setting) const {
  const auto stage = std::find(space_.stages.begin(), space_.stages.end(), setting.stage);
  return {setting.pipeline,
          setting.tensor,
          setting.context,
          setting.schedule,
          setting.offload,
          setting.recompute,
          static_cast<size_t>(stage - space_.stages.begin()),
          setting.group > 0,
          setting.bytes};
}

absl::StatusOr<std::vector<MeshSearch::Seen>> MeshSearch::Rank(const DeviceProfile& profile,
                                                               size_t count, const Wanted& wanted) {
  MP_RETURN_IF_ERROR(Sieve());
  std::map<ComputeKey, AlikeSeconds> alike_seconds;
  std::vector<Seen> open;  // with bounds
  for (const Setting& setting : candidates_) {
    if (wanted != nullptr && !wanted(setting)) continue;
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const alike, AlikeOf(setting));
    const auto [seconds, added] = alike_seconds.try_emplace(ComputeKeyOf(setting));
    if (added) {
      seconds->second = {alike->MicroStepSeconds(profile), alike->TensorSeconds(profile)};
    }
    open.push_back({setting, BoundOf(OptionsWith(setting, *alike), *alike, seconds->second,
                                     PassesOf(setting).waiting, profile)});
  }
  const auto sooner = [](const Seen& a, const Seen& b) { return a.seconds < b.seconds; };
  std::stable_sort(open.begin(), open.end(), sooner);
  std::vector<Seen> ranked;
  for (const Seen& next : open) {
    const bool enough = ranked.size() >= count;
    if (enough &&
        next.seconds > std::max(ranked[count - 1].seconds, kAsFast * ranked.front().seconds)) {
      break;
    }
    MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftOf(next.setting));
    if (draft == nullptr) continue;
    Seen seen = next;
    seen.setting.bytes = draft->bytes;
    seen.setting.host_bytes = draft->host_bytes;
    if (!Fits(seen.setting, place_)) continue;
    seen.seconds = std::max(next.seconds, draft->Seconds(profile));
    ranked.insert(std::upper_bound(ranked.begin(), ranked.end(), seen, sooner), seen);
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

absl::StatusOr<std::vector<RankedSetting>> MeshSearch::Best(size_t count, const Wanted& wanted) {
  std::vector<RankedSetting> best;
  for (size_t tried = count + kSpare;; tried *= 2) {
    MP_ASSIGN_OR_RETURN(std::vector<Seen> ranked, Rank(place_.profile, tried, wanted));
    const bool all = ranked.size() < tried;
    ranked.resize(std::min(ranked.size(), tried));
    best.clear();
    for (const Seen& seen : ranked) {
      MP_ASSIGN_OR_RETURN(const RankedSetting* const exact, ExactOf(seen.setting));
      if (Fits(exact->setting, place_)) best.push_back(*exact);
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
  MP_ASSIGN_OR_RETURN(const ScaledDraft* const draft, DraftOf(chosen.setting));
  for (auto& [sensitivity, profile] : Varied(place_.profile)) {
    MP_ASSIGN_OR_RETURN(const std::vector<Seen> ranked, Rank(profile, 1, nullptr));
    if (ranked.empty() || draft == nullptr) continue;
    const Seen& best = ranked.front();
    const double seconds = draft->Seconds(profile);
    if (seconds > kAsFast * best.seconds && KeyOf(best.setting) != KeyOf(chosen.setting)) {
      sensitivity.instead = best.setting;
      sensitivity.ratio = seconds / best.seconds;
    }
    found.push_back(sensitivity);
  }
  return found;
}

absl::StatusOr<std::optional<Setting>> MeshSearch::Smallest() {
  std::optional<Setting> least;
  for (const Setting& setting : Candidates(spec_, space_, place_)) {
    if (setting.recompute != space_.recomputes.back() || setting.group != 0) continue;
    if (setting.schedule != PipelineSchedule::kOneForwardOneBackward) continue;  // needs no less
    if (least.has_value() && least->tensor == setting.tensor &&
        least->pipeline == setting.pipeline && least->context == setting.context &&
        setting.micro > least->micro) {
      continue;
    }
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
      setting.context > 1 ? absl::StrCat(setting.context, " context x ") : "";
  const std::string stages =
      setting.pipeline > 1 ? absl::StrCat(setting.pipeline, " stages x ") : "";
  return absl::StrCat(ranks / setting.ModelRanks(), " data x ", contexts, stages, setting.tensor,
                      " tensor");
}

}  // namespace milepost::plan
