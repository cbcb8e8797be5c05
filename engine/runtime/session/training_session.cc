#include "engine/runtime/session/training_session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "engine/comm/agreement.h"
#include "engine/comm/communicator.h"
#include "engine/optim/average.h"
#include "engine/runtime/cpu/cpu_step_engine.h"
#include "engine/runtime/executor/shard_ranks.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::runtime {
namespace {

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
  auto session = absl::WrapUnique(new TrainingSession(spec, options, communicator));
  if (absl::Status status = session->Open(); !status.ok()) {
    AbortAll(communicator, options.transfers, status.message());
    return status;
  }
  return session;
}

TrainingSession::TrainingSession(const v1::JobSpec& spec, const SessionOptions& options,
                                 comm::Communicator* communicator)
    : spec_(spec),
      options_(options),
      communicator_(communicator),
      schedule_(optim::ScheduleFromSpec(spec.train())),
      hyper_(optim::HyperFromSpec(spec.train().optimizer())) {
  state_.set_seed(spec.train().seed());
  state_.set_spec_digest(StateDigest(spec));
  state_.set_train_loss(std::numeric_limits<double>::quiet_NaN());
  state_.set_validation_loss(std::numeric_limits<double>::quiet_NaN());
  if (spec.train().precision() == v1::PRECISION_FP16) {
    scaler_.emplace(optim::LossScaleFromSpec(spec.train().loss_scale()));
    KeepLossScale();
  }
}

absl::Status TrainingSession::Open() {
  if (spec_.resources().ranks() != communicator_->world()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("resources.ranks is %d, but %d ranks have met", spec_.resources().ranks(),
                        communicator_->world()));
  }
  MP_ASSIGN_OR_RETURN(data_, data::OpenTrainingData(spec_));
  MP_RETURN_IF_ERROR(AgreeOnData());
  const StepEngineFactory make_engine = options_.engine ? options_.engine : CpuStepEngine;
  MP_ASSIGN_OR_RETURN(engine_, make_engine({.spec = spec_,
                                            .threads = std::max(1, options_.threads),
                                            .data = data_,
                                            .communicator = communicator_,
                                            .device_communicator = options_.device_communicator,
                                            .transfers = options_.transfers,
                                            .state_folder = StateFolder(),
                                            .choices = options_.choices}));
  const plan::StepPlan& plan = engine_->plan();
  layout_ = {.micro_batch = plan.options.micro_batch,
             .accumulation = plan.options.accumulation,
             .rank = plan.options.SampleRank(communicator_->rank()),
             .world = plan.options.AllSampleRanks(),
             .islands = plan.options.islands};
  prefetcher_ = std::make_unique<data::Prefetcher>(
      data_.train, layout_, data::ForThreads(data_.threads, layout_.micro_batch));
  store_.emplace(plan, plan.train.graph, engine_->mirror(), communicator_, engine_->host_arena());
  tensors_ = store_->tensors();
  statistics_.emplace(plan, plan.train.graph, engine_->mirror(),
                      static_cast<int32_t>(tensors_.size()));
  tensors_.insert(tensors_.end(), statistics_->tensors().begin(), statistics_->tensors().end());
  statistics_->InitializeScalings();
  agreed_.resize(plan.train.graph.losses.size() + static_cast<size_t>(layout_.accumulation) + 1);
  context_.seed = spec_.train().seed();
  return absl::OkStatus();
}

// A host may have an older copy at the same path: all ranks say alike which have what.
absl::Status TrainingSession::AgreeOnData() {
  MP_ASSIGN_OR_RETURN(*state_.mutable_data(), FingerprintOf(data_));
  const v1::DataFingerprint& own = state_.data();
  const auto fact = [](int64_t samples, uint64_t value) {
    return absl::StrFormat("%d samples (fingerprint %016x)", samples, value);
  };
  MP_RETURN_IF_ERROR(comm::CheckAgreement(
      *communicator_, {{"training data", fact(own.train_samples(), own.train())},
                       {"validation data", fact(own.validation_samples(), own.validation())}}));
  for (const data::ValidationSet& set : data_.sets) {
    data::Fingerprint print;
    MP_RETURN_IF_ERROR(set.source->AddTo(&print));
    MP_RETURN_IF_ERROR(
        comm::CheckAgreement(*communicator_, {{absl::StrCat("data.validation_sets, ", set.name),
                                               fact(set.source->samples(), print.value())}}));
  }
  return absl::OkStatus();
}

const std::string& TrainingSession::StateFolder() const {
  const std::string& path = spec_.train().offload().path();
  return path.empty() ? options_.state_folder : path;
}

std::string TrainingSession::disk_description() const {
  const StateDisk* disk = engine_->disk();
  return disk == nullptr ? "" : disk->description();
}

absl::Status TrainingSession::Ready(absl::string_view call) const {
  if (!failure_.ok()) return failure_;
  if (has_parameters_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, " needs InitializeParameters or FinishRestore before it"));
}

absl::Status TrainingSession::Fail(const absl::Status& status) {
  Enter(Activity::kOther);
  if (failure_.ok()) failure_ = status;
  AbortAll(communicator_, options_.transfers, status.message());
  // So that the state is whole, if no parameters are.
  if (averages_taken_ && !exchanging_ && engine_->ExchangeAverages(false).ok()) {
    averages_taken_ = false;
  }
  return status;
}

absl::Status TrainingSession::UseAverages(bool take) {
  if (!plan().options.averages) return absl::OkStatus();
  exchanging_ = true;
  MP_RETURN_IF_ERROR(engine_->ExchangeAverages(take));
  exchanging_ = false;
  averages_taken_ = take;
  return engine_->GatherExchanged();
}

absl::Status TrainingSession::InitializeParameters() {
  MP_RETURN_IF_ERROR(failure_);
  engine_->UseThread();
  statistics_->Initialize();
  const plan::PlanOptions& options = engine_->plan().options;
  // Averages are no zeros, and nothing makes them on a device.
  if (!has_parameters_ && options.device == plan::DeviceKind::kCuda && !options.offload_optimizer &&
      !options.averages) {
    return Start(/*initial=*/true);
  }
  for (int part = 0; part < store_->parts(); ++part) {
    MP_RETURN_IF_ERROR(FetchState(part));  // zeros: padding stays that
    store_->Initialize(spec_.train().seed(), part);
    MP_RETURN_IF_ERROR(StoreState(part));
  }
  return Start(/*initial=*/false);
}

// A new device's memory is zeros: of a large model most of the state need not be sent. Most of what
// is not zeros the device makes itself; the rest any rank can make alone.
absl::Status TrainingSession::UploadInitial() {
  const plan::StepPlan& plan = engine_->plan();
  const uint64_t seed = spec_.train().seed();
  const auto drawn = [&](plan::BufferId buffer) -> std::optional<std::vector<DrawnValues>> {
    const bool of_statistics = buffer == plan.statistics || buffer == plan.scalings;
    if (of_statistics || store_->DrawnOnHost(buffer)) return std::nullopt;
    return store_->Drawn(seed, buffer);
  };
  const auto bytes = [&](plan::BufferId buffer, int64_t begin, int64_t bytes, char* at) {
    if (store_->DrawnOnHost(buffer)) return store_->WriteDrawn(seed, buffer, begin, bytes, at);
    std::memcpy(at, engine_->mirror() + plan.buffers[buffer].offset + begin,
                static_cast<size_t>(bytes));
  };
  return engine_->UploadInitial(drawn, bytes);
}

absl::Status TrainingSession::UploadState() {
  MP_RETURN_IF_ERROR(store_->RebuildParameters(engine_->disk()));
  return engine_->Upload(/*base=*/!has_parameters_ || base_given_);
}

absl::Status TrainingSession::Start(bool initial) {
  context_.new_scalings = statistics_->HasNewScalings();
  const absl::Status status = initial ? UploadInitial() : UploadState();
  if (!status.ok()) return Fail(status);
  prefetcher_->Start(state_.samples_consumed());
  has_parameters_ = true;
  round_began_ = false;
  base_given_ = false;
  return absl::OkStatus();
}

std::vector<StateInterval> TrainingSession::BaseTargets(int part) {
  base_given_ = true;
  return store_->HeldBase(part);
}

std::vector<StateInterval> TrainingSession::RestoreTargets(int part) {
  std::vector<StateInterval> targets = store_->Held(part);
  if (IsOnDisk(part)) return targets;
  const std::vector<StateInterval>& statistics = statistics_->intervals();
  targets.insert(targets.end(), statistics.begin(), statistics.end());
  return targets;
}

bool TrainingSession::state_is_whole() const {
  return has_parameters_ && !in_micro_steps_ && !averages_taken_ && !exchanging_ &&
         !engine_->may_have_updated();
}

absl::Status TrainingSession::StoreState(int part) {
  MP_RETURN_IF_ERROR(failure_);
  if (!IsOnDisk(part)) return absl::OkStatus();
  if (absl::Status status = engine_->disk()->Store(part); !status.ok()) return Fail(status);
  return absl::OkStatus();
}

absl::Status TrainingSession::FetchState(int part) {
  if (!state_is_whole()) MP_RETURN_IF_ERROR(failure_);
  engine_->UseThread();
  absl::Status status;
  if (IsOnDisk(part)) {
    status = engine_->disk()->Load(part);
  } else if (has_parameters_) {  // before that it is still on its way to the device
    status = engine_->Download();
  }
  return status.ok() ? status : Fail(status);
}

comm::RankSet TrainingSession::OwnDataRanks() const {
  return DataRanks(plan().options, communicator_->rank());
}

absl::Status TrainingSession::PrepareSave(int part) {
  MP_RETURN_IF_ERROR(FetchState(part));
  absl::Status status = store_->ShareDivided();
  // Once after a step: the mean of what is alike may be rounded to something else.
  if (status.ok() && errors_differ_) {
    status = store_->ShareErrors();
    if (status.ok()) status = engine_->UploadErrors();
  }
  errors_differ_ = false;
  return status.ok() ? status : Fail(status);
}

std::vector<StateInterval> TrainingSession::SaveSources(int part) {
  std::vector<StateInterval> sources = store_->Saved(part);
  if (IsOnDisk(part)) return sources;
  const std::vector<StateInterval>& statistics = statistics_->intervals();
  if (communicator_->rank() == 0) {
    sources.insert(sources.end(), statistics.begin(), statistics.end());
  }
  return sources;
}

absl::Status TrainingSession::FinishRestore(const v1::TrainerState& state) {
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
  engine_->UseThread();
  const v1::DataFingerprint data = state_.data();  // a fork may go on with others
  const uint64_t base = state_.base();
  state_ = state;
  *state_.mutable_data() = data;
  state_.set_base(base);
  // A checkpoint of another precision has none, and one for another precision keeps none.
  if (scaler_.has_value() && state.loss_scale() > 0) {
    scaler_->Restore(state.loss_scale(), state.loss_scale_clean_steps());
  }
  KeepLossScale();
  return Start(/*initial=*/false);
}

void TrainingSession::KeepLossScale() {
  state_.set_loss_scale(scaler_.has_value() ? scaler_->scale() : 0);
  state_.set_loss_scale_clean_steps(scaler_.has_value() ? scaler_->clean_steps() : 0);
}

absl::StatusOr<StepReport> TrainingSession::Step(bool stop_requested) {
  MP_RETURN_IF_ERROR(Ready("Step"));
  const double start = SteadySeconds();
  const double data_before = prefetcher_->wait_seconds();
  const StreamTimes before = engine_->stream_times();
  engine_->UseThread();
  context_.stop_requested = stop_requested;
  SetUpdate();
  if (absl::Status status = BeginRound(); !status.ok()) return Fail(status);
  // Running statistics move in every one of them.
  in_micro_steps_ = ChangesStateInMicroSteps();
  const bool compresses = plan().options.powersgd_rank > 0;
  errors_differ_ |= compresses && context_.step >= plan().options.powersgd_start;
  if (absl::Status status = RunMicroSteps(); !status.ok()) return Fail(status);
  Enter(Activity::kUpdate);
  absl::StatusOr<absl::Span<const double>> scalars = engine_->FinishStep(context_);
  Enter(Activity::kOther);
  if (!scalars.ok()) return Fail(scalars.status());
  StepReport report;
  if (absl::Status status = Report(*scalars, &report); !status.ok()) return Fail(status);
  Advance(*scalars, &report);
  double outer = 0;  // nearly all of it waiting for other islands, and for what they send
  if (plan().options.outer_every > 0) {
    const double begin = SteadySeconds();
    if (absl::Status status = EndRound(&report); !status.ok()) return Fail(status);
    if (report.of_all_ranks) outer = SteadySeconds() - begin;
  }
  in_micro_steps_ = false;
  // A step that is skipped has taught nothing.
  context_.new_scalings = context_.new_scalings && report.skipped;
  report.seconds = SteadySeconds() - start;
  report.data_wait_seconds = prefetcher_->wait_seconds() - data_before;
  const StreamTimes after = engine_->stream_times();
  report.forward_seconds = after.forward - before.forward;
  report.backward_seconds = after.backward - before.backward;
  report.update_seconds = after.update - before.update;
  report.communication_wait_seconds = after.exposed - before.exposed + outer;
  report.communication_seconds = after.communication - before.communication + outer;
  return report;
}

void TrainingSession::SetUpdate() {
  context_.step = state_.step();
  context_.loss_scale = LossScale();
  context_.clip_norm = spec_.train().clip_norm();
  context_.learning_rate = static_cast<float>(schedule_.LrAt(state_.schedule_step()));
  context_.beta1 = static_cast<float>(hyper_.beta1);
  context_.beta2 = static_cast<float>(hyper_.beta2);
  context_.beta3 = static_cast<float>(hyper_.beta3);
  context_.epsilon = static_cast<float>(hyper_.epsilon);
  context_.weight_decay = static_cast<float>(hyper_.weight_decay);
  context_.momentum = static_cast<float>(hyper_.momentum);
  context_.nesterov = hyper_.nesterov;
  context_.update = state_.schedule_step() + 1;
  if (!spec_.train().has_ema()) return;
  context_.average_weight =
      static_cast<float>(optim::AverageWeight(spec_.train().ema(), context_.update));
}

absl::Status TrainingSession::RunMicroSteps() {
  for (int64_t a = 0; a < layout_.accumulation; ++a) {
    Enter(Activity::kData);
    MP_ASSIGN_OR_RETURN(const data::MicroBatch* batch, prefetcher_->Next());
    Enter(Activity::kMicroStep);
    MP_ASSIGN_OR_RETURN(const HostInputs* inputs, engine_->NextInputs());
    if (a == 0) MP_RETURN_IF_ERROR(AgreeOnData(*batch, *inputs));
    inputs->Copy(batch->fields);
    context_.first_micro_step = a == 0;
    context_.last_micro_step = a + 1 == layout_.accumulation;
    context_.first_sample = batch->first_sample;
    context_.many_documents = agreed_[plan().train.graph.losses.size() + a] > 0;
    MP_RETURN_IF_ERROR(engine_->MicroStep(context_));
  }
  return absl::OkStatus();
}

absl::Status TrainingSession::AgreeOnData(const data::MicroBatch& first, const HostInputs& inputs) {
  const auto& heads = plan().train.graph.losses;
  const absl::Span<double> targets = absl::MakeSpan(agreed_).first(heads.size());
  agreed_.back() = 0;
  for (size_t head = 0; head < heads.size(); ++head) {
    const size_t field = inputs.TargetField(head);
    targets[head] = static_cast<double>(first.step.targets[field]);
    if (first.step.most_targets[field] > engine_->most_targets(head)) agreed_.back() = 1;
  }
  for (int64_t a = 0; a < layout_.accumulation; ++a) {
    agreed_[heads.size() + a] = first.step.documents[a] > engine_->most_documents() ? 1 : 0;
  }
  // Where there are documents, the targets in them vary. Context ranks know of the same.
  if (data::TargetsVary(*data_.train)) {
    if (plan().options.ContextRank(communicator_->rank()) > 0) absl::c_fill(targets, 0.0);
    MP_RETURN_IF_ERROR(
        communicator_->AllReduce(absl::MakeSpan(agreed_), comm::ReduceOp::kSum, OwnDataRanks()));
  } else {
    for (double& count : targets) count *= layout_.world / plan().options.islands;
  }
  context_.many_targets = agreed_.back() > 0;
  for (size_t head = 0; head < heads.size(); ++head) {
    // A step without one valid target has a loss and gradients of 0.
    context_.gradient_factors[head] =
        static_cast<float>(LossScale() * heads[head].weight / std::max(targets[head], 1.0));
  }
  return absl::OkStatus();
}

absl::Status TrainingSession::Report(absl::Span<const double> scalars, StepReport* report) {
  const optim::ClipResult clip = ClipOf(scalars, context_);
  const bool mendable = scaler_.has_value() && !scaler_->at_floor();
  if (!clip.finite && !mendable && spec_.train().on_nonfinite() == v1::ON_NONFINITE_FAIL) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "step %d: the gradient norm is not finite (%g) and train.on_nonfinite is fail",
        state_.step() + 1, clip.norm));
  }
  report->lr = schedule_.LrAt(state_.schedule_step());
  report->grad_norm = clip.norm;
  report->clipped_norm = clip.clipped_norm;
  report->skipped = !clip.finite;
  report->loss_scale = scaler_.has_value() ? context_.loss_scale : 0;
  return absl::OkStatus();
}

void TrainingSession::Advance(absl::Span<const double> scalars, StepReport* report) {
  report->tokens = layout_.GlobalBatch() * plan().options.sequence;
  const double* sums = &scalars[plan::LossScalar(0)];
  report->train_loss = MeanLoss(plan().train.graph.losses, sums);
  for (int head = 0; head < plan().loss_heads; ++head) {
    report->head_losses[head] = MeanLoss(sums + head * graph::kLossSums);
  }
  report->stop_agreed = scalars[plan::kStopScalar] > 0;
  report->data = data_.train->stats();
  state_.set_step(state_.step() + 1);
  state_.set_samples_consumed(state_.samples_consumed() + layout_.GlobalBatch());
  if (report->skipped) {
    state_.set_skipped_steps(state_.skipped_steps() + 1);
  }
  // Islands go by the same schedule, whichever of them skips a step.
  if (!report->skipped || plan().options.outer_every > 0) {
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

absl::StatusOr<EvaluationReport> TrainingSession::Evaluate() {
  MP_RETURN_IF_ERROR(Ready("Evaluate"));
  if (data_.validation == nullptr) {
    return absl::FailedPreconditionError("data.validation is empty: there is nothing to evaluate");
  }
  engine_->UseThread();
  absl::StatusOr<EvaluationReport> report = MeasureAverages();
  if (!report.ok()) return Fail(report.status());
  Enter(Activity::kOther);
  KeepValidation(*report);
  return report;
}

absl::StatusOr<EvaluationReport> TrainingSession::MeasureAverages() {
  MP_RETURN_IF_ERROR(UseAverages(true));
  MP_ASSIGN_OR_RETURN(EvaluationReport report, Measure(*data_.validation));
  for (const data::ValidationSet& set : data_.sets) {
    MP_ASSIGN_OR_RETURN(EvaluationReport measured, Measure(*set.source));
    int64_t targets = 0;
    for (const EvaluationReport::Head& head : measured.heads) targets += head.targets;
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    report.sets.push_back(
        {set.name, targets > 0 ? measured.loss : kNone, std::move(measured.heads)});
  }
  MP_RETURN_IF_ERROR(UseAverages(false));
  return report;
}

absl::StatusOr<EvaluationReport> TrainingSession::Measure(const data::SampleSource& source) {
  const int64_t samples = std::min(spec_.train().validation().samples(), source.samples());
  const auto& heads = plan().evaluate.graph.losses;
  MP_RETURN_IF_ERROR(engine_->BeginEvaluation());
  Enter(Activity::kData);
  MP_ASSIGN_OR_RETURN(const std::vector<double> many_documents, AgreeOnTurns(source, samples));
  for (size_t turn = 0; turn < many_documents.size(); ++turn) {
    const data::ValidationShare share =
        data::ValidationShareOf(samples, layout_, static_cast<int64_t>(turn));
    MP_RETURN_IF_ERROR(EvaluateTurn(source, share, many_documents[turn] > 0));
  }
  MP_ASSIGN_OR_RETURN(const absl::Span<double> scalars, engine_->FinishEvaluation());
  const absl::Span<double> sums =
      scalars.subspan(plan::LossScalar(0), heads.size() * graph::kLossSums);
  // What tensor ranks have alike counts once. All ranks then have the same losses, by which each
  // decides what all do together.
  if (plan().options.TensorRank(communicator_->rank()) > 0) absl::c_fill(sums, 0.0);
  MP_RETURN_IF_ERROR(communicator_->AllReduce(sums));
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
  return report;
}

void TrainingSession::KeepValidation(const EvaluationReport& report) {
  const bool again = state_.validation_step() == state_.step();  // after a recovery from memory
  state_.set_validation_loss(report.loss);
  state_.set_validation_step(state_.step());
  int64_t targets = 0;
  for (const EvaluationReport::Head& head : report.heads) targets += head.targets;
  if (again || targets == 0) return;
  // A loss that is no number is never the smallest.
  constexpr double kNone = std::numeric_limits<double>::infinity();
  if (report.loss < (state_.has_best_validation_loss() ? state_.best_validation_loss() : kNone)) {
    state_.set_best_validation_loss(report.loss);
    state_.set_validations_since_best(0);
  } else {
    state_.set_validations_since_best(state_.validations_since_best() + 1);
  }
}

absl::StatusOr<std::vector<double>> TrainingSession::AgreeOnTurns(const data::SampleSource& source,
                                                                  int64_t samples) {
  std::vector<double> many(static_cast<size_t>(data::ValidationTurns(samples, layout_)));
  const int64_t most = engine_->most_documents();
  if (most == std::numeric_limits<int64_t>::max()) return many;
  for (size_t turn = 0; turn < many.size(); ++turn) {
    const data::ValidationShare share =
        data::ValidationShareOf(samples, layout_, static_cast<int64_t>(turn));
    MP_ASSIGN_OR_RETURN(const int64_t documents, source.CountDocuments(share.first, share.count));
    // What is filled up with is a document each.
    many[turn] = documents + layout_.micro_batch - share.count > most ? 1 : 0;
  }
  MP_RETURN_IF_ERROR(
      communicator_->AllReduce(absl::MakeSpan(many), comm::ReduceOp::kSum, OwnDataRanks()));
  return many;
}

absl::Status TrainingSession::EvaluateTurn(const data::SampleSource& source,
                                           const data::ValidationShare& share,
                                           bool many_documents) {
  // Where parameters are gathered, or activations summed, handed on or sent to experts, every rank
  // must take part in every turn.
  const plan::PlanOptions& options = plan().options;
  const bool alone =
      !options.ShardsParameters() && options.ModelRanks() == 1 && options.expert == 1;
  if (share.count == 0 && alone) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const HostInputs* inputs, engine_->NextEvaluationInputs());
  Enter(Activity::kData);
  MP_RETURN_IF_ERROR(inputs->FetchPadded(source, share.first, share.count));
  Enter(Activity::kValidation);
  StepContext context;
  context.first_micro_step = false;  // the sums were zeroed: some rank may have no first turn
  context.last_micro_step = false;   // both streams are joined after each turn
  context.many_documents = many_documents;
  return engine_->EvaluateBatch(context);
}

}  // namespace milepost::runtime
