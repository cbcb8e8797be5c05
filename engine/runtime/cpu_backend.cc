#include "engine/runtime/cpu_backend.h"

#include <omp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/cpu/convolution.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/plan/planner.h"
#include "engine/runtime/cpu_ops.h"
#include "engine/runtime/offload.h"
#include "engine/runtime/randomness.h"
#include "engine/runtime/state_disk.h"

namespace milepost::runtime {

using graph::OpKind;

DropoutBinding::DropoutBinding(const Binding& binding, int64_t width)
    : p(binding.attributes().dropout),
      tag(binding.attributes().dropout_tag),
      elements_per_sample(binding.attributes().sequence * width) {}

kernels::DropoutParams DropoutBinding::At(const StepContext& context) const {
  return {.p = static_cast<float>(p),
          .seed = context.seed,
          .stream = RandomStream(RandomPurpose::kDropout, tag),
          .step = static_cast<uint64_t>(context.step),
          .first_element = static_cast<uint64_t>(context.first_sample * elements_per_sample)};
}

CpuBackend::CpuBackend(int threads)
    : threads_(threads),
      matmuls_(std::make_unique<kernels::MatmulCache>()),
      convolutions_(std::make_unique<kernels::ConvolutionCache>()) {
  MP_CHECK(threads >= 1);
  UseThreads();
}

CpuBackend::~CpuBackend() = default;

void CpuBackend::UseThreads() const {
#ifdef MILEPOST_TSAN
  omp_set_num_threads(1);  // libgomp is not instrumented
#else
  omp_set_num_threads(threads_);
#endif
}

absl::StatusOr<CpuBackend::MatmulWorkspace> CpuBackend::CheckMatmulWorkspace(
    const plan::StepPlan& plan) {
  MatmulWorkspace result;
  for (const plan::Program* program : plan.Programs()) {
    for (const plan::PlannedOp& planned : program->ops) {
      int64_t scratch = 0;
      for (const kernels::MatmulSpec& spec : MatmulSpecsOf(plan, *program, planned.op)) {
        MP_ASSIGN_OR_RETURN(const size_t bytes, matmuls_->WorkspaceBytes(spec));
        scratch = std::max(scratch, static_cast<int64_t>(bytes));
      }
      result.needed = std::max(result.needed, scratch);
      const int64_t fixed = MatmulOpFixedBytes(plan, *program, planned.op);
      result.missing |= scratch > 0 && planned.workspace_bytes < fixed + scratch;
      MP_ASSIGN_OR_RETURN(const int64_t convolution,
                          ConvolutionWorkspaceBytes(program->graph, planned.op, *convolutions_));
      if (convolution <= planned.workspace_bytes) continue;
      result.missing = true;
      result.convolution = std::max(result.convolution, convolution);
    }
  }
  return result;
}

void CpuBackend::Attach(char* arena, comm::Communicator* communicator, char* host_arena,
                        StateDisk* disk) {
  arena_ = arena;
  host_arena_ = host_arena;
  disk_ = disk;
  communicator_ = communicator;
}

static absl::StatusOr<BoundOp> BindImageOp(const Binding& b) {
  switch (b.planned.op.kind) {
    case OpKind::kNormalizeImages:
      return BindNormalizeImages(b);
    case OpKind::kConvolution:
    case OpKind::kConvolutionBackwardData:
    case OpKind::kConvolutionBackwardWeights:
      return BindConvolution(b);
    case OpKind::kBatchNormSums:
      return BindBatchNormSums(b);
    case OpKind::kReduceStatistics:
      return BindReduceStatistics(b);
    case OpKind::kBatchNormStatistics:
      return BindBatchNormStatistics(b);
    case OpKind::kBatchNormRunning:
      return BindBatchNormRunning(b);
    case OpKind::kBatchNorm:
      return BindBatchNorm(b);
    case OpKind::kBatchNormBackwardSums:
      return BindBatchNormBackwardSums(b);
    case OpKind::kBatchNormBackward:
      return BindBatchNormBackward(b);
    case OpKind::kAverageStatistics:
      return BindAverageStatistics(b);
    case OpKind::kMaxPool:
      return BindMaxPool(b);
    case OpKind::kMaxPoolBackward:
      return BindMaxPoolBackward(b);
    case OpKind::kAveragePool:
    case OpKind::kAveragePoolBackward:
      return BindAveragePool(b);
    case OpKind::kClassifierLoss:
    case OpKind::kClassifierLossBackward:
      return BindClassifierLoss(b);
    default:
      return absl::UnimplementedError(
          absl::StrCat("the CPU has no kernel for ", graph::Name(b.planned.op.kind)));
  }
}

absl::StatusOr<BoundOp> CpuBackend::Bind(const plan::StepPlan& plan, const plan::Program& program,
                                         const plan::PlannedOp& planned) {
  MP_CHECK(arena_ != nullptr) << "Attach comes first";
  const int rank = communicator_ == nullptr ? 0 : communicator_->rank();
  const Binding b{{plan, program, planned, arena_, rank, host_arena_, disk_},
                  *matmuls_,
                  *convolutions_,
                  communicator_,
                  threads_};
  if (IsOffloadCopy(planned.op.kind)) return BindOffloadCopy(b);
  if (IsDiskTransfer(planned.op.kind)) return BindDiskTransfer(b);
  switch (planned.op.kind) {
    case OpKind::kEmbedding:
      return BindEmbedding(b);
    case OpKind::kLayerNorm:
      return BindLayerNorm(b);
    case OpKind::kResidualLayerNorm:
      return BindResidualLayerNorm(b);
    case OpKind::kQuantize:
      return BindQuantize(b);
    case OpKind::kGatherAmaxes:
      return BindGatherAmaxes(b);
    case OpKind::kUpdateScalings:
      return BindUpdateScalings(b);
    case OpKind::kLinear:
      return BindLinear(b);
    case OpKind::kGelu:
      return BindGelu(b);
    case OpKind::kDropout:
      return BindDropout(b);
    case OpKind::kAttention:
      return BindAttention(b);
    case OpKind::kCachedAttention:
      return BindCachedAttention(b);
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return BindLmHeadLoss(b);
    case OpKind::kLmHeadLogits:
      return BindLmHeadLogits(b);
    case OpKind::kEmbeddingBackward:
      return BindEmbeddingBackward(b);
    case OpKind::kLayerNormBackward:
    case OpKind::kResidualLayerNormBackward:
      return BindLayerNormBackward(b);
    case OpKind::kLinearBackwardInput:
      return BindLinearBackwardInput(b);
    case OpKind::kLinearBackwardWeight:
      return BindLinearBackwardWeight(b);
    case OpKind::kGeluBackward:
      return BindGeluBackward(b);
    case OpKind::kAttentionBackward:
      return BindAttentionBackward(b);
    case OpKind::kReduceGradients:
      return BindReduceGradients(b);
    case OpKind::kRoundGradients:
      return BindRoundGradients(b);
    case OpKind::kGradNorm:
      return BindGradNorm(b);
    case OpKind::kReduceScalars:
      return BindReduceScalars(b);
    case OpKind::kOptimizer:
      return AfterItsState(b, BindOptimizer(b));
    case OpKind::kGatherParameters:
      return BindGatherParameters(b);
    case OpKind::kReduceReplicas:
    case OpKind::kReduceUpdateNorms:
    case OpKind::kGatherUpdates:
    case OpKind::kScatterUpdates:
      return BindCall(b);
    case OpKind::kUpdateNorms:
      return BindUpdateNorms(b);
    case OpKind::kMuonMomentum:
      return BindMuonMomentum(b);
    case OpKind::kOrthogonalize:
      return BindOrthogonalize(b);
    case OpKind::kRmsNorm:
      return BindRmsNorm(b);
    case OpKind::kResidualRmsNorm:
      return BindResidualRmsNorm(b);
    case OpKind::kRmsNormBackward:
      return BindRmsNormBackward(b);
    case OpKind::kSwiGlu:
      return BindSwiGlu(b);
    case OpKind::kSwiGluBackward:
      return BindSwiGluBackward(b);
    case OpKind::kQkNorm:
      return BindQkNorm(b);
    case OpKind::kQkNormBackward:
      return BindQkNormBackward(b);
    case OpKind::kRopeTable:
      return BindRopeTable(b);
    case OpKind::kRope:
    case OpKind::kRopeBackward:
      return BindRope(b);
    default:
      return BindImageOp(b);
  }
}

absl::StatusOr<plan::StepPlan> PlanOnCpu(const v1::JobSpec& spec, plan::PlanOptions options,
                                         CpuBackend& backend) {
  MP_ASSIGN_OR_RETURN(plan::StepPlan plan, plan::PlanTraining(spec, options));
  MP_ASSIGN_OR_RETURN(CpuBackend::MatmulWorkspace workspace, backend.CheckMatmulWorkspace(plan));
  if (!workspace.missing) return plan;
  options.min_matmul_workspace_bytes =
      std::max(options.min_matmul_workspace_bytes, workspace.needed);
  options.min_convolution_workspace_bytes = workspace.convolution;
  return plan::PlanTraining(spec, options);
}

}  // namespace milepost::runtime
