#include "engine/runtime/cpu/cpu_backend.h"

#include <omp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/ops/convolution/convolution_cpu_kernel.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/workspace.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/randomness.h"

namespace milepost::runtime {
namespace {

const CpuOp& CpuOpOf(graph::OpKind kind) {
  static constexpr const CpuOp* kOps[] = {
#define MP_OP(kind, name) &ops::cpu::k##kind,
#include "engine/graph/op_kinds.inc"
#undef MP_OP
  };
  return *kOps[static_cast<size_t>(kind)];
}

}  // namespace

DropoutBinding::DropoutBinding(const Binding& binding, int64_t width)
    : p(binding.attributes().dropout),
      tag(binding.attributes().dropout_tag),
      elements_per_sample(binding.attributes().sequence * binding.plan.options.context * width),
      samples_before(binding.SamplesBefore()),
      own(binding.ElementsOfRows(binding.InputShape(0)[0], width)) {}

kernels::DropoutParams DropoutBinding::At(const StepContext& context) const {
  return {.p = static_cast<float>(p),
          .seed = context.seed,
          .stream = RandomStream(RandomPurpose::kDropout, tag),
          .step = static_cast<uint64_t>(context.step),
          .first_element = static_cast<uint64_t>(
              (context.first_sample + samples_before) * elements_per_sample + own.first),
          .run = static_cast<uint64_t>(own.run),
          .gap = static_cast<uint64_t>(own.gap)};
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
      const CpuOp& op = CpuOpOf(planned.op.kind);
      if (op.products != nullptr) {
        int64_t scratch = 0;
        for (const kernels::MatmulSpec& spec : op.products(plan, *program, planned.op)) {
          MP_ASSIGN_OR_RETURN(const size_t bytes, matmuls_->WorkspaceBytes(spec));
          scratch = std::max(scratch, static_cast<int64_t>(bytes));
        }
        result.needed = std::max(result.needed, scratch);
        const int64_t fixed =
            plan::BytesBeforeScratch(program->graph, plan.groups, planned.op, plan.options);
        result.missing |= scratch > 0 && planned.workspace_bytes < fixed + scratch;
      }
      if (op.convolution_bytes == nullptr) continue;
      MP_ASSIGN_OR_RETURN(const int64_t convolution,
                          op.convolution_bytes(program->graph, planned.op, *convolutions_));
      if (convolution <= planned.workspace_bytes) continue;
      result.missing = true;
      result.convolution = std::max(result.convolution, convolution);
    }
  }
  return result;
}

void CpuBackend::Attach(char* arena, comm::Communicator* communicator, char* host_arena,
                        StateDisk* disk, const StageTransfers& transfers) {
  transfers_ = transfers;
  arena_ = arena;
  host_arena_ = host_arena;
  disk_ = disk;
  communicator_ = communicator;
}

absl::StatusOr<BoundOp> CpuBackend::Bind(const plan::StepPlan& plan, const plan::Program& program,
                                         const plan::PlannedOp& planned) {
  MP_CHECK(arena_ != nullptr) << "Attach comes first";
  const int rank = communicator_ == nullptr ? 0 : communicator_->rank();
  const Binding b{{plan, program, planned, arena_, plan.options.DataRank(rank), host_arena_, disk_,
                   plan.options.TensorRank(rank), plan.options.IslandOf(rank)},
                  *matmuls_,
                  *convolutions_,
                  communicator_,
                  transfers_,
                  threads_};
  const auto bind = CpuOpOf(planned.op.kind).bind;
  if (bind != nullptr) return bind(b);
  return absl::UnimplementedError(
      absl::StrCat("the CPU has no kernel for ", graph::Name(planned.op.kind)));
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
