#include "engine/plan/fit/settings.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/auto_fields.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/plan/estimates/estimate.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/fit/stage_drafts.h"
#include "engine/plan/passes/fp8_pass.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/planner/planner.h"

namespace milepost::plan {
namespace {

v1::Recompute SpecRecompute(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return v1::RECOMPUTE_NONE;
    case Recompute::kSelective:
      return v1::RECOMPUTE_SELECTIVE;
    case Recompute::kFull:
      return v1::RECOMPUTE_FULL;
    case Recompute::kBudget:
      return v1::RECOMPUTE_BUDGET;
  }
  return v1::RECOMPUTE_NONE;
}

Recompute PlanRecompute(v1::Recompute recompute) {
  for (Recompute r : {Recompute::kSelective, Recompute::kFull, Recompute::kBudget}) {
    if (SpecRecompute(r) == recompute) return r;
  }
  return Recompute::kNone;
}

v1::PipelineSchedule SpecSchedule(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kOneForwardOneBackward:
      return v1::PIPELINE_SCHEDULE_1F1B;
    case PipelineSchedule::kZeroBubble:
      return v1::PIPELINE_SCHEDULE_ZERO_BUBBLE;
    case PipelineSchedule::kInterleaved:
      return v1::PIPELINE_SCHEDULE_INTERLEAVED;
  }
  return v1::PIPELINE_SCHEDULE_1F1B;
}

// Sequences of one rank in a step.
int64_t PerRank(const v1::JobSpec& spec) {
  return std::max<int64_t>(1, spec.train().batch().global() / DataRanks(spec.resources()));
}

// The largest of `micros` that fits with the rest of `setting`; nullopt: not even the first.
absl::StatusOr<std::optional<Setting>> LargestMicro(const v1::JobSpec& spec,
                                                    const std::vector<int64_t>& micros,
                                                    const RankPlace& place, Setting setting) {
  std::optional<Setting> found;
  size_t low = 0;
  size_t high = micros.size();  // micros[high] and above do not fit
  while (low < high) {
    const size_t middle = (low + high) / 2;
    setting.micro = micros[middle];
    setting.accumulation = PerRank(spec) / setting.micro;
    const absl::Status status = Assess(spec, place, /*exact=*/false, &setting);
    // A budget of activations may be too small for large micro-batches.
    const bool too_large =
        absl::IsInvalidArgument(status) && setting.recompute == Recompute::kBudget;
    if (!too_large) MP_RETURN_IF_ERROR(status);
    if (!too_large && Fits(setting, place)) {
      found = setting;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return found;
}

// Of what a layer multiplies on a rank, for each sample.
int64_t RowsOfSample(const v1::JobSpec& spec) {
  const int64_t tokens = spec.data().sequence_length() / ContextRanks(spec.resources());
  if (!spec.model().has_vit()) return tokens;
  const v1::VitSpec& vit = spec.model().vit();
  const int64_t side = vit.image_size() / vit.patch_size();
  return side * side + 1;  // with the class token
}

}  // namespace

// m and v lose the least: they are averages, in 8 bits with a scale for each 256. A parameter that
// is its own master is rounded in every update, right on average. A gradient in bf16 brings an
// error of its own into each of those.
std::vector<v1::JobSpec> StoragesOf(const v1::JobSpec& spec) {
  std::vector<v1::JobSpec> storages = {spec};
  storages[0].mutable_train()->set_memory(v1::MEMORY_USE_EXACT);
  const v1::TrainSpec& train = spec.train();
  const v1::OptimizerSpec& given = train.optimizer();
  const auto add = [&](const auto& change) {
    v1::JobSpec next = storages.back();
    change(*next.mutable_train());
    storages.push_back(std::move(next));
  };
  const bool adamw = given.type() == v1::OptimizerSpec::TYPE_ADAMW;
  const OptimizerFields* fields = FieldsOf(given.type());
  if (fields == nullptr) return storages;
  if (fields->bf16_states && given.state_dtype() != v1::STATE_DTYPE_BF16) {
    add([](v1::TrainSpec& t) { t.mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_BF16); });
  }
  if (adamw) {
    add([](v1::TrainSpec& t) {
      t.mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_ADAMW_8BIT);
      t.mutable_optimizer()->set_state_dtype(v1::STATE_DTYPE_FP32);
    });
  }
  const bool bf16 =
      train.precision() == v1::PRECISION_BF16 || train.precision() == v1::PRECISION_FP8;
  if (!bf16 || !fields->by_element || train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE) {
    return storages;
  }
  if (given.master() != v1::MASTER_DTYPE_NONE) {
    add([](v1::TrainSpec& t) { t.mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE); });
  }
  const bool sums = !MicroIsAuto(spec) && train.batch().accumulation() > 1;
  if (!sums && train.grad_dtype() != v1::GRAD_DTYPE_BF16) {
    add([](v1::TrainSpec& t) { t.set_grad_dtype(v1::GRAD_DTYPE_BF16); });
  }
  return storages;
}

std::vector<int64_t> MicrosUpTo(const v1::JobSpec& spec, int64_t most) {
  const int64_t per_rank = PerRank(spec);
  std::vector<int64_t> micros;
  std::vector<int64_t> above;
  for (int64_t divisor = 1; divisor * divisor <= per_rank; ++divisor) {
    if (per_rank % divisor != 0) continue;
    micros.push_back(divisor);
    if (divisor * divisor != per_rank) above.push_back(per_rank / divisor);
  }
  micros.insert(micros.end(), above.rbegin(), above.rend());
  // An elastic job's has to do for all its sizes.
  const v1::ResourceSpec& resources = spec.resources();
  std::erase_if(micros, [&](int64_t micro) {
    v1::JobSpec with = spec;
    with.mutable_train()->mutable_batch()->set_micro(micro);
    return micro > most || !IsPossibleSize(with, LeastRanks(resources)) ||
           !IsPossibleSize(with, MostRanks(resources));
  });
  if (PipelineStages(resources) > 1) {  // with the fewest ranks, each has the most
    v1::ResourceSpec least = resources;
    least.set_ranks(LeastRanks(resources));
    const int64_t most_of_rank = spec.train().batch().global() / DataRanks(least);
    std::erase_if(micros, [&](int64_t micro) { return most_of_rank / micro > kMaxMicroBatches; });
  }
  if (spec.train().precision() != v1::PRECISION_FP8) return micros;
  // With others no layer has 8 bits. Where there are no others, that is what is said.
  std::vector<int64_t> in_8_bits = micros;
  std::erase_if(in_8_bits,
                [&](int64_t micro) { return micro * RowsOfSample(spec) % kFp8Multiple != 0; });
  return in_8_bits.empty() ? micros : in_8_bits;
}

Setting SettingOf(const v1::JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  Setting setting;
  setting.tensor = TensorRanks(spec.resources());
  setting.pipeline = PipelineStages(spec.resources());
  setting.context = ContextRanks(spec.resources());
  setting.expert = ExpertRanks(spec.resources());
  setting.schedule = ScheduleOf(spec.resources().mesh().schedule());
  setting.chunks = PipelineChunks(spec.resources());
  setting.group = train.zero().group();
  setting.micro = MicroIsAuto(spec) ? 1 : train.batch().micro();
  setting.accumulation =
      MicroIsAuto(spec) ? PerRank(spec) : std::max<int64_t>(1, train.batch().accumulation());
  setting.side_by_side = SideBySide(train.batch());
  setting.stage = StageIsAuto(spec) ? 0 : train.zero().stage();
  setting.recompute = PlanRecompute(train.recompute());
  setting.recompute_budget = train.recompute_budget();
  setting.offload = train.offload().optimizer() == v1::OFFLOAD_TARGET_HOST;
  return setting;
}

v1::JobSpec WithSetting(v1::JobSpec spec, const Setting& setting) {
  if (setting.ModelRanks() > 1 || setting.expert > 1 || spec.resources().has_mesh()) {
    v1::MeshSpec* mesh = spec.mutable_resources()->mutable_mesh();
    mesh->set_tensor(setting.tensor);
    mesh->clear_pipeline();
    mesh->clear_schedule();
    mesh->clear_chunks();
    mesh->clear_context();
    mesh->clear_expert();
    if (setting.expert > 1) mesh->set_expert(setting.expert);
    if (setting.context > 1) mesh->set_context(setting.context);
    if (setting.pipeline > 1) {
      mesh->set_pipeline(setting.pipeline);
      mesh->set_schedule(SpecSchedule(setting.schedule));
      if (setting.schedule == PipelineSchedule::kInterleaved) mesh->set_chunks(setting.chunks);
    }
  }
  v1::TrainSpec* train = spec.mutable_train();
  train->mutable_batch()->set_micro(setting.micro);
  train->mutable_batch()->set_accumulation(setting.accumulation);
  train->mutable_batch()->set_global(setting.micro * setting.accumulation *
                                     DataRanks(spec.resources()));
  train->mutable_batch()->set_side_by_side(
      static_cast<int>(std::gcd(setting.accumulation, int64_t{setting.side_by_side})));
  train->mutable_zero()->set_stage(setting.stage);
  train->mutable_zero()->set_group(setting.group);
  train->set_recompute(SpecRecompute(setting.recompute));
  train->clear_recompute_budget();
  if (setting.recompute == Recompute::kBudget) {
    train->set_recompute_budget(setting.recompute_budget);
  }
  if (setting.offload) {
    train->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  } else if (train->offload().optimizer() == v1::OFFLOAD_TARGET_HOST) {
    train->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_NONE);
  }
  NormalizeJobSpec(&spec);
  return spec;
}

absl::Status Assess(const v1::JobSpec& spec, const RankPlace& place, bool exact, Setting* setting) {
  const v1::JobSpec changed = WithSetting(spec, *setting);
  MP_ASSIGN_OR_RETURN(PlanOptions options, OptionsFromSpec(changed, place.threads));
  PipelineDraft stages;
  if (options.pipeline > 1) {
    MP_ASSIGN_OR_RETURN(stages, DraftPipeline(changed, options, place.planning));
    options.stage = stages.largest;
  }
  MP_ASSIGN_OR_RETURN(const StepPlan plan, exact ? MeasureTraining(changed, options, place.planning)
                                                 : DraftTraining(changed, options, place.planning));
  setting->bytes =
      RequiredBytes(plan, exact ? plan.arena_bytes : LeastBytes(plan), place.host_memory);
  setting->host_bytes = HostBytes(plan);
  setting->seconds =
      EstimateStage(CostsOf(plan), place.profile, stages.Seconds(place.profile)).seconds;
  return absl::OkStatus();
}

bool Fits(const Setting& setting, const RankPlace& place) {
  const bool host = place.host_memory || place.host_bytes <= 0;
  return setting.bytes <= place.memory_bytes && (host || setting.host_bytes <= place.host_bytes);
}

absl::StatusOr<std::vector<Setting>> Search(const v1::JobSpec& spec, const SettingSpace& space,
                                            const RankPlace& place) {
  std::vector<Setting> settings;
  for (int stage : space.stages) {
    for (Recompute recompute : space.recomputes) {
      for (const bool offload : space.offloads) {
        Setting setting = SettingOf(spec);
        setting.stage = stage;
        setting.recompute = recompute;
        setting.offload = offload;
        auto largest = LargestMicro(spec, space.micros, place, setting);
        if (!largest.ok()) return largest.status();
        if (largest->has_value()) settings.push_back(**largest);
      }
    }
  }
  return settings;
}

std::string Difference(const Setting& before, const Setting& after) {
  std::vector<std::string> parts;
  if (after.tensor != before.tensor) {
    parts.push_back(absl::StrCat("resources.mesh.tensor: ", after.tensor));
  }
  if (after.pipeline != before.pipeline) {
    parts.push_back(absl::StrCat("resources.mesh.pipeline: ", after.pipeline));
  }
  if (after.pipeline > 1 && after.schedule != before.schedule) {
    parts.push_back(absl::StrCat("resources.mesh.schedule: ", Name(after.schedule)));
  }
  if (after.chunks > 1 && after.chunks != before.chunks) {
    parts.push_back(absl::StrCat("resources.mesh.chunks: ", after.chunks));
  }
  if (after.context != before.context) {
    parts.push_back(absl::StrCat("resources.mesh.context: ", after.context));
  }
  if (after.expert != before.expert) {
    parts.push_back(absl::StrCat("resources.mesh.expert: ", after.expert));
  }
  if (after.micro != before.micro) {
    parts.push_back(absl::StrCat("train.batch.micro: ", after.micro, " (accumulation ",
                                 after.accumulation, ")"));
  }
  if (after.side_by_side != before.side_by_side) {
    parts.push_back(absl::StrCat("train.batch.side_by_side: ", after.side_by_side));
  }
  if (after.stage != before.stage) {
    parts.push_back(absl::StrCat("train.zero.stage: ", after.stage));
  }
  if (after.group != before.group) {
    parts.push_back(absl::StrCat("train.zero.group: ", after.group));
  }
  if (after.recompute != before.recompute) {
    parts.push_back(absl::StrCat("train.recompute: ", Name(after.recompute)));
  }
  if (after.offload != before.offload) {
    parts.push_back(absl::StrCat("train.offload.optimizer: ", after.offload ? "host" : "none"));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace milepost::plan
