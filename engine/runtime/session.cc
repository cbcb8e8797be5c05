#include "engine/runtime/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/spec/model_sizes.h"
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
}

absl::Status TrainingSessionImpl::Open() {
  if (spec_.resources().ranks() != communicator_->world()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("resources.ranks is %d, but %d ranks have met", spec_.resources().ranks(),
                        communicator_->world()));
  }
  MP_RETURN_IF_ERROR(OpenData());
  MP_RETURN_IF_ERROR(MakePlan());
  layout_ = {.micro_batch = plan_.options.micro_batch,
             .accumulation = plan_.options.accumulation,
             .rank = communicator_->rank(),
             .world = communicator_->world()};
  prefetcher_ = std::make_unique<data::Prefetcher>(train_data_, layout_);
  MP_ASSIGN_OR_RETURN(arena_, Arena::Allocate(plan_.arena_bytes));
  backend_.Attach(arena_->data(), communicator_);
  store_.emplace(plan_, plan_.train.graph, arena_->data(), communicator_);
  auto abort = [this](const absl::Status& status) { communicator_->Abort(status.message()); };
  MP_ASSIGN_OR_RETURN(train_, Executor::Create(plan_, plan_.train, &backend_, abort));
  MP_ASSIGN_OR_RETURN(evaluate_, Executor::Create(plan_, plan_.evaluate, &backend_, abort));
  train_inputs_ = InputsOf(plan_.train);
  evaluate_inputs_ = InputsOf(plan_.evaluate);
  scalars_ = reinterpret_cast<double*>(arena_->data() + plan_.buffers[plan_.scalars].offset);
  context_.seed = spec_.train().seed();
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::OpenData() {
  const data::DatasetOptions options{.sequence_length = spec_.data().sequence_length(),
                                     .vocabulary = SizesOf(spec_.model()).vocabulary};
  std::vector<data::WeightedPath> paths;
  for (const v1::TokenSource& source : spec_.data().mixture()) {
    paths.push_back({source.path(), source.weight()});
  }
  if (paths.empty()) paths.push_back({spec_.data().train()});
  MP_ASSIGN_OR_RETURN(train_data_, data::TokenMixture::Open(paths, options, spec_.train().seed()));
  if (spec_.data().validation().empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(validation_data_,
                      data::TokenDataset::Open(spec_.data().validation(), options));
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::MakePlan() {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options,
                      plan::OptionsFromSpec(spec_, std::max(1, options_.threads)));
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanTraining(spec_, options));
  MP_ASSIGN_OR_RETURN(CpuBackend::MatmulWorkspace workspace, backend_.CheckMatmulWorkspace(plan_));
  if (!workspace.missing) return absl::OkStatus();
  options.min_matmul_workspace_bytes = workspace.needed;
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanTraining(spec_, options));
  return absl::OkStatus();
}

TrainingSessionImpl::Inputs TrainingSessionImpl::InputsOf(const plan::Program& program) const {
  auto at = [&](graph::ValueId id) {
    const plan::Place& place = program.places[id];
    return reinterpret_cast<int32_t*>(arena_->data() + plan_.buffers[place.buffer].offset +
                                      place.offset);
  };
  return {at(program.graph.tokens), at(program.graph.targets)};
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
  if (absl::Status status = store_->RebuildParameters(); !status.ok()) return Fail(status);
  prefetcher_->Start(state_.samples_consumed());
  has_parameters_ = true;
  return absl::OkStatus();
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
  prefetcher_->Start(state_.samples_consumed());
  has_parameters_ = true;
  return absl::OkStatus();
}

absl::StatusOr<StepReport> TrainingSessionImpl::Step(bool stop_requested) {
  MP_RETURN_IF_ERROR(Ready("Step"));
  const double start = Seconds();
  const double data_before = prefetcher_->wait_seconds();
  const double communication_before = train_->wait_seconds();
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
  report.communication_wait_seconds = train_->wait_seconds() - communication_before;
  return report;
}

absl::Status TrainingSessionImpl::RunMicroSteps() {
  // Training data has a valid target at every position.
  const int64_t targets = layout_.GlobalBatch() * plan_.options.sequence;
  context_.gradient_factor = static_cast<float>(1.0 / static_cast<double>(targets));
  for (int64_t a = 0; a < layout_.accumulation; ++a) {
    MP_ASSIGN_OR_RETURN(const data::MicroBatch* batch, prefetcher_->Next());
    std::memcpy(train_inputs_.tokens, batch->tokens.data(), batch->tokens.size() * sizeof(int32_t));
    std::memcpy(train_inputs_.targets, batch->targets.data(),
                batch->targets.size() * sizeof(int32_t));
    context_.first_micro_step = a == 0;
    context_.last_micro_step = a + 1 == layout_.accumulation;
    context_.first_sample = batch->first_sample;
    MP_RETURN_IF_ERROR(train_->Run(Section::kMicroStep, context_));
  }
  return absl::OkStatus();
}

absl::Status TrainingSessionImpl::Decide(StepReport* report) {
  const optim::ClipResult clip =
      optim::ClipByNorm(scalars_[plan::kNormScalar], spec_.train().clip_norm());
  if (!clip.finite && spec_.train().on_nonfinite() == v1::ON_NONFINITE_FAIL) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "step %d: the gradient norm is not finite (%g) and train.on_nonfinite is fail",
        state_.step() + 1, clip.norm));
  }
  const double lr = schedule_.LrAt(state_.schedule_step());
  context_.skip_update = !clip.finite;
  context_.clip_factor = static_cast<float>(clip.scale);
  context_.learning_rate = static_cast<float>(lr);
  context_.beta1 = static_cast<float>(hyper_.beta1);
  context_.beta2 = static_cast<float>(hyper_.beta2);
  context_.epsilon = static_cast<float>(hyper_.epsilon);
  context_.weight_decay = static_cast<float>(hyper_.weight_decay);
  context_.momentum = static_cast<float>(hyper_.momentum);
  context_.update = state_.schedule_step() + 1;
  report->lr = lr;
  report->grad_norm = clip.norm;
  report->clipped_norm = clip.clipped_norm;
  report->skipped = !clip.finite;
  return absl::OkStatus();
}

void TrainingSessionImpl::Advance(StepReport* report) {
  report->tokens = layout_.GlobalBatch() * plan_.options.sequence;
  report->train_loss = scalars_[plan::kLossScalar] / static_cast<double>(report->tokens);
  report->stop_agreed = scalars_[plan::kStopScalar] > 0;
  state_.set_step(state_.step() + 1);
  state_.set_samples_consumed(state_.samples_consumed() + layout_.GlobalBatch());
  if (report->skipped) {
    state_.set_skipped_steps(state_.skipped_steps() + 1);
  } else {
    state_.set_schedule_step(state_.schedule_step() + 1);
  }
  state_.set_train_loss(report->train_loss);
  report->step = state_.step();
  report->skipped_steps = state_.skipped_steps();
}

absl::StatusOr<EvaluationReport> TrainingSessionImpl::Evaluate() {
  MP_RETURN_IF_ERROR(Ready("Evaluate"));
  if (validation_data_ == nullptr) {
    return absl::FailedPreconditionError("data.validation is empty: there is nothing to evaluate");
  }
  backend_.UseThreads();
  const int64_t samples =
      std::min(spec_.train().validation().samples(), validation_data_->samples());
  scalars_[plan::kLossScalar] = 0;
  const int64_t turns = data::ValidationTurns(samples, layout_);
  for (int64_t turn = 0; turn < turns; ++turn) {
    if (absl::Status status = EvaluateTurn(samples, turn); !status.ok()) return Fail(status);
  }
  double loss = scalars_[plan::kLossScalar];
  if (absl::Status status = communicator_->AllReduce(absl::MakeSpan(&loss, 1)); !status.ok()) {
    return Fail(status);
  }
  EvaluationReport report;
  report.tokens = samples * plan_.options.sequence;
  report.loss = loss / static_cast<double>(report.tokens);
  state_.set_validation_loss(report.loss);
  state_.set_validation_step(state_.step());
  return report;
}

absl::Status TrainingSessionImpl::EvaluateTurn(int64_t samples, int64_t turn) {
  const data::ValidationShare share = data::ValidationShareOf(samples, layout_, turn);
  // Where parameters are gathered, every rank must take part in every turn.
  if (share.count == 0 && !plan_.options.ShardsParameters()) return absl::OkStatus();
  const auto filled = static_cast<size_t>(share.count * plan_.options.sequence);
  const auto rows = static_cast<size_t>(layout_.micro_batch * plan_.options.sequence);
  if (share.count > 0) {
    MP_RETURN_IF_ERROR(validation_data_->FetchInOrder(share.first, share.count,
                                                      {evaluate_inputs_.tokens, filled},
                                                      {evaluate_inputs_.targets, filled}));
  }
  std::fill(evaluate_inputs_.tokens + filled, evaluate_inputs_.tokens + rows, 0);
  std::fill(evaluate_inputs_.targets + filled, evaluate_inputs_.targets + rows, -1);
  StepContext context;
  context.first_micro_step = false;  // the sum was zeroed: some rank may have no first turn
  context.last_micro_step = false;   // both streams are joined after each turn
  return evaluate_->Run(Section::kMicroStep, context);
}

}  // namespace milepost::runtime
