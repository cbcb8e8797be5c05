// Which settings there are to choose among.
#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/spec/auto_fields.h"
#include "common/spec/checker.h"
#include "common/spec/model_sizes.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "engine/plan/estimates/links.h"
#include "engine/plan/fit/mesh_search.h"

namespace milepost::plan {
namespace {

constexpr int64_t kMostSequencesOfAMicroStep = 4096;

v1::JobSpec WithMesh(v1::JobSpec spec, int tensor, int pipeline, int context, int expert) {
  v1::MeshSpec* mesh = spec.mutable_resources()->mutable_mesh();
  mesh->set_tensor(tensor);
  mesh->set_pipeline(pipeline);
  mesh->set_context(context);
  mesh->set_expert(expert);
  spec.mutable_train()->mutable_batch()->clear_accumulation();
  NormalizeJobSpec(&spec);
  return spec;
}

std::vector<int64_t> MicrosOf(const v1::JobSpec& spec, bool open) {
  const int64_t per_rank = spec.train().batch().global() / DataRanks(spec.resources());
  // Gradients in bf16 are of one micro-step, which has all sequences.
  if (open && spec.train().grad_dtype() == v1::GRAD_DTYPE_BF16) return {per_rank};
  if (open) return MicrosUpTo(spec, kMostSequencesOfAMicroStep);
  const int64_t given = spec.train().batch().micro();
  if (given < 1 || per_rank % given != 0) return {};
  return {given};
}

// The ranks of a host, of twice as many hosts, and so on.
std::vector<int> GroupsOf(const v1::JobSpec& spec, bool open, int stage, int ranks_per_host) {
  const v1::ResourceSpec& resources = spec.resources();
  const int sharing = StateRanks(resources);
  if (!open) return {spec.train().zero().group()};
  std::vector<int> groups = {0};
  // A pipeline's gradients are all-reduced once, whatever the group. With context ranks there would
  // be as many drafts of it again for each group.
  const bool pipeline = PipelineStages(resources) > 1;
  if (pipeline && (stage < 3 || ContextRanks(resources) > 1)) return groups;
  const PlanOptions mesh = {.tensor = TensorRanks(resources),
                            .context = ContextRanks(resources),
                            .pipeline = PipelineStages(resources)};
  for (int group = DataRanksOnAHost(mesh, std::max(1, ranks_per_host));
       stage > 0 && group < sharing; group *= 2) {
    if (group > 1 && sharing % group == 0) groups.push_back(group);
  }
  return groups;
}

// Stages of ZeRO that differ. Those of a pipeline have a gradient of all micro-batches whole, so
// that stage 2 is no other than 1. Chunks take turns, so that few of their passes share gathers:
// where other pipelines are looked at, stage 3 is then left out.
std::vector<int> StagesFor(const MeshSpace& space, int sharing, const Setting& setting) {
  std::vector<int> stages = space.stages;
  if (sharing == 1) stages.resize(1);
  if (setting.pipeline > 1 && stages.size() > 1) std::erase(stages, 2);
  const bool others = space.pipelines.size() > 1;
  if (setting.chunks > 1 && stages.size() > 1 && others) std::erase(stages, 3);
  return stages;
}

// Whether every rank could be in one is not looked at. Of interleaved ones each has twice as many
// chunks as the one before: a bubble half as long.
std::vector<PipelineChoice> EveryPipeline(const v1::JobSpec& spec) {
  std::vector<PipelineChoice> pipelines = {{}};
  const int ranks = spec.resources().ranks();
  const int64_t layers = SizesOf(spec.model()).layers;
  for (int stages = 2; stages <= std::min<int64_t>(kMaxStages, ranks); ++stages) {
    if (ranks % stages != 0 || stages > layers) continue;
    pipelines.push_back({stages, PipelineSchedule::kOneForwardOneBackward});
    pipelines.push_back({stages, PipelineSchedule::kZeroBubble});
    for (int chunks = 2; chunks <= kMaxChunks && stages * chunks <= layers; chunks *= 2) {
      pipelines.push_back({stages, PipelineSchedule::kInterleaved, chunks});
    }
  }
  return pipelines;
}

std::vector<Recompute> EveryRecompute() {
  return {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
}

bool MayOffload(const v1::JobSpec& spec, const RankPlace& place) {
  return !place.host_memory && spec.train().offload().optimizer() != v1::OFFLOAD_TARGET_NVME;
}

}  // namespace

// Stage 1 sends no more than stage 0 and keeps less.
MeshSpace OpenSpace(const v1::JobSpec& spec) {
  const Setting given = SettingOf(spec);
  MeshSpace space = {.tensors = {given.tensor},
                     .pipelines = {{given.pipeline, given.schedule, given.chunks}},
                     .stages = {given.stage},
                     .recomputes = {given.recompute},
                     .offloads = {given.offload},
                     .micros = MicroIsAuto(spec),
                     .side_by_side = {given.side_by_side}};
  if (TensorIsAuto(spec)) space.tensors = PossibleTensors(spec);
  if (StageIsAuto(spec)) space.stages = {1, 0, 2, 3};
  if (RecomputeIsAuto(spec)) space.recomputes = EveryRecompute();
  return space;
}

MeshSpace WholeSpace(const v1::JobSpec& spec, const RankPlace& place) {
  v1::JobSpec without = spec;
  if (MayOffload(spec, place)) without.mutable_train()->clear_offload();
  const std::vector<int> tensors = PossibleTensors(without);
  // With a sequence for every group of the most ranks that divide all heads, data ranks send less.
  const int64_t keys = spec.model().has_llama() ? spec.model().llama().kv_heads() : 0;
  const auto most = std::find_if(tensors.rbegin(), tensors.rend(),
                                 [&](int tensor) { return keys % tensor == 0; });
  const int64_t groups = spec.resources().ranks() / *most;  // one rank does
  MeshSpace space = {.tensors = tensors,
                     .pipelines = EveryPipeline(spec),
                     .contexts = spec.train().batch().global() < groups,
                     .stage_contexts = true,
                     .experts = spec.model().llama().has_experts(),
                     .stages = {1, 0, 2, 3},
                     .groups = true,
                     .recomputes = EveryRecompute(),
                     .offloads = {SettingOf(spec).offload},
                     .micros = true,
                     .side_by_side = {1, 2}};
  if (MayOffload(spec, place)) space.offloads = {false, true};
  return space;
}

namespace {

// Half as many context ranks, with half as large a micro-batch, have as many tokens each in as many
// micro-batches, and send less. So a micro-batch is left out that has a divisor in common with the
// context ranks, where there may be so many fewer (`contexts`).
void KeepOwnMicros(int context, const std::vector<int>& contexts, std::vector<int64_t>* micros) {
  std::erase_if(*micros, [&](int64_t micro) {
    const auto common = static_cast<int>(std::gcd<int64_t>(micro, context));
    return common > 1 && absl::c_binary_search(contexts, context / common);
  });
}

// Those of one mesh, of which the spec is; by recomputation, then by micro-batch.
void AddCandidates(const v1::JobSpec& spec, const std::vector<int>& contexts,
                   const MeshSpace& space, const RankPlace& place, Setting setting,
                   std::vector<Setting>* settings) {
  const int data = DataRanks(spec.resources());
  if (spec.train().batch().global() % data != 0) return;
  const int64_t per_rank = spec.train().batch().global() / data;
  std::vector<int64_t> micros = MicrosOf(spec, space.micros);
  if (space.micros) KeepOwnMicros(setting.context, contexts, &micros);
  if (micros.empty()) return;
  setting.micro = micros.front();
  setting.accumulation = per_rank / setting.micro;
  setting.recompute = space.recomputes.front();
  std::vector<Setting> valid;  // with the first micro-batch; that of the others is so too
  for (const bool offload : space.offloads) {
    setting.offload = offload;
    for (const int stage : StagesFor(space, StateRanks(spec.resources()), setting)) {
      setting.stage = stage;
      for (const int group : GroupsOf(spec, space.groups, stage, place.profile.ranks_per_host)) {
        setting.group = group;
        if (ValidateJobSpec(WithSetting(spec, setting)).ok()) valid.push_back(setting);
      }
    }
  }
  for (const Recompute recompute : space.recomputes) {
    for (const int64_t micro : micros) {
      for (Setting one : valid) {
        one.recompute = recompute;
        one.micro = micro;
        one.accumulation = per_rank / micro;
        settings->push_back(one);
      }
    }
  }
}

// On GPUs cuDNN's attention is not for parts of queries, and Milepost's own is slow: there ranks
// divide the heads.
std::vector<int> ContextsFor(const v1::JobSpec& spec, const RankPlace& place) {
  std::vector<int> contexts = PossibleContexts(spec);
  if (place.host_memory) return contexts;
  std::erase_if(contexts, [&](int context) { return !ContextDividesHeads(spec, context); });
  return contexts;
}

}  // namespace

std::vector<Setting> Candidates(const v1::JobSpec& spec, const MeshSpace& space,
                                const RankPlace& place) {
  std::vector<Setting> settings;
  for (const int tensor : space.tensors) {
    for (const PipelineChoice& pipeline : space.pipelines) {
      if (spec.resources().ranks() % (tensor * pipeline.stages) != 0) continue;
      Setting setting = SettingOf(spec);
      setting.side_by_side = 1;
      setting.tensor = tensor;
      setting.pipeline = pipeline.stages;
      setting.schedule = pipeline.schedule;
      setting.chunks = pipeline.chunks;
      std::vector<int> contexts = {setting.context};
      if (pipeline.stages == 1 ? space.contexts : space.stage_contexts) {
        contexts = ContextsFor(WithMesh(spec, tensor, pipeline.stages, 1, 1), place);
      }
      for (const int context : contexts) {
        setting.context = context;
        std::vector<int> experts = {ExpertRanks(spec.resources())};
        if (space.experts) {
          experts = PossibleExperts(WithMesh(spec, tensor, pipeline.stages, context, 1));
        }
        for (const int expert : experts) {
          setting.expert = expert;
          AddCandidates(WithMesh(spec, tensor, pipeline.stages, context, expert), contexts, space,
                        place, setting, &settings);
        }
      }
    }
  }
  return settings;
}

}  // namespace milepost::plan
