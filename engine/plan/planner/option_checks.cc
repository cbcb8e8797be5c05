#include "engine/plan/planner/option_checks.h"

#include "absl/strings/str_cat.h"
#include "common/spec/optimizer_fields.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"

namespace milepost::plan {
namespace {

bool StepsByElement(Optimizer optimizer) {
  return optim::DefinitionOf(optimizer).needs == optim::StepNeeds::kElement;
}

// Masters and gradients in bf16. `train.batch.accumulation` may be a consequence of the number of
// ranks, which the spec's own check does not know.
absl::Status CheckFewerBits(const PlanOptions& options) {
  if (options.masters && !options.RoundsGradients()) return absl::OkStatus();
  const char* field = options.masters ? "train.grad_dtype: bf16" : "train.optimizer.master: none";
  if (options.compute_dtype != DType::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is for train.precision bf16 and fp8"));
  }
  if (options.offload_optimizer || !StepsByElement(options.optimizer)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " works with ", OptimizersWith(&OptimizerFields::by_element, "and"),
                     ", where they are not offloaded"));
  }
  if (!options.RoundsGradients() || options.accumulation == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.grad_dtype: bf16 needs train.batch.accumulation: 1, and with ",
                   options.AllRanks(), " ranks it is ", options.accumulation,
                   ": give a larger train.batch.micro, more ranks, or fp32"));
}

// Of gradients that travel as factors.
absl::Status CheckFactors(const PlanOptions& options) {
  if (options.powersgd_rank == 0) return absl::OkStatus();
  const bool mesh = options.ModelRanks() * options.context * options.expert > 1;
  if (options.Shards() == 1 && !mesh && !options.offload_optimizer && !options.RoundsGradients()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "train.powersgd works on whole gradients in fp32: take train.zero.stage: 0 and "
      "train.grad_dtype: fp32, and no resources.mesh or train.offload.optimizer");
}

// Of micro-batches that a program has side by side.
absl::Status CheckSideBySide(const PlanOptions& options) {
  if (options.side_by_side == 1) return absl::OkStatus();
  const bool divides = options.side_by_side > 1 && options.accumulation % options.side_by_side == 0;
  if (!divides || options.pipeline > 1 || options.fp8 || options.offload_activations) {
    return absl::InvalidArgumentError(
        "train.batch.side_by_side divides train.batch.accumulation, and is not for "
        "resources.mesh.pipeline, train.precision fp8 and train.offload.activations");
  }
  return absl::OkStatus();
}

// Of islands that train apart, whose masters and states are averaged.
absl::Status CheckIslands(const PlanOptions& options) {
  if (options.outer_every == 0 && options.islands == 1) return absl::OkStatus();
  if (options.outer_every < 1 || options.islands < 1) {
    return absl::InvalidArgumentError("train.sync: every and islands are at least 1");
  }
  const bool states = options.state_dtype == DType::kF32 && !IsQuantized(options.optimizer);
  const bool scaled = options.compute_dtype == DType::kF16 || options.fp8;
  if (!options.masters || !states || scaled || options.offload_optimizer || options.averages ||
      options.powersgd_rank > 0) {
    return absl::InvalidArgumentError(
        "train.sync averages masters and states in fp32, in the device's memory: it is not for "
        "train.precision fp16 and fp8, adamw_8bit, state_dtype bf16, master none, "
        "train.offload.optimizer, train.ema and train.powersgd");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const PlanOptions& options) {
  const auto at_least_one = [](absl::string_view field, int64_t value) {
    if (value >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not at least 1"));
  };
  MP_RETURN_IF_ERROR(at_least_one("resources.ranks", options.world));
  MP_RETURN_IF_ERROR(at_least_one("resources.threads_per_rank", options.threads));
  MP_RETURN_IF_ERROR(at_least_one("train.batch.micro", options.micro_batch));
  MP_RETURN_IF_ERROR(at_least_one("train.batch.accumulation", options.accumulation));
  MP_RETURN_IF_ERROR(at_least_one("data.sequence_length", options.sequence));
  if (options.pipeline > 1 && options.accumulation > kMaxMicroBatches) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.mesh.pipeline: takes at most ", kMaxMicroBatches,
                     " micro-batches in a step, and with ", options.AllRanks(), " ranks it is ",
                     options.accumulation,
                     ": take a larger train.batch.micro or more ranks (resources.min_ranks)"));
  }
  MP_RETURN_IF_ERROR(CheckSideBySide(options));
  MP_RETURN_IF_ERROR(at_least_one("resources.mesh.chunks", options.chunks));
  if (options.chunks > 1 && options.schedule != PipelineSchedule::kInterleaved) {
    return absl::InvalidArgumentError(
        "resources.mesh.chunks: is for resources.mesh.schedule: interleaved");
  }
  MP_RETURN_IF_ERROR(at_least_one("resources.mesh.context", options.context));
  if (options.world % options.context != 0 || options.sequence % options.context != 0) {
    return absl::InvalidArgumentError(absl::StrCat("resources.mesh.context: ", options.context,
                                                   " does not divide ", options.world,
                                                   " ranks, or not ", options.sequence, " tokens"));
  }
  MP_RETURN_IF_ERROR(at_least_one("resources.mesh.expert", options.expert));
  if (options.world % options.expert != 0) {
    return absl::InvalidArgumentError(absl::StrCat("resources.mesh.expert: ", options.expert,
                                                   " does not divide ", options.world, " ranks"));
  }
  if (options.expert > 1 && options.shard_ranks > 0) {
    return absl::InvalidArgumentError("resources.mesh.expert: is not for train.zero.group");
  }
  if (options.zero_stage < 0 || options.zero_stage > 3) {
    return absl::InvalidArgumentError(absl::StrCat("train.zero.stage: ", options.zero_stage,
                                                   " is not supported; expected 0 to 3"));
  }
  if (options.shard_ranks < 0 ||
      (options.shard_ranks > 0 && options.world % options.shard_ranks != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("train.zero.group: ", options.shard_ranks,
                                                   " does not divide the ", options.world,
                                                   " ranks"));
  }
  if (options.prefetch < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.zero.prefetch: ", options.prefetch, " is not at least 0"));
  }
  if (options.offload_optimizer && !StepsByElement(options.optimizer)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.offload.optimizer: ", options.offload_disk ? "nvme" : "host", " does not work with ",
        Name(options.optimizer), ": take ", OptimizersWith(&OptimizerFields::by_element, "or")));
  }
  MP_RETURN_IF_ERROR(CheckFewerBits(options));
  MP_RETURN_IF_ERROR(CheckFactors(options));
  MP_RETURN_IF_ERROR(CheckIslands(options));
  if (options.offload_disk && !options.offload_optimizer) {
    return absl::InvalidArgumentError("a state on disk is one that is offloaded");
  }
  if (options.averages && options.offload_optimizer) {
    return absl::InvalidArgumentError(
        "train.ema: the average lies beside an optimizer that is not offloaded: remove it, or take "
        "train.offload.optimizer: none");
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
