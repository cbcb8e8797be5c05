#include "engine/runtime/cpu/cpu_step_engine.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/agreement.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/cpu/cpu_features.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/executor.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::runtime {
namespace {

class CpuEngine : public StepEngine {
 public:
  explicit CpuEngine(int threads) : backend_(threads) {}
  absl::Status Open(const StepEngineArguments& arguments, const OpWrapper& wrap);

  void UseThread() override { backend_.UseThreads(); }
  const plan::StepPlan& plan() const override { return plan_; }
  int64_t allocated_bytes() const override { return arena_->bytes(); }
  int64_t allocated_host_bytes() const override {
    return host_arena_.has_value() ? host_arena_->bytes() : 0;
  }
  char* mirror() override { return arena_->data(); }
  char* host_arena() override { return host_arena_.has_value() ? host_arena_->data() : nullptr; }
  StateDisk* disk() override { return disk_.get(); }
  absl::Status Upload(bool) override { return absl::OkStatus(); }
  absl::Status Download() override { return absl::OkStatus(); }

  absl::StatusOr<const HostInputs*> NextInputs() override { return &train_inputs_[next_inputs_]; }
  absl::Status MicroStep(const StepContext& context) override;
  absl::StatusOr<absl::Span<const double>> FinishStep(const StepContext& context) override;

  bool may_have_updated() const override { return updating_; }

  absl::Status ExchangeAverages(bool take) override {
    return exchange_->Run(Section::kMicroStep, {.take_averages = take});
  }
  absl::Status GatherExchanged() override {
    return gather_->Run(Section::kMicroStep, {.last_micro_step = false});
  }

  absl::Status KeepAnchors() override { return anchor_->Run(Section::kMicroStep, {}); }
  absl::Status OuterStep() override {
    updating_ = true;
    MP_RETURN_IF_ERROR(outer_->Run(Section::kMicroStep, {.last_micro_step = false}));
    updating_ = false;
    return absl::OkStatus();
  }

  absl::Status BeginEvaluation() override;
  absl::StatusOr<const HostInputs*> NextEvaluationInputs() override { return &evaluate_inputs_; }
  absl::Status EvaluateBatch(const StepContext& context) override {
    return evaluate_->Run(Section::kMicroStep, context);
  }
  absl::StatusOr<absl::Span<double>> FinishEvaluation() override { return scalars_; }

  StreamTimes stream_times() const override { return train_->stream_times(); }
  std::vector<OpKindTime> Times() const override { return train_->Times(); }

 private:
  absl::Status MakePlan(const v1::JobSpec& spec, int threads, int rank);

  // Declared in the order in which they refer to each other.
  CpuBackend backend_;
  plan::StepPlan plan_;
  std::optional<Arena> arena_;
  std::optional<Arena> host_arena_;  // where something is offloaded
  std::unique_ptr<StateDisk> disk_;  // where states are on disk
  absl::Span<double> scalars_;
  bool updating_ = false;
  std::vector<HostInputs> train_inputs_;  // of the micro-batches that a run of the program takes
  size_t next_inputs_ = 0;
  StepContext run_;             // of the first of those
  HostInputs evaluate_inputs_;  // where there is validation data
  std::unique_ptr<Executor> train_;
  std::unique_ptr<Executor> evaluate_;
  std::unique_ptr<Executor> exchange_;
  std::unique_ptr<Executor> gather_;
  std::unique_ptr<Executor> anchor_;
  std::unique_ptr<Executor> outer_;
};

// Tensor ranks compute the same beside each other, and so do all ranks with factors of gradients.
// Each keeps what it has computed: with other products, or other numbers of threads, they would
// drift apart.
absl::Status CheckSameProducts(int threads, comm::Communicator& communicator) {
  return Annotate(
      comm::CheckAgreement(communicator, {{"CPU", kernels::CpuDescription()},
                                          {"threads of a rank", absl::StrCat(threads)}}),
      "resources.mesh and train.powersgd need ranks that are alike: give "
      "resources.threads_per_rank, and hosts of one kind (resources.pool)");
}

class WrappingBackend : public Backend {
 public:
  WrappingBackend(Backend& backend, const OpWrapper& wrap) : backend_(backend), wrap_(wrap) {}

  absl::StatusOr<BoundOp> Bind(const plan::StepPlan& plan, const plan::Program& program,
                               const plan::PlannedOp& planned) override {
    MP_ASSIGN_OR_RETURN(BoundOp run, backend_.Bind(plan, program, planned));
    return wrap_(planned, std::move(run));
  }

 private:
  Backend& backend_;
  const OpWrapper& wrap_;
};

absl::Status CpuEngine::Open(const StepEngineArguments& arguments, const OpWrapper& wrap) {
  comm::Communicator* communicator = arguments.communicator;
  const data::TrainingData& data = arguments.data;
  MP_RETURN_IF_ERROR(MakePlan(arguments.spec, arguments.threads, communicator->rank()));
  if (plan_.options.ModelRanks() > 1 || plan_.options.powersgd_rank > 0) {
    MP_RETURN_IF_ERROR(CheckSameProducts(arguments.threads, *communicator));
  }
  MP_ASSIGN_OR_RETURN(arena_, Arena::Allocate(plan_.arena_bytes));
  if (plan_.host_arena_bytes > 0) {
    MP_ASSIGN_OR_RETURN(host_arena_, Arena::Allocate(plan_.host_arena_bytes));
  }
  if (plan_.options.offload_disk) {
    MP_ASSIGN_OR_RETURN(
        disk_, StateDisk::Open(plan_, arguments.state_folder, communicator->rank(), host_arena()));
  }
  const StageTransfers& transfers = arguments.transfers;
  backend_.Attach(arena_->data(), communicator, host_arena(), disk_.get(), transfers);
  auto abort = [communicator, transfers](const absl::Status& s) {
    AbortAll(communicator, transfers, s.message());
  };
  WrappingBackend wrapping(backend_, wrap);  // needed to bind alone
  Backend* const backend = wrap ? static_cast<Backend*>(&wrapping) : &backend_;
  MP_ASSIGN_OR_RETURN(train_, Executor::Create(plan_, plan_.train, backend, abort));
  MP_ASSIGN_OR_RETURN(evaluate_, Executor::Create(plan_, plan_.evaluate, &backend_, abort));
  MP_ASSIGN_OR_RETURN(exchange_, Executor::Create(plan_, plan_.exchange, &backend_, abort));
  MP_ASSIGN_OR_RETURN(gather_, Executor::Create(plan_, plan_.gather, &backend_, abort));
  MP_ASSIGN_OR_RETURN(anchor_, Executor::Create(plan_, plan_.anchor, &backend_, abort));
  MP_ASSIGN_OR_RETURN(outer_, Executor::Create(plan_, plan_.outer, &backend_, abort));
  const int context_rank = plan_.options.ContextRank(communicator->rank());
  for (int64_t micro_batch = 0; micro_batch < MicroBatchesOfRun(plan_); ++micro_batch) {
    MP_ASSIGN_OR_RETURN(train_inputs_.emplace_back(),
                        HostInputs::Find(plan_, plan_.train, arena_->data(), *data.train,
                                         micro_batch, context_rank));
  }
  if (data.validation != nullptr) {
    MP_ASSIGN_OR_RETURN(evaluate_inputs_,
                        HostInputs::Find(plan_, plan_.evaluate, arena_->data(), *data.validation,
                                         /*micro_batch=*/0, context_rank));
  }
  const plan::Buffer& scalars = plan_.buffers[plan_.scalars];
  scalars_ = {reinterpret_cast<double*>(arena_->data() + scalars.offset),
              static_cast<size_t>(scalars.bytes) / sizeof(double)};
  return absl::OkStatus();
}

absl::Status CpuEngine::MakePlan(const v1::JobSpec& spec, int threads, int rank) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, threads));
  options.stage = options.StageOf(rank);
  options.expert_rank = options.ExpertRank(rank);
  MP_ASSIGN_OR_RETURN(plan_, PlanOnCpu(spec, options, backend_));
  return absl::OkStatus();
}

// A run of the program takes one micro-batch or several, and begins as the first of them does.
absl::Status CpuEngine::MicroStep(const StepContext& context) {
  if (next_inputs_ == 0) run_ = context;
  if (++next_inputs_ < train_inputs_.size()) return absl::OkStatus();
  next_inputs_ = 0;
  run_.last_micro_step = context.last_micro_step;
  return train_->Run(Section::kMicroStep, run_);
}

absl::StatusOr<absl::Span<const double>> CpuEngine::FinishStep(const StepContext& context) {
  MP_RETURN_IF_ERROR(train_->Run(Section::kReduce, context));
  const optim::ClipResult clip = ClipOf(scalars_, context);
  StepContext update = context;
  update.skip_update = !clip.finite;
  update.clip_factor = static_cast<float>(clip.scale / context.loss_scale);
  updating_ = true;
  MP_RETURN_IF_ERROR(train_->Run(Section::kUpdate, update));
  if (disk_ != nullptr) MP_RETURN_IF_ERROR(disk_->AwaitAll());
  updating_ = false;
  return absl::Span<const double>(scalars_);
}

absl::Status CpuEngine::BeginEvaluation() {
  std::fill(scalars_.begin() + plan::LossScalar(0), scalars_.begin() + plan_.ReducedScalars(), 0.0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepEngine>> CpuStepEngine(const StepEngineArguments& arguments) {
  return WrappedCpuStepEngine(arguments, /*wrap=*/{});
}

absl::StatusOr<std::unique_ptr<StepEngine>> WrappedCpuStepEngine(
    const StepEngineArguments& arguments, const OpWrapper& wrap) {
  auto engine = std::make_unique<CpuEngine>(std::max(1, arguments.threads));
  MP_RETURN_IF_ERROR(engine->Open(arguments, wrap));
  return std::unique_ptr<StepEngine>(std::move(engine));
}

}  // namespace milepost::runtime
