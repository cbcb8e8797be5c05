// Which settings there are to choose among.
#include <algorithm>
#include <vector>

#include "common/spec/auto_fields.h"
#include "common/spec/sizes.h"
#include "common/spec/validate.h"
#include "engine/plan/fit/mesh_search.h"

namespace milepost::plan {
namespace {

constexpr int64_t kMostSequencesOfAMicroStep = 4096;

v1::JobSpec WithTensor(v1::JobSpec spec, int tensor) {
  spec.mutable_resources()->mutable_mesh()->set_tensor(tensor);
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
  const int data = DataRanks(spec.resources());
  if (!open) return {spec.train().zero().group()};
  std::vector<int> groups = {0};
  const int host = std::max(1, ranks_per_host / TensorRanks(spec.resources()));
  for (int group = host; stage > 0 && group < data; group *= 2) {
    if (group > 1 && data % group == 0) groups.push_back(group);
  }
  return groups;
}

std::vector<int> StagesFor(const std::vector<int>& stages, int sharing) {
  if (sharing > 1) return stages;
  return {stages.front()};  // all the same
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
                     .stages = {given.stage},
                     .recomputes = {given.recompute},
                     .offloads = {given.offload},
                     .micros = MicroIsAuto(spec)};
  if (TensorIsAuto(spec)) space.tensors = PossibleTensors(spec);
  if (StageIsAuto(spec)) space.stages = {1, 0, 2, 3};
  if (RecomputeIsAuto(spec)) space.recomputes = EveryRecompute();
  return space;
}

MeshSpace WholeSpace(const v1::JobSpec& spec, const RankPlace& place) {
  v1::JobSpec without = spec;
  if (MayOffload(spec, place)) without.mutable_train()->clear_offload();
  MeshSpace space = {.tensors = PossibleTensors(without),
                     .stages = {1, 0, 2, 3},
                     .groups = true,
                     .recomputes = EveryRecompute(),
                     .offloads = {SettingOf(spec).offload},
                     .micros = true};
  if (MayOffload(spec, place)) space.offloads = {false, true};
  return space;
}

std::vector<Setting> Candidates(const v1::JobSpec& spec, const MeshSpace& space,
                                const RankPlace& place) {
  std::vector<Setting> settings;
  for (const int tensor : space.tensors) {
    const v1::JobSpec divided = WithTensor(spec, tensor);
    const int data = DataRanks(divided.resources());
    if (divided.train().batch().global() % data != 0) continue;
    const int64_t per_rank = divided.train().batch().global() / data;
    const std::vector<int64_t> micros = MicrosOf(divided, space.micros);
    if (micros.empty()) continue;
    std::vector<Setting> valid;  // with the first micro-batch; that of the others is so too
    for (const bool offload : space.offloads) {
      for (const int stage : StagesFor(space.stages, StateRanks(divided.resources()))) {
        for (const int group :
             GroupsOf(divided, space.groups, stage, place.profile.ranks_per_host)) {
          Setting setting = SettingOf(spec);
          setting.tensor = tensor;
          setting.micro = micros.front();
          setting.accumulation = per_rank / setting.micro;
          setting.stage = stage;
          setting.group = group;
          setting.recompute = space.recomputes.front();
          setting.offload = offload;
          if (ValidateJobSpec(WithSetting(spec, setting)).ok()) valid.push_back(setting);
        }
      }
    }
    for (const Recompute recompute : space.recomputes) {
      for (const int64_t micro : micros) {
        for (Setting setting : valid) {
          setting.recompute = recompute;
          setting.micro = micro;
          setting.accumulation = per_rank / micro;
          settings.push_back(setting);
        }
      }
    }
  }
  return settings;
}

}  // namespace milepost::plan
