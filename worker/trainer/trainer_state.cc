// Where a rank's state comes from, and what is kept of it for the next attempt.
#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "engine/comm/agreement.h"
#include "engine/data/training/training_data.h"
#include "engine/runtime/executor/state_interval.h"
#include "worker/memory_state/memory_state.h"
#include "worker/memory_state/snapshot_claims.h"
#include "worker/trainer/checkpoint_reader.h"
#include "worker/trainer/initial_weights.h"
#include "worker/trainer/trainer.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kRestorePatience = absl::Minutes(10);

}  // namespace

std::optional<TrainerExit> Trainer::Begin() {
  if (absl::Status status = OpenBase(); !status.ok()) return FailedSetUp(status);
  // The first attempt has nobody before it that could have left something.
  if (start_.generation() > 1) {
    const absl::StatusOr<bool> restored = RestoreFromMemory();
    if (!restored.ok()) return FailedSetUp(restored.status());
    if (*restored) return std::nullopt;
  }
  if (!start_.checkpoint().empty()) return Restore();
  if (absl::Status status = Initialize(); !status.ok()) return FailedSetUp(status);
  return std::nullopt;
}

absl::StatusOr<bool> Trainer::RestoreFromMemory() {
  const absl::Time begin = Now();
  MP_ASSIGN_OR_RETURN(const std::optional<v1::TrainerState> state,
                      TakeUpState(message_.memory_folder(), start_.uid(), start_.generation(),
                                  start_.checkpoint_step(), *session_, *communicator_));
  if (!state.has_value()) return false;
  MP_RETURN_IF_ERROR(CheckData(*state));
  MP_RETURN_IF_ERROR(CheckBase(*state));
  MP_RETURN_IF_ERROR(ReadBase(/*part=*/0));  // disks are not taken up
  MP_RETURN_IF_ERROR(session_->FinishRestore(*state));
  restored_from_ = kFromMemory;
  spdlog::info("step {}: restored from the hosts' memory in {:.2f} s", session_->step(),
               absl::ToDoubleSeconds(Now() - begin));
  return true;
}

absl::Status Trainer::CheckData(const v1::TrainerState& state) const {
  if (!state.has_data()) return absl::OkStatus();
  absl::Status status =
      data::CheckSameData(state.data(), session_->trainer_state().data(),
                          absl::StrCat("step ", state.step(), " of ", start_.job()));
  if (status.ok()) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      status.message(), ". Put back what was there; or go on with what is there now as a job of ",
      "its own: milepost job fork --from ", start_.job()));
}

absl::Status Trainer::OpenBase() {
  const std::string& folder = spec_.train().init_from();
  if (session_->base_tensors().empty() || folder.empty()) return absl::OkStatus();
  SettingUp();
  MP_ASSIGN_OR_RETURN(base_, InitialWeights::Open(folder, spec_.model(), session_->base_tensors()));
  const uint64_t fingerprint = base_->Fingerprint();
  session_->SetBase(fingerprint);
  activity_.Enter(runtime::Activity::kOther, 0);  // another rank may have a slower disk
  const absl::Status same = comm::CheckAgreement(
      *communicator_, {{"train.init_from", absl::StrFormat("fingerprint %016x", fingerprint)}});
  SettingUp();
  return same;
}

absl::Status Trainer::ReadBase(int part) {
  if (!base_.has_value()) return absl::OkStatus();
  return base_->Read(session_->BaseTargets(part));
}

absl::Status Trainer::CheckBase(const v1::TrainerState& state) const {
  if (state.base() == 0 || state.base() == session_->trainer_state().base()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "train.init_from: %s holds another model than the one that step %d of %s is based on "
      "(fingerprint %016x, not %016x): put back what was there",
      spec_.train().init_from(), state.step(), start_.job(), session_->trainer_state().base(),
      state.base()));
}

std::optional<TrainerExit> Trainer::Restore() {
  // Asked before every try: a rank that waits for the coordinator does not hang.
  CheckpointReader reader(coordinator_, kRestorePatience, [this] {
    SettingUp();
    return StopRequested() || AbortRequested();
  });
  const absl::Time begin = Now();
  auto manifest = reader.Manifest(start_.checkpoint());
  absl::Status status = manifest.status();
  // A fork may be for the sake of other data, or of another reference for preferences.
  const bool own = status.ok() && manifest->checkpoint().job() == start_.job();
  if (own) {
    if (status = CheckData(manifest->state()); !status.ok()) return SetupFailure(status);
  }
  if (own || (status.ok() && spec_.model().has_lora())) {
    if (status = CheckBase(manifest->state()); !status.ok()) return SetupFailure(status);
  }
  for (int part = 0; status.ok() && part < session_->state_parts(); ++part) {
    SettingUp();
    if (status = session_->FetchState(part); !status.ok()) return SetupFailure(status);
    status = reader.Read(*manifest, session_->state_tensors(), session_->RestoreTargets(part),
                         [this] { SettingUp(); });
    if (!status.ok()) break;
    status = ReadBase(part);
    if (status.ok()) status = session_->StoreState(part);
    if (!status.ok()) return SetupFailure(status);
  }
  if (absl::IsCancelled(status) && AbortRequested()) return SetupFailure(Aborted());
  if (absl::IsCancelled(status)) return TrainerExit{.code = kExitStopped};
  if (!status.ok()) return RestoreFailure(status);
  // With the other ranks: here an error may mean that one of them is gone.
  status = AwaitOthers();
  if (status.ok()) status = session_->FinishRestore(manifest->state());
  if (!status.ok()) return FailedSetUp(status);
  if (manifest->checkpoint().job() != start_.job()) session_->ForgetBest();
  restored_from_ = start_.checkpoint();
  spdlog::info("step {}: restored {} in {:.2f} s", session_->step(), start_.checkpoint(),
               absl::ToDoubleSeconds(Now() - begin));
  return std::nullopt;
}

absl::Status Trainer::Initialize() {
  MP_RETURN_IF_ERROR(session_->InitializeParameters());
  const std::string& folder = spec_.train().init_from();
  if (folder.empty()) return absl::OkStatus();
  const absl::Time begin = Now();
  MP_ASSIGN_OR_RETURN(const InitialWeights weights,
                      InitialWeights::Open(folder, spec_.model(), session_->state_tensors()));
  // What the folder does not hold stays as it was initialised.
  for (int part = 0; part < session_->state_parts(); ++part) {
    SettingUp();
    MP_RETURN_IF_ERROR(session_->FetchState(part));
    MP_RETURN_IF_ERROR(weights.Read(session_->RestoreTargets(part)));
    MP_RETURN_IF_ERROR(ReadBase(part));
    MP_RETURN_IF_ERROR(session_->StoreState(part));
  }
  session_->StartAverages();
  MP_RETURN_IF_ERROR(AwaitOthers());
  MP_RETURN_IF_ERROR(session_->FinishRestore(session_->trainer_state()));
  spdlog::info("initial parameters of {} in {:.2f} s", folder,
               absl::ToDoubleSeconds(Now() - begin));
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> Trainer::SaveState(bool final) {
  using Copy = absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)>;
  const absl::Time begin = Now();
  const int parts = session_->state_parts();
  // Before the uploader waits for the checkpoint before: tensor ranks put their state together in
  // here. One of them may have given that checkpoint up, and the others' upload of it ends when
  // the one of this checkpoint begins.
  if (parts == 1) MP_RETURN_IF_ERROR(session_->PrepareSave(0));
  const absl::Duration prepared = Now() - begin;
  const auto sources = [&](Copy copy) {
    for (int part = 0; part < parts; ++part) {
      if (parts > 1) MP_RETURN_IF_ERROR(session_->PrepareSave(part));  // of a rank by itself
      copy(session_->SaveSources(part));
    }
    return absl::OkStatus();
  };
  MP_ASSIGN_OR_RETURN(const absl::Duration held,
                      uploader_->Save(sources, session_->trainer_state(), final));
  return prepared + held;
}

// As soon as this attempt's own can stand in for it.
void Trainer::ForgetOlderState() {
  const int64_t begin = progress_.progress().start_step();
  const bool replaced =
      copies_ == nullptr ? session_->step() > begin : copies_->copied_step() > begin;
  if (!replaced || forgot_older_state_) return;
  forgot_older_state_ = true;
  ForgetState(message_.memory_folder(), start_.generation());
}

void Trainer::KeepWhatIsLeft() {
  if (copies_ != nullptr) return;  // its newest copy is what all have
  const absl::Status kept =
      KeepState(message_.memory_folder(),
                {start_.uid(), start_.generation(), start_.rank(), "left"}, *session_);
  if (kept.ok()) {
    spdlog::info("step {}: left the state in memory", session_->step());
  } else {
    spdlog::info("step {}: leaves no state in memory: {}", session_->step(),
                 std::string(kept.message()));
  }
}

void Trainer::ForgetAllState() {
  if (copies_ != nullptr) copies_->Finish();
  ForgetState(message_.memory_folder(), start_.generation() + 1);
}

}  // namespace milepost::worker
