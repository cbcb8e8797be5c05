#include "worker/trainer/divergence.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace milepost::worker {

namespace {

constexpr size_t kGoodSteps = 3;
constexpr char kRemedy[] =
    "lower train.optimizer.lr, warm up longer (train.schedule.warmup_steps) or clip lower "
    "(train.clip_norm), and begin again, or fork a checkpoint from before "
    "(`milepost checkpoint list`, `milepost job fork`)";

// Of a NaN the sign says nothing.
std::string Shown(double value) {
  return std::isnan(value) ? "nan" : absl::StrFormat("%.4g", value);
}

}  // namespace

absl::Status DivergenceWatch::Step(const runtime::StepReport& report) {
  // The scale is the gradients': no other one makes a number of the loss.
  const bool mendable = report.loss_scale > 0 && !at_floor_ && std::isfinite(report.train_loss);
  at_floor_ = report.loss_scale_at_floor;
  if (!report.skipped) {
    in_order_ = 0;
    good_.push_back(report);
    if (good_.size() > kGoodSteps) good_.pop_front();
    return absl::OkStatus();
  }
  if (mendable) return absl::OkStatus();
  ++in_order_;
  return most_ > 0 && in_order_ >= most_ ? Diverged(report) : absl::OkStatus();
}

absl::Status DivergenceWatch::Diverged(const runtime::StepReport& report) const {
  std::string before;
  for (const runtime::StepReport& good : good_) {
    absl::StrAppend(&before, before.empty() ? "" : "; ", "step ", good.step, ": loss ",
                    Shown(good.train_loss), ", norm ", Shown(good.grad_norm));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "diverged: %d steps in order were skipped (train.max_skipped_steps), the last one step %d: "
      "loss %s, gradient norm %s%s, learning rate %.3g. Before them: %s. Remedy: %s",
      in_order_, report.step, Shown(report.train_loss), Shown(report.grad_norm),
      report.loss_scale > 0 ? absl::StrFormat(", loss scale %.4g", report.loss_scale) : "",
      report.lr, before.empty() ? "none that was not skipped since the attempt began" : before,
      kRemedy));
}

absl::Status CheckFinalLoss(const v1::TrainerState& state) {
  const bool validated = state.validation_step() > 0 && state.validation_step() == state.step();
  const bool train = std::isfinite(state.train_loss());
  if (train && (!validated || std::isfinite(state.validation_loss()))) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "diverged: all steps are done, but the last one, %d, has a %s loss of %s; %d steps of all "
      "were skipped. Remedy: %s",
      state.step(), train ? "validation" : "training",
      Shown(train ? state.validation_loss() : state.train_loss()), state.skipped_steps(), kRemedy));
}

}  // namespace milepost::worker
