// Internal to session.cc: the one implementation of TrainingSession.
#ifndef MILEPOST_ENGINE_RUNTIME_TRAINING_SESSION_H_
#define MILEPOST_ENGINE_RUNTIME_TRAINING_SESSION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/prefetcher.h"
#include "engine/optim/loss_scaler.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "engine/runtime/parameter_store.h"
#include "engine/runtime/session.h"
#include "engine/runtime/statistics_store.h"
#include "engine/runtime/step_engine.h"
#include "engine/runtime/training_data.h"

namespace milepost::runtime {

class TrainingSessionImpl : public TrainingSession {
 public:
  TrainingSessionImpl(const v1::JobSpec& spec, const SessionOptions& options,
                      comm::Communicator* communicator);
  // Everything that can fail.
  absl::Status Open();

  absl::Status InitializeParameters() override;
  const std::vector<v1::TensorInfo>& state_tensors() const override { return tensors_; }
  int state_parts() const override { return store_->parts(); }
  std::vector<StateInterval> RestoreTargets(int part) override;
  absl::Status StoreState(int part) override;
  absl::Status FinishRestore(const v1::TrainerState& state) override;
  bool state_is_whole() const override;
  absl::Status FetchState(int part) override;
  std::vector<StateInterval> SaveSources(int part) override;
  v1::TrainerState trainer_state() const override { return state_; }
  absl::StatusOr<StepReport> Step(bool stop_requested) override;
  absl::StatusOr<EvaluationReport> Evaluate() override;
  int64_t step() const override { return state_.step(); }
  const plan::StepPlan& plan() const override { return engine_->plan(); }
  int64_t allocated_bytes() const override { return engine_->allocated_bytes(); }
  int64_t allocated_host_bytes() const override { return engine_->allocated_host_bytes(); }
  std::string disk_description() const override;
  std::string choices() const override { return engine_->choices(); }
  int64_t beside_bytes() const override { return engine_->beside_bytes(); }
  std::vector<OpKindTime> op_times() const override { return engine_->Times(); }

 private:
  absl::Status Ready(absl::string_view call) const;
  const std::string& StateFolder() const;
  // FAILED_PRECONDITION, on every rank, where not all have the same data.
  absl::Status AgreeOnData();
  // Keeps `status` for every later call and lets no peer wait for this rank.
  absl::Status Fail(const absl::Status& status);
  // The initial or restored state goes where steps find it.
  absl::Status Start(bool initial);
  absl::Status UploadInitial();
  absl::Status UploadState();
  // Whether a part is the states of one group, on disk; the last never is.
  bool IsOnDisk(int part) const { return part + 1 < store_->parts(); }
  // What the context says of this step's update.
  void SetUpdate();
  absl::Status RunMicroSteps();
  // Of the step that is under way, or after which there is a validation.
  void Enter(Activity activity) {
    const int64_t step = state_.step() + (activity == Activity::kValidation ? 0 : 1);
    if (options_.activity != nullptr) options_.activity->Enter(activity, step);
  }
  // What ranks must know of the step's data before its first micro-step: the gradient factors, from
  // the valid targets of all, and which micro-steps have many documents on any.
  absl::Status AgreeOnData(const data::MicroBatch& first, const HostInputs& inputs);
  absl::Status Report(absl::Span<const double> scalars, StepReport* report);
  void Advance(absl::Span<const double> scalars, StepReport* report);
  // What the loss of this step's backward is multiplied by; 1 without a scaler.
  float LossScale() const { return scaler_.has_value() ? scaler_->scale() : 1.0F; }
  void KeepLossScale();
  // By turn of an evaluation: how many ranks have many documents in it.
  absl::StatusOr<std::vector<double>> AgreeOnTurns(int64_t samples);
  absl::Status EvaluateTurn(int64_t samples, int64_t turn, bool many_documents);
  bool ChangesStateInMicroSteps() const { return !statistics_->intervals().empty(); }

  const v1::JobSpec spec_;
  const SessionOptions options_;
  comm::Communicator* const communicator_;
  data::BatchLayout layout_;
  optim::Schedule schedule_;
  optim::OptimizerHyper hyper_;
  std::optional<optim::LossScaler> scaler_;  // precision fp16
  v1::TrainerState state_;

  TrainingData data_;
  std::unique_ptr<data::Prefetcher> prefetcher_;

  // Declared in the order in which they refer to each other.
  std::unique_ptr<StepEngine> engine_;
  std::optional<ParameterStore> store_;
  std::optional<StatisticsStore> statistics_;
  std::vector<v1::TensorInfo> tensors_;  // of both

  // By loss head the valid targets, then by micro-step how many ranks have many documents, then how
  // many have many targets.
  std::vector<double> agreed_;
  StepContext context_;
  bool has_parameters_ = false;
  bool in_micro_steps_ = false;  // that change the state
  absl::Status failure_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TRAINING_SESSION_H_
