// Of a TrainingSession: what lies between two outer steps of islands that train apart (train.sync).
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/runtime/session/training_session.h"

namespace milepost::runtime {
namespace {

// As long as it lives, calls may take kIslandPatience.
class IslandPatience {
 public:
  explicit IslandPatience(comm::Communicator* communicator) : communicator_(communicator) {
    if (communicator_ == nullptr) return;
    usual_ = communicator_->timeout();
    communicator_->SetTimeout(std::max(usual_, kIslandPatience));
  }
  ~IslandPatience() {
    if (communicator_ != nullptr) communicator_->SetTimeout(usual_);
  }
  IslandPatience(const IslandPatience&) = delete;
  IslandPatience& operator=(const IslandPatience&) = delete;

 private:
  comm::Communicator* const communicator_;
  absl::Duration usual_;
};

}  // namespace

absl::Status TrainingSession::BeginRound() {
  if (plan().options.outer_every == 0 || round_began_) return absl::OkStatus();
  round_began_ = true;
  stop_in_round_ = false;
  skipped_before_round_ = state_.skipped_steps();
  return engine_->KeepAnchors();
}

absl::Status TrainingSession::EndRound(StepReport* report) {
  stop_in_round_ |= report->stop_agreed;
  report->stop_agreed = false;
  report->of_all_ranks = state_.step() % plan().options.outer_every == 0;
  if (!report->of_all_ranks) return absl::OkStatus();
  // Other islands come when they come. Once they have agreed, all are where this one is.
  const IslandPatience session(communicator_), device(options_.device_communicator);
  MP_RETURN_IF_ERROR(engine_->OuterStep());
  round_began_ = false;
  return AgreeOnRound(report);
}

// Of each island its first rank speaks.
absl::Status TrainingSession::AgreeOnRound(StepReport* report) {
  struct {
    double stop, skips, skipped, train_loss, grad_norm, clipped_norm;
    double head_losses[graph::kMaxLosses];
  } sums = {.stop = stop_in_round_ ? 1.0 : 0.0};
  if (communicator_->rank() % plan().options.Ranks() == 0) {
    const double share = 1.0 / plan().options.islands;
    sums.skips = report->skipped ? 1 : 0;
    sums.skipped = static_cast<double>(state_.skipped_steps() - skipped_before_round_);
    sums.train_loss = share * report->train_loss;
    sums.grad_norm = share * report->grad_norm;
    sums.clipped_norm = share * report->clipped_norm;
    for (size_t head = 0; head < graph::kMaxLosses; ++head) {
      sums.head_losses[head] = share * report->head_losses[head];
    }
  }
  MP_RETURN_IF_ERROR(
      communicator_->AllReduce(absl::MakeSpan(&sums.stop, sizeof(sums) / sizeof(double))));
  report->stop_agreed = sums.stop > 0;
  report->skipped = sums.skips > 0;
  report->train_loss = sums.train_loss;
  report->grad_norm = sums.grad_norm;
  report->clipped_norm = sums.clipped_norm;
  std::copy_n(sums.head_losses, graph::kMaxLosses, report->head_losses.begin());
  state_.set_train_loss(report->train_loss);
  state_.set_skipped_steps(skipped_before_round_ + static_cast<int64_t>(sums.skipped));
  report->skipped_steps = state_.skipped_steps();
  return absl::OkStatus();
}

}  // namespace milepost::runtime
