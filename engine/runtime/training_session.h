// Internal to session.cc: the one implementation of TrainingSession.
#ifndef MILEPOST_ENGINE_RUNTIME_TRAINING_SESSION_H_
#define MILEPOST_ENGINE_RUNTIME_TRAINING_SESSION_H_

#include <memory>
#include <optional>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/prefetcher.h"
#include "engine/optim/loss_scaler.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/cpu_backend.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/host_inputs.h"
#include "engine/runtime/parameter_store.h"
#include "engine/runtime/session.h"
#include "engine/runtime/statistics_store.h"
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
  std::vector<StateInterval> RestoreTargets() override;
  absl::Status FinishRestore(const v1::TrainerState& state) override;
  std::vector<StateInterval> SaveSources() override;
  v1::TrainerState trainer_state() const override { return state_; }
  absl::StatusOr<StepReport> Step(bool stop_requested) override;
  absl::StatusOr<EvaluationReport> Evaluate() override;
  int64_t step() const override { return state_.step(); }
  const plan::StepPlan& plan() const override { return plan_; }
  int64_t allocated_bytes() const override { return arena_->bytes(); }
  std::vector<OpKindTime> op_times() const override { return train_->Times(); }

 private:
  absl::Status MakePlan();
  absl::Status Ready(absl::string_view call) const;
  // Keeps `status` for every later call and lets no peer wait for this rank.
  absl::Status Fail(const absl::Status& status);
  absl::Status RunMicroSteps();
  // The step's gradient factors, from its valid targets over all ranks.
  absl::Status NormaliseLosses(const data::MicroBatch& first);
  // Decides about the update from the reduced scalars.
  absl::Status Decide(StepReport* report);
  void Advance(StepReport* report);
  // What the loss of this step's backward is multiplied by; 1 without a scaler.
  float LossScale() const { return scaler_.has_value() ? scaler_->scale() : 1.0F; }
  void KeepLossScale();
  absl::Status EvaluateTurn(int64_t samples, int64_t turn);

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
  CpuBackend backend_;
  plan::StepPlan plan_;
  std::optional<Arena> arena_;
  std::optional<ParameterStore> store_;
  std::optional<StatisticsStore> statistics_;
  std::vector<v1::TensorInfo> tensors_;  // of both
  std::unique_ptr<Executor> train_;
  std::unique_ptr<Executor> evaluate_;

  HostInputs train_inputs_;
  HostInputs evaluate_inputs_;  // where there is validation data
  double* scalars_ = nullptr;
  StepContext context_;
  bool has_parameters_ = false;
  absl::Status failure_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TRAINING_SESSION_H_
