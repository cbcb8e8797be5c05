// PlanOptions of a job's spec.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"
#include "engine/optim/batch.h"
#include "engine/plan/passes/vocabulary_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/workspace.h"

namespace milepost::plan {
namespace {

// INVALID_ARGUMENT for one that a later version has: nothing else is trained in its place.
absl::StatusOr<Optimizer> OptimizerOf(v1::OptimizerSpec::Type type) {
  switch (type) {
#define MP_OPTIMIZER(name, spec_type)       \
  case v1::OptimizerSpec::TYPE_##spec_type: \
    return Optimizer::k##name;
#include "engine/optim/optimizers.inc"
#undef MP_OPTIMIZER
    case v1::OptimizerSpec::TYPE_UNSPECIFIED:
      return Optimizer::kAdamW;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "train.optimizer.type: this version does not know number ", static_cast<int>(type)));
  }
}

Recompute RecomputeOf(v1::Recompute recompute) {
  switch (recompute) {
    case v1::RECOMPUTE_SELECTIVE:
      return Recompute::kSelective;
    case v1::RECOMPUTE_FULL:
      return Recompute::kFull;
    case v1::RECOMPUTE_BUDGET:
      return Recompute::kBudget;
    default:
      return Recompute::kNone;
  }
}

DType ComputeDType(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_FP32:
      return DType::kF32;
    case v1::PRECISION_FP16:
      return DType::kF16;
    default:
      return DType::kBf16;
  }
}

optim::BatchRequest RequestOf(const v1::BatchSpec& batch) {
  optim::BatchRequest request;
  if (batch.has_global()) request.global = batch.global();
  if (batch.has_micro()) request.micro = batch.micro();
  if (batch.has_accumulation()) request.accumulation = batch.accumulation();
  return request;
}

absl::Status SetMesh(const v1::ResourceSpec& resources, PlanOptions& options) {
  const int ranks = resources.ranks();
  if (ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.ranks: ", ranks, " is not at least 1"));
  }
  options.device =
      resources.device() == v1::DEVICE_KIND_CUDA ? DeviceKind::kCuda : DeviceKind::kCpu;
  options.tensor = TensorRanks(resources);
  options.context = ContextRanks(resources);
  options.expert = ExpertRanks(resources);
  options.pipeline = PipelineStages(resources);
  options.schedule = ScheduleOf(resources.mesh().schedule());
  options.chunks = PipelineChunks(resources);
  const int of_model = options.tensor * options.pipeline * options.context;
  if (options.tensor < 1 || options.pipeline < 1 || ranks % of_model != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.mesh: ", of_model, " ranks of a model do not divide ", ranks, " ranks"));
  }
  options.world = ranks / (options.tensor * options.pipeline);
  return absl::OkStatus();
}

DType Bf16If(bool bf16) { return bf16 ? DType::kBf16 : DType::kF32; }

void SetTypes(const v1::JobSpec& spec, PlanOptions& options) {
  const v1::TrainSpec& train = spec.train();
  const v1::OptimizerSpec& optimizer = train.optimizer();
  options.compute_dtype = ComputeDType(train.precision());
  options.fp8 = train.precision() == v1::PRECISION_FP8;
  options.nf4_base = spec.model().lora().quantize_base() == v1::BASE_QUANTIZATION_NF4;
  options.grad_reduce = Bf16If(train.grad_reduce() == v1::GRAD_REDUCE_BF16);
  options.grad_dtype = Bf16If(train.grad_dtype() == v1::GRAD_DTYPE_BF16);
  options.state_dtype = Bf16If(optimizer.state_dtype() == v1::STATE_DTYPE_BF16);
  options.orthogonalization = Bf16If(optimizer.orthogonalization() == v1::ORTHOGONALIZATION_BF16);
  options.masters = optimizer.master() != v1::MASTER_DTYPE_NONE;
  options.frozen_masters = !spec.model().has_lora();
}

// After the mesh, which is that of all ranks.
absl::Status SetIslands(const v1::JobSpec& spec, PlanOptions& options) {
  if (!spec.train().has_sync()) return absl::OkStatus();
  options.islands = Islands(spec);
  const int of_model = options.context * options.islands;
  if (options.world % of_model != 0) {
    return absl::InvalidArgumentError(absl::StrCat("train.sync.islands: ", options.islands,
                                                   " do not divide ",
                                                   options.world / options.context, " data ranks"));
  }
  options.world /= options.islands;
  const v1::OuterOptimizerSpec& outer = spec.train().sync().outer_optimizer();
  options.outer_every = spec.train().sync().every();
  options.outer_lr = outer.lr();
  options.outer_momentum = outer.momentum();
  options.outer_nesterov = outer.nesterov();
  return absl::OkStatus();
}

void SetTraining(const v1::JobSpec& spec, PlanOptions& options) {
  const v1::TrainSpec& train = spec.train();
  options.zero_stage = train.zero().stage();
  options.shard_ranks = train.zero().group();
  options.prefetch = train.zero().prefetch();
  options.recompute = RecomputeOf(train.recompute());
  options.recompute_budget = train.recompute_budget();
  options.fuse_gelu = options.device == DeviceKind::kCuda;
  options.exact = train.determinism() != v1::DETERMINISM_FAST;
  options.powersgd_rank = train.powersgd().rank();
  options.powersgd_start = train.powersgd().start_step();
  options.powersgd_warm = train.powersgd().warm_start();
  options.averages = train.has_ema();
  options.sequence = spec.data().sequence_length();
  options.documents = spec.data().has_document_separator() || spec.data().has_padding();
  options.segments = spec.data().has_segment_separator();
  options.dpo_beta = train.has_dpo() ? train.dpo().beta() : 0;
  options.dpo_label_smoothing = train.dpo().label_smoothing();
  options.offload_optimizer = train.offload().optimizer() > v1::OFFLOAD_TARGET_NONE;
  options.offload_disk = train.offload().optimizer() == v1::OFFLOAD_TARGET_NVME;
  options.offload_activations = train.offload().activations();
  if (spec.checkpoint().redundancy() > 0) {
    // Two of its own, by turns, and two of another rank's; after a restart one more of each, of
    // the attempt before.
    options.state_copies = options.world > 1 ? 6 : 3;
  }
}

void SetMatmulReserve(const ModelSizes& model, PlanOptions& options) {
  const int64_t rows = options.micro_batch * options.OwnSequence();
  const int64_t chunk_rows =
      LmHeadChunkRows(rows, model.vocabulary, options.compute_dtype, options.LmHeadChunkBytes());
  // Tensor ranks divide the vocabulary: each has fewer columns of more rows at once.
  options.min_matmul_workspace_bytes = MatmulWorkspaceReserve(
      options.threads, options.compute_dtype, std::min(chunk_rows * options.tensor, rows),
      model.width,
      options.tensor == 1 ? model.vocabulary : VocabularyRows(model.vocabulary, options.tensor));
}

}  // namespace

PipelineSchedule ScheduleOf(v1::PipelineSchedule schedule) {
  switch (schedule) {
    case v1::PIPELINE_SCHEDULE_ZERO_BUBBLE:
      return PipelineSchedule::kZeroBubble;
    case v1::PIPELINE_SCHEDULE_INTERLEAVED:
      return PipelineSchedule::kInterleaved;
    default:
      return PipelineSchedule::kOneForwardOneBackward;
  }
}

absl::StatusOr<PlanOptions> OptionsFromSpec(const v1::JobSpec& spec, int threads) {
  PlanOptions options;
  MP_RETURN_IF_ERROR(SetMesh(spec.resources(), options));
  MP_RETURN_IF_ERROR(SetIslands(spec, options));
  MP_ASSIGN_OR_RETURN(
      const optim::BatchTriple triple,
      optim::DeriveBatch(RequestOf(spec.train().batch()), options.AllSampleRanks()));
  MP_ASSIGN_OR_RETURN(options.optimizer, OptimizerOf(spec.train().optimizer().type()));
  options.micro_batch = triple.micro;
  options.accumulation = triple.accumulation;
  // Another number of ranks may have another accumulation than was checked.
  if (options.pipeline == 1) {
    options.side_by_side =
        std::gcd(options.accumulation, int64_t{SideBySide(spec.train().batch())});
  }
  SetTypes(spec, options);
  SetTraining(spec, options);
  options.threads = threads;
  SetMatmulReserve(SizesOf(spec.model()), options);
  return options;
}

}  // namespace milepost::plan
