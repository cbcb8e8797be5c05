// One rank's training: plan, arena, data, executor and optimizer behind a step-by-step interface.
// No gRPC, no processes: worker/trainer puts those around it; tests run several in one process over
// comm::InProcessGroup.
//
//   MP_ASSIGN_OR_RETURN(auto session, TrainingSession::Create(spec, {.rank = r}, communicator));
//   MP_RETURN_IF_ERROR(session->InitializeParameters());  // or fill RestoreTargets, FinishRestore
//   while (session->step() < spec.train().steps()) {
//     MP_ASSIGN_OR_RETURN(StepReport report, session->Step(stop_requested));
//     if (report.stop_agreed) break;  // every rank sees it at the same step
//   }
//
// Not thread-safe: one thread drives it. All but Create, the accessors and SaveSources are
// collective: every rank calls them in the same order. They block on peers; a lost peer gives
// UNAVAILABLE, DEADLINE_EXCEEDED or ABORTED (comm::IsPeerLost). After any error of theirs, which
// also aborts the communicator so that no peer waits for this rank, only destruction is allowed. No
// allocation, lock, system call or log line of ours inside a step (collectives and data prefetch
// have their own threads).
#ifndef MILEPOST_ENGINE_RUNTIME_SESSION_TRAINING_SESSION_H_
#define MILEPOST_ENGINE_RUNTIME_SESSION_TRAINING_SESSION_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "engine/data/dataset.h"
#include "engine/data/prefetcher.h"
#include "engine/data/sample_source.h"
#include "engine/data/training/training_data.h"
#include "engine/graph/graph.h"
#include "engine/optim/loss_scaler.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/op_time.h"
#include "engine/runtime/executor/state_interval.h"
#include "engine/runtime/executor/step_engine.h"
#include "engine/runtime/session/activity.h"
#include "engine/runtime/session/parameter_store.h"
#include "engine/runtime/session/statistics_store.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::comm {
class Communicator;
struct RankSet;
}  // namespace milepost::comm

namespace milepost::runtime {

struct SessionOptions {
  int threads = 1;  // OpenMP threads of this rank
  // What it runs on (executor/step_engine.h); none: the CPU.
  StepEngineFactory engine;
  comm::Communicator* device_communicator = nullptr;  // as StepEngineArguments has it
  StageTransfers transfers;                           // likewise
  // For state on disk where the spec names no train.offload.path; there already.
  std::string state_folder;
  // Of an earlier session of the job (TrainingSession::choices); rank 0's counts.
  std::string choices;
  ActivityBoard* activity = nullptr;  // outlives the session; what Step and Evaluate do goes there
};

struct StepReport {
  int64_t step = 0;  // optimizer steps done, this one included
  // The mean over the global batch's valid targets, nats; of several heads the sum of their means,
  // each times its weight.
  double train_loss = 0;
  // Those means, in the order of plan().train.graph.losses; further ones are 0.
  std::array<double, graph::kMaxLosses> head_losses = {};
  double lr = 0;
  double grad_norm = 0;     // before clipping, global; of the gradients without the loss scale
  double clipped_norm = 0;  // after
  bool skipped = false;     // non-finite norm: nothing was updated, the schedule did not advance
  double loss_scale = 0;    // precision fp16: what this backward's loss was multiplied by; else 0
  bool loss_scale_at_floor = false;  // after this step: a further overflow cannot lower it
  int64_t skipped_steps = 0;         // so far
  int64_t tokens = 0;                // of the global batch
  double seconds = 0;                // wall time of this step
  double data_wait_seconds = 0;
  // Where `seconds` went, but for what is smaller: data_wait, forward, backward, update and
  // communication_wait follow each other; the rest of communication was hidden behind them.
  double forward_seconds = 0;
  double backward_seconds = 0;            // with what is made once more
  double update_seconds = 0;              // norm, clipping, optimizer
  double communication_wait_seconds = 0;  // compute stream waiting for the communication stream
  double communication_seconds = 0;       // of that stream, waiting for other ranks included
  bool stop_agreed = false;  // some rank asked to stop: every rank stops after this step
  // All ranks have the same report but for times and data. With train.sync that is so where an
  // outer step has followed: losses and norms are the islands' means then. Between two of them a
  // report is of the rank's own island, and ranks do not stop.
  bool of_all_ranks = true;
  data::SourceStats data;  // of this rank's training data, since the session was created
};

struct EvaluationReport {
  struct Head {
    std::string name;     // of the loss head: "lm"
    double loss = 0;      // mean over valid targets, nats; e^loss is the perplexity
    double accuracy = 0;  // share of the valid targets that have the largest logit
    int64_t targets = 0;
  };
  double loss = 0;  // the heads', weighted as in training
  std::vector<Head> heads;
  struct Set;
  std::vector<Set> sets;  // data.validation_sets
};
struct EvaluationReport::Set {
  std::string name;
  double loss = 0;
  std::vector<Head> heads;
};

class TrainingSession {
 public:
  // `spec` is normalised; its resources.ranks is the communicator's world (INVALID_ARGUMENT
  // otherwise). `communicator` must outlive the session. Opens the data (INVALID_ARGUMENT /
  // NOT_FOUND with the path), plans, allocates one arena (RESOURCE_EXHAUSTED with the figures).
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Create(const v1::JobSpec& spec,
                                                                 const SessionOptions& options,
                                                                 comm::Communicator* communicator);
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;

  // From the spec's seed: the same values at any world size. Collective.
  absl::Status InitializeParameters();

  // ---- state in and out ----
  // Names, kinds ("master", "m", "v", "ema", "error", "statistic", "factor", "scaling"), dtypes and
  // global shapes; the same on every rank.
  const std::vector<v1::TensorInfo>& state_tensors() const { return tensors_; }
  // State that lies on disk comes in and goes out in parts, one after the other by the same memory;
  // other state is one part, 0.
  int state_parts() const { return store_->parts(); }
  // What the adapters of model.lora adapt: no part of the state, and whoever restores that gives
  // this too. Names, kind "master", dtypes and global shapes; none: there are no adapters.
  const std::vector<v1::TensorInfo>& base_tensors() const { return store_->base_tensors(); }
  // Its intervals of a part, to be filled like RestoreTargets. Of what is not filled the next
  // FinishRestore makes what InitializeParameters does only where that has just been called.
  std::vector<StateInterval> BaseTargets(int part);
  // Says which weights these are (v1::TrainerState::base); kept in trainer_state().
  void SetBase(uint64_t fingerprint) { state_.set_base(fingerprint); }
  // train.ema: the averages become the masters that a restore has put there. To be called before
  // FinishRestore where it has brought masters alone. Local.
  void StartAverages() { store_->StartAverages(); }
  // The intervals of a part that this rank must be given by a restore, sorted by tensor. For each
  // part FetchState, fill all of them (or some, where the rest is to stay as InitializeParameters
  // has made it), and StoreState; then FinishRestore, before the first Step.
  std::vector<StateInterval> RestoreTargets(int part);
  // Takes what a restore has put there. Blocks where it goes to disk.
  absl::Status StoreState(int part);
  // FAILED_PRECONDITION when the state does not belong to the spec's model, optimizer kind, seed
  // and sequence length. It may be of other data (CheckSameData): trainer_state() keeps what is
  // there now. Collective: rebuilds the compute-dtype parameters (all-gather at stages 1 and 2).
  absl::Status FinishRestore(const v1::TrainerState& state);
  // Whether the state is that of step(), also after a failure: FetchState may still be called then.
  // False where the failed step may have begun to change it.
  bool state_is_whole() const;
  // Brings a part to where SaveSources and RestoreTargets point: zeros that nobody has given a
  // value yet. On the CPU it is there, or is read from disk; a device copies. Blocks.
  absl::Status FetchState(int part);
  // FetchState of a part that is saved. Where resources.mesh.tensor is above 1 it is collective:
  // what tensor ranks divide is put together. So it is with train.powersgd: all ranks go on with
  // the mean of their errors, as those do that are given what is saved.
  absl::Status PrepareSave(int part);
  // The intervals that this rank saves of a part: over all ranks and parts every element exactly
  // once. `data` is valid from PrepareSave to the next one, FetchState or Step: copy it before.
  std::vector<StateInterval> SaveSources(int part);
  // The same of state that is in one part.
  std::vector<StateInterval> RestoreTargets() { return RestoreTargets(OnlyPart()); }
  std::vector<StateInterval> SaveSources() { return SaveSources(OnlyPart()); }
  absl::Status FetchState() { return FetchState(OnlyPart()); }
  absl::Status PrepareSave() { return PrepareSave(OnlyPart()); }
  v1::TrainerState trainer_state() const { return state_; }

  // ---- training ----
  // FAILED_PRECONDITION, naming the step, for a non-finite gradient norm under `on_nonfinite: fail`
  // (nothing was updated then). Under fp16 an overflow that a lower loss scale may mend is skipped
  // either way: only one at the scale's floor fails.
  absl::StatusOr<StepReport> Step(bool stop_requested);
  // The validation file's first `train.validation.samples` sequences (all, if it has fewer), split
  // over the ranks; then the same of each of data.validation_sets. By the parameters or, with
  // train.ema, their averages. Sets trainer_state's validation fields. FAILED_PRECONDITION: no
  // validation data.
  absl::StatusOr<EvaluationReport> Evaluate();
  // Forgets what the smallest validation loss was: a run that begins with another one's state.
  void ForgetBest() {
    state_.clear_best_validation_loss();
    state_.clear_validations_since_best();
  }
  int64_t step() const { return state_.step(); }  // optimizer steps done
  const plan::StepPlan& plan() const { return engine_->plan(); }
  // Bytes of the arenas as allocated: plan().arena_bytes and plan().host_arena_bytes.
  int64_t allocated_bytes() const { return engine_->allocated_bytes(); }
  int64_t allocated_host_bytes() const { return engine_->allocated_host_bytes(); }
  // How optimizer state on disk is read and written: "io_uring, past the page cache"; empty where
  // none is there.
  std::string disk_description() const;
  // What the engine has chosen by trying (StepEngine::choices): a later attempt that is given it
  // has the same bits.
  std::string choices() const { return engine_->choices(); }
  // What a device has beside it (executor/step_engine.h); 0 on the CPU.
  int64_t beside_bytes() const { return engine_->beside_bytes(); }
  // Training ops, by kind and phase, since creation.
  std::vector<OpKindTime> op_times() const { return engine_->Times(); }

 private:
  TrainingSession(const v1::JobSpec& spec, const SessionOptions& options,
                  comm::Communicator* communicator);
  // Everything that can fail.
  absl::Status Open();
  int OnlyPart() const {
    MP_CHECK(state_parts() == 1) << "the state is on disk, and comes in parts";
    return 0;
  }
  absl::Status Ready(absl::string_view call) const;
  // train.ema: what is measured are the averages, which take the parameters' place for so long.
  absl::Status UseAverages(bool take);
  absl::StatusOr<EvaluationReport> MeasureAverages();
  // Of one set alone.
  absl::StatusOr<EvaluationReport> Measure(const data::SampleSource& source);
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
  // train.sync: a round is what lies between two outer steps. After its last step all islands
  // become one model, and agree on what their ranks report.
  absl::Status BeginRound();
  absl::Status EndRound(StepReport* report);
  absl::Status AgreeOnRound(StepReport* report);
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
  absl::StatusOr<std::vector<double>> AgreeOnTurns(const data::SampleSource& source,
                                                   int64_t samples);
  // Of this step. Doing it again changes nothing.
  void KeepValidation(const EvaluationReport& report);
  absl::Status EvaluateTurn(const data::SampleSource& source, const data::ValidationShare& share,
                            bool many_documents);
  bool ChangesStateInMicroSteps() const {
    return !statistics_->intervals().empty() || plan().options.powersgd_rank > 0;
  }

  // The ranks with samples of their own that have what this rank has of each layer.
  comm::RankSet OwnDataRanks() const;

  const v1::JobSpec spec_;
  const SessionOptions options_;
  comm::Communicator* const communicator_;
  data::BatchLayout layout_;
  optim::Schedule schedule_;
  optim::OptimizerHyper hyper_;
  std::optional<optim::LossScaler> scaler_;  // precision fp16
  v1::TrainerState state_;

  data::TrainingData data_;
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
  bool base_given_ = false;      // since parameters last went to where steps find them
  bool in_micro_steps_ = false;  // that change the state
  bool round_began_ = false;     // train.sync: there are anchors
  bool stop_in_round_ = false;   // some rank of the island has asked to stop
  int64_t skipped_before_round_ = 0;
  bool errors_differ_ = false;   // between the ranks, of gradients that travel as factors
  bool averages_taken_ = false;  // they lie where parameters do
  bool exchanging_ = false;      // either: an exchange of the two is under way, or has failed
  absl::Status failure_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_SESSION_TRAINING_SESSION_H_
