#include "common/spec/sizes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/checker.h"

namespace milepost {
namespace {

// What is above 1 of resources.mesh.
std::vector<std::string> Divisors(const v1::ResourceSpec& resources) {
  std::vector<std::string> names;
  if (TensorRanks(resources) > 1) names.push_back("tensor");
  if (PipelineStages(resources) > 1) names.push_back("pipeline");
  if (ContextRanks(resources) > 1) names.push_back("context");
  return names;
}

}  // namespace

int LeastRanks(const v1::ResourceSpec& resources) {
  return resources.has_min_ranks() ? resources.min_ranks() : std::max(1, resources.ranks());
}

int MostRanks(const v1::ResourceSpec& resources) {
  return resources.has_max_ranks() ? resources.max_ranks() : std::max(1, resources.ranks());
}

int TensorRanks(const v1::ResourceSpec& resources) {
  return std::clamp(resources.mesh().tensor(), 1, static_cast<int>(kMaxRanks));
}

int PipelineStages(const v1::ResourceSpec& resources) {
  return std::clamp(resources.mesh().pipeline(), 1, static_cast<int>(kMaxStages));
}

int ContextRanks(const v1::ResourceSpec& resources) {
  return std::clamp(resources.mesh().context(), 1, static_cast<int>(kMaxContext));
}

int PipelineChunks(const v1::ResourceSpec& resources) {
  if (resources.mesh().schedule() != v1::PIPELINE_SCHEDULE_INTERLEAVED) return 1;
  return std::clamp(resources.mesh().chunks(), 1, static_cast<int>(kMaxChunks));
}

int SideBySide(const v1::BatchSpec& batch) {
  return std::clamp(batch.side_by_side(), 1, static_cast<int>(kMaxSideBySide));
}

int ExpertRanks(const v1::ResourceSpec& resources) {
  return std::clamp(resources.mesh().expert(), 1, static_cast<int>(kMaxExpertRanks));
}

int ModelRanks(const v1::ResourceSpec& resources) {
  return TensorRanks(resources) * PipelineStages(resources) * ContextRanks(resources);
}

int DataRanks(const v1::ResourceSpec& resources) {
  return std::max(1, resources.ranks() / ModelRanks(resources));
}

int StateRanks(const v1::ResourceSpec& resources) {
  return DataRanks(resources) * ContextRanks(resources);
}

int Islands(const v1::JobSpec& spec) {
  return std::clamp(spec.train().sync().islands(), 1, static_cast<int>(kMaxRanks));
}

std::string ModelRanksName(const v1::ResourceSpec& resources) {
  const std::string names = absl::StrJoin(Divisors(resources), " * ");
  return absl::StrCat("resources.mesh.", names.empty() ? "tensor" : names);
}

std::string DataRanksName(const v1::ResourceSpec& resources) {
  const std::string names = absl::StrJoin(Divisors(resources), " / ");
  return names.empty() ? "ranks" : absl::StrCat("(ranks / ", names, ")");
}

bool IsPossibleSize(const v1::JobSpec& normalized, int ranks) {
  const int model = ModelRanks(normalized.resources());
  if (ranks % model != 0) return false;
  const int data = ranks / model;
  if (data % Islands(normalized) != 0) return false;
  const int sharing = data * ContextRanks(normalized.resources()) / Islands(normalized);
  if (sharing % ExpertRanks(normalized.resources()) != 0) return false;
  const v1::BatchSpec& batch = normalized.train().batch();
  const int64_t micro = std::max<int64_t>(1, batch.micro());  // auto: any divisor will do
  const int32_t group = normalized.train().zero().group();
  return batch.global() % (micro * data) == 0 && (group <= 0 || sharing % group == 0);
}

std::vector<int> PossibleSizes(const v1::JobSpec& normalized) {
  const v1::ResourceSpec& resources = normalized.resources();
  std::vector<int> sizes;
  for (int ranks = LeastRanks(resources); ranks <= MostRanks(resources); ++ranks) {
    if (ranks == resources.ranks() || IsPossibleSize(normalized, ranks)) sizes.push_back(ranks);
  }
  return sizes;
}

v1::JobSpec WithRanks(v1::JobSpec spec, int ranks) {
  if (ranks == spec.resources().ranks()) return spec;
  spec.mutable_resources()->set_ranks(ranks);
  v1::BatchSpec* batch = spec.mutable_train()->mutable_batch();
  const int64_t sequences = batch->micro() * DataRanks(spec.resources());
  if (batch->micro() > 0) batch->set_accumulation(batch->global() / sequences);
  return spec;
}

}  // namespace milepost
