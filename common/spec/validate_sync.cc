// train.sync: what islands of ranks that train apart can do.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/auto_fields.h"
#include "common/spec/checker.h"
#include "common/spec/sizes.h"

namespace milepost {
namespace {

constexpr char kIslands[] = "train.sync.islands";

// Numbers of steps that end with an outer step.
void CheckMultiple(const char* field, int64_t value, int64_t every, Checker* check) {
  if (value % every == 0) return;
  const int64_t below = value / every * every;
  check->Add(field, absl::StrCat("must be a multiple of train.sync.every (", every, "), got ",
                                 value, "; nearest: ", below > 0 ? absl::StrCat(below, " or ") : "",
                                 below + every));
}

void CheckIslands(const v1::JobSpec& spec, Checker* check) {
  const v1::ResourceSpec& resources = spec.resources();
  const int islands = Islands(spec), data = DataRanks(resources);
  if (resources.ranks() % ModelRanks(resources) != 0) return;  // said of the mesh
  if (data % islands == 0) return;
  int nearest = islands - 1;
  while (nearest > 1 && data % nearest != 0) --nearest;
  check->Add(kIslands, absl::StrCat("must divide ", DataRanksName(resources), " (", data, "), got ",
                                    islands, "; nearest: ", std::max(nearest, 1)));
}

}  // namespace

void CheckSync(const v1::JobSpec& spec, Checker* check) {
  const v1::TrainSpec& train = spec.train();
  if (!train.has_sync()) return;
  const v1::OuterOptimizerSpec& outer = train.sync().outer_optimizer();
  check->Real("train.sync.outer_optimizer.lr", outer.lr(), 0, 10, "(]");
  check->Real("train.sync.outer_optimizer.momentum", outer.momentum(), 0, 1, "[)");
  if (check->Required(kIslands, train.sync().islands(), 1, kMaxRanks) && !TensorIsAuto(spec)) {
    CheckIslands(spec, check);
  }
  if (check->Required("train.sync.every", train.sync().every(), 1, 1'000'000)) {
    CheckMultiple("train.steps", train.steps(), train.sync().every(), check);
    CheckMultiple("checkpoint.every", spec.checkpoint().every(), train.sync().every(), check);
    CheckMultiple("train.validation.every", train.validation().every(), train.sync().every(),
                  check);
  }
  const v1::OptimizerSpec& optimizer = train.optimizer();
  const std::pair<bool, const char*> refused[] = {
      {TensorIsAuto(spec), "needs a given mesh: give resources.mesh.tensor as a number"},
      {spec.model().has_resnet(),
       "is not for models with running statistics: remove it, or take another model"},
      {train.precision() == v1::PRECISION_FP16 || train.precision() == v1::PRECISION_FP8,
       "has one optimizer state for all islands, and no scales of their own: take "
       "train.precision bf16 or fp32"},
      {train.has_powersgd(), "is not for train.powersgd: remove one of them"},
      {train.has_ema(), "is not for train.ema: remove one of them"},
      {optimizer.type() == v1::OptimizerSpec::TYPE_ADAMW_8BIT,
       "averages the optimizer's states, which adamw_8bit keeps as codes: take adamw"},
      {optimizer.state_dtype() == v1::STATE_DTYPE_BF16,
       "averages the optimizer's states: take train.optimizer.state_dtype: fp32"},
      {optimizer.master() == v1::MASTER_DTYPE_NONE,
       "averages masters: take train.optimizer.master: fp32"},
      {train.memory() == v1::MEMORY_USE_LOW, "is not for train.memory: low; take exact"},
      {train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE,
       "is not for an optimizer that is offloaded: take train.offload.optimizer: none"},
      {spec.checkpoint().redundancy() > 0,
       "has one state for all ranks only after an outer step: take checkpoint.redundancy: 0"}};
  for (const auto& [is, what] : refused) {
    if (is) return check->Add("train.sync", what);
  }
}

}  // namespace milepost
