#include "engine/runtime/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/plan/planner.h"
#include "engine/runtime/training_session.h"

namespace milepost::runtime {
namespace {

// Steady time is reported here, never decided upon.
double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of the head whose kLossSums these are.
double MeanLoss(const double* sums) {
  return sums[graph::kLossSum] / std::max(sums[graph::kLossTargets], 1.0);
}

// The heads' weighted means over their valid targets. `sums`: kLossSums of each.
double MeanLoss(const std::vector<graph::LossHead>& heads, const double* sums) {
  double loss = 0;
  for (size_t head = 0; head < heads.size(); ++head) {
    loss += heads[head].weight * MeanLoss(sums + head * graph::kLossSums);
  }
  return loss;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Create(
    const v1::JobSpec& spec, const SessionOptions& options, comm::Communicator* communicator) {
  auto session = std::make_unique<TrainingSessionImpl>(spec, options, communicator);
  if (absl::Status status = session->Open(); !status.ok()) {
    communicator->Abort(status.message());
    return status;
  }
  return std::unique_ptr<TrainingSession>(std::move(session));
}

TrainingSessionImpl::TrainingSessionImpl(const v1::JobSpec& spec, const SessionOptions& options,
                                         comm::Communicator* communicator)
    : spec_(spec),
      options_(options),
      communicator_(communicator),
      schedule_(optim::ScheduleFromSpec(spec.train())),
      hyper_(optim::HyperFromSpec(spec.train().optimizer())),
      backend_(std::max(1, options.threads)) {
  state_.set_seed(spec.train().seed());
  state_.set_spec_digest(StateDigest(spec));
  state_.set_train_loss(std::numeric_limits<double>::quiet_NaN());
  state_.set_validation_loss(std::numeric_limits<double>::quiet_NaN());
  if (spec.train().precision() == v1::PRECISION_FP16) {
    scaler_.emplace(optim::LossScaleFromSpec(spec.train().loss_scale()));
    KeepLossScale();
  }
}

absl::Status TrainingSessionImpl::Open() {
  if (spec_.resources().ranks() != communicator_->world()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("resources.ranks is %d, but %d ranks have met", spec_.resources().ranks(),
                        communicator_->world()));
  }
  MP_ASSIGN_OR_RETURN(data_, OpenTrainingData(spec_));
  MP_RETURN_IF_ERROR(MakePlan());
  layout_ = {.micro_batch = plan_.options.micro_batch,
             .accumulation = plan_.options.accumulation,
             .rank = communicator_->rank(),
             .world = communicator_->world()};
  prefetcher_ = std::make_unique<data::Prefetcher>(
      data_.train, layout_, data::ForThreads(data_.threads, layout_.micro_batch));
  MP_ASSIGN_OR_RETURN(arena_, Arena::Allocate(plan_.arena_bytes));
  backend_.Attach(arena_->data(), communicator_);
  store_.emplace(plan_, plan_.train.graph, arena_->data(), communicator_);
  tensors_ = store_->tensors();
  statistics_.emplace(plan_, plan_.train.graph, arena_->data(),
                      static_cast<int32_t>(tensors_.size()));
  tensors_.insert(tensors_.end(), statistics_->tensors().begin(), statistics_->tensors().end());
  auto abort = [this](const absl::Status& status) { communicator_->Abort(status.message()); };
  MP_ASSIGN_OR_RETURN(train_, Executor::Create(plan_, plan_.train, &backend_, abort));
  MP_ASSIGN_OR_RETURN(evaluate_, Executor::Create(plan_, plan_.evaluate, &backend_, abort));
  MP_ASSIGN_OR_RETURN(train_inputs_,
                      HostInputs::Find(plan_, plan_.train, arena_->data(), *data_.train));
  if (data_.validation != nullptr) {
    MP_ASSIGN_OR_RETURN(evaluate_inputs_,
                        HostInputs::Find(plan_, plan_.evaluate, arena_->data(), *data_.validation));
  }
  scalars_ = reinterpret_cast<double*>(arena_->data() + plan_.buffers[plan_.scalars].offset);
  context_.seed = spec_.train().seed();
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::MakePlan() {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options,
                      plan::OptionsFromSpec(spec_, std::max(1, options_.threads)));
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanTraining(spec_, options));
  MP_ASSIGN_OR_RETURN(CpuBackend::MatmulWorkspace workspace, backend_.CheckMatmulWorkspace(plan_));
  if (!workspace.missing) return absl::OkStatus();
  options.min_matmul_workspace_bytes =
      std::max(options.min_matmul_workspace_bytes, workspace.needed);
  options.min_convolution_workspace_bytes = workspace.convolution;
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanTraining(spec_, options));
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::Ready(absl::string_view call) const {
  if (!failure_.ok()) return failure_;
  if (has_parameters_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, " needs InitializeParameters or FinishRestore before it"));
}

absl::Status TrainingSessionImpl::Fail(const absl::Status& status) {
  if (failure_.ok()) failure_ = status;
  communicator_->Abort(status.message());
  return status;
}

absl::Status TrainingSessionImpl::InitializeParameters() {
  MP_RETURN_IF_ERROR(failure_);
  backend_.UseThreads();
  store_->Initialize(spec_.train().seed());
  statistics_->Initialize();
  if (absl::Status status = store_->RebuildParameters(); !status.ok()) return Fail(status);
  prefetcher_->Start(state_.samples_consumed());
  has_parameters_ = true;
  return absl::OkStatus();
}

std::vector<StateInterval> TrainingSessionImpl::RestoreTargets() {
  std::vector<StateInterval> targets = store_->Held();
  const std::vector<StateInterval>& statistics = statistics_->intervals();
  targets.insert(targets.end(), statistics.begin(), statistics.end());
  return targets;
}

std::vector<StateInterval> TrainingSessionImpl::SaveSources() {
  std::vector<StateInterval> sources = store_->Saved();
  const std::vector<StateInterval>& statistics = statistics_->intervals();
  if (communicator_->rank() == 0) {
    sources.insert(sources.end(), statistics.begin(), statistics.end());
  }
  return sources;
}

absl::Status TrainingSessionImpl::FinishRestore(const v1::TrainerState& state) {
  MP_RETURN_IF_ERROR(failure_);
  if (state.seed() != spec_.train().seed()) {
    return Fail(absl::FailedPreconditionError(
        absl::StrFormat("the checkpoint's train.seed is %d, this spec's is %d: the data order "
                        "would change; use the checkpoint's seed",
                        state.seed(), spec_.train().seed())));
  }
  if (state.spec_digest() != state_.spec_digest()) {
    return Fail(absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint is of another model, optimizer type or data.sequence_length (its digest is "
        "%s, this spec's %s)",
        state.spec_digest(), state_.spec_digest())));
  }
  backend_.UseThreads();
  if (absl::Status status = store_->RebuildParameters(); !status.ok()) return Fail(status);
  state_ = state;
  // A checkpoint of another precision has none, and one for another precision keeps none.
  if (scaler_.has_value() && state.loss_scale() > 0) {
    scaler_->Restore(state.loss_scale(), state.loss_scale_clean_steps());
  }
  KeepLossScale();
  prefetcher_->Start(state_.samples_consumed());
  has_parameters_ = true;
  return absl::OkStatus();
}

void TrainingSessionImpl::KeepLossScale() {
  state_.set_loss_scale(scaler_.has_value() ? scaler_->scale() : 0);
  state_.set_loss_scale_clean_steps(scaler_.has_value() ? scaler_->clean_steps() : 0);
}

absl::StatusOr<StepReport> TrainingSessionImpl::Step(bool stop_requested) {
  MP_RETURN_IF_ERROR(Ready("Step"));
  const double start = Seconds();
  const double data_before = prefetcher_->wait_seconds();
  const StreamTimes before = train_->stream_times();
  backend_.UseThreads();
  context_.step = state_.step();
  context_.stop_requested = stop_requested;
  StepReport report;
  absl::Status status = RunMicroSteps();
  if (status.ok()) status = train_->Run(Section::kReduce, context_);
  if (status.ok()) status = Decide(&report);
  if (status.ok()) status = train_->Run(Section::kUpdate, context_);
  if (!status.ok()) return Fail(status);
  Advance(&report);
  report.seconds = Seconds() - start;
  report.data_wait_seconds = prefetcher_->wait_seconds() - data_before;
  const StreamTimes after = train_->stream_times();
  report.forward_seconds = after.forward - before.forward;
  report.backward_seconds = after.backward - before.backward;
  report.update_seconds = after.update - before.update;
  report.communication_wait_seconds = after.exposed - before.exposed;
  report.communication_seconds = after.communication - before.communication;
  return report;
}

absl::Status TrainingSessionImpl::RunMicroSteps() {
  for (int64_t a = 0; a < layout_.accumulation; ++a) {
    MP_ASSIGN_OR_RETURN(const data::MicroBatch* batch, prefetcher_->Next());
    if (a == 0) MP_RETURN_IF_ERROR(NormaliseLosses(*batch));
    train_inputs_.Copy(batch->fields);
    context_.first_micro_step = a == 0;
    context_.last_micro_step = a + 1 == layout_.accumulation;
    context_.first_sample = batch->first_sample;
    MP_RETURN_IF_ERROR(train_->Run(Section::kMicroStep, context_));
  }
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::NormaliseLosses(const data::MicroBatch& first) {
  std::array<double, graph::kMaxLosses> targets = {};
  const auto& heads = plan_.train.graph.losses;
  for (size_t head = 0; head < heads.size(); ++head) {
    targets[head] = static_cast<double>(first.step_targets[train_inputs_.TargetField(head)]);
  }
  if (data::TargetsVary(*data_.train)) {
    MP_RETURN_IF_ERROR(communicator_->AllReduce(absl::MakeSpan(targets)));
  } else {
    for (double& count : targets) count *= layout_.world;
  }
  for (size_t head = 0; head < heads.size(); ++head) {
    // A step without one valid target has a loss and gradients of 0.
    context_.gradient_factors[head] =
        static_cast<float>(LossScale() * heads[head].weight / std::max(targets[head], 1.0));
  }
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::Decide(StepReport* report) {
  // The gradients are those of the loss times this, until the update divides them.
  const double loss_scale = LossScale();
  const optim::ClipResult clip = optim::ClipByNorm(
      scalars_[plan::kNormScalar] / (loss_scale * loss_scale), spec_.train().clip_norm());
  const bool mendable = scaler_.has_value() && !scaler_->at_floor();
  if (!clip.finite && !mendable && spec_.train().on_nonfinite() == v1::ON_NONFINITE_FAIL) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "step %d: the gradient norm is not finite (%g) and train.on_nonfinite is fail",
        state_.step() + 1, clip.norm));
  }
  const double lr = schedule_.LrAt(state_.schedule_step());
  context_.skip_update = !clip.finite;
  context_.clip_factor = static_cast<float>(clip.scale / loss_scale);
  context_.learning_rate = static_cast<float>(lr);
  context_.beta1 = static_cast<float>(hyper_.beta1);
  context_.beta2 = static_cast<float>(hyper_.beta2);
  context_.epsilon = static_cast<float>(hyper_.epsilon);
  context_.weight_decay = static_cast<float>(hyper_.weight_decay);
  context_.momentum = static_cast<float>(hyper_.momentum);
  context_.nesterov = hyper_.nesterov;
  context_.update = state_.schedule_step() + 1;
  report->lr = lr;
  report->grad_norm = clip.norm;
  report->clipped_norm = clip.clipped_norm;
  report->skipped = !clip.finite;
  report->loss_scale = scaler_.has_value() ? loss_scale : 0;
  return absl::OkStatus();
}

void TrainingSessionImpl::Advance(StepReport* report) {
  report->tokens = layout_.GlobalBatch() * plan_.options.sequence;
  report->train_loss = MeanLoss(plan_.train.graph.losses, scalars_ + plan::LossScalar(0));
  for (int head = 0; head < plan_.loss_heads; ++head) {
    report->head_losses[head] = MeanLoss(scalars_ + plan::LossScalar(head));
  }
  report->stop_agreed = scalars_[plan::kStopScalar] > 0;
  report->data = data_.train->stats();
  state_.set_step(state_.step() + 1);
  state_.set_samples_consumed(state_.samples_consumed() + layout_.GlobalBatch());
  if (report->skipped) {
    state_.set_skipped_steps(state_.skipped_steps() + 1);
  } else {
    state_.set_schedule_step(state_.schedule_step() + 1);
  }
  state_.set_train_loss(report->train_loss);
  if (scaler_.has_value()) {
    scaler_->Update(/*overflowed=*/report->skipped);
    report->loss_scale_at_floor = scaler_->at_floor();
  }
  KeepLossScale();
  report->step = state_.step();
  report->skipped_steps = state_.skipped_steps();
}

absl::StatusOr<EvaluationReport> TrainingSessionImpl::Evaluate() {
  MP_RETURN_IF_ERROR(Ready("Evaluate"));
  if (data_.validation == nullptr) {
    return absl::FailedPreconditionError("data.validation is empty: there is nothing to evaluate");
  }
  backend_.UseThreads();
  const int64_t samples =
      std::min(spec_.train().validation().samples(), data_.validation->samples());
  const auto& heads = plan_.evaluate.graph.losses;
  const absl::Span<double> sums(scalars_ + plan::LossScalar(0), heads.size() * graph::kLossSums);
  std::fill(sums.begin(), sums.end(), 0.0);
  const int64_t turns = data::ValidationTurns(samples, layout_);
  for (int64_t turn = 0; turn < turns; ++turn) {
    if (absl::Status status = EvaluateTurn(samples, turn); !status.ok()) return Fail(status);
  }
  if (absl::Status status = communicator_->AllReduce(sums); !status.ok()) return Fail(status);
  EvaluationReport report;
  report.loss = MeanLoss(heads, sums.data());
  for (size_t head = 0; head < heads.size(); ++head) {
    const double* sum = &sums[head * graph::kLossSums];
    const double targets = sum[graph::kLossTargets];
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    report.heads.push_back({.name = heads[head].name,
                            .loss = targets > 0 ? MeanLoss(sum) : kNone,
                            .accuracy = targets > 0 ? sum[graph::kLossCorrect] / targets : kNone,
                            .targets = static_cast<int64_t>(sum[graph::kLossTargets])});
  }
  state_.set_validation_loss(report.loss);
  state_.set_validation_step(state_.step());
  return report;
}

absl::Status TrainingSessionImpl::EvaluateTurn(int64_t samples, int64_t turn) {
  const data::ValidationShare share = data::ValidationShareOf(samples, layout_, turn);
  // Where parameters are gathered, every rank must take part in every turn.
  if (share.count == 0 && !plan_.options.ShardsParameters()) return absl::OkStatus();
  MP_RETURN_IF_ERROR(evaluate_inputs_.FetchPadded(*data_.validation, share.first, share.count));
  StepContext context;
  context.first_micro_step = false;  // the sums were zeroed: some rank may have no first turn
  context.last_micro_step = false;   // both streams are joined after each turn
  return evaluate_->Run(Section::kMicroStep, context);
}

}  // namespace milepost::runtime
