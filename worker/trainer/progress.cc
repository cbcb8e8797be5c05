#include "worker/trainer/progress.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cmath>

#include "absl/strings/str_format.h"
#include "common/proto_time.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/step_plan.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kSendInterval = absl::Milliseconds(100);
constexpr absl::Duration kLogInterval = absl::Seconds(1);
// Weight of the newest step in the shown rate.
constexpr double kRateWeight = 0.1;

// Of this process; 0 where the system does not say.
int64_t PeakResidentBytes() {
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace

void ProgressReporter::Begin(const v1::TrainerState& state, const runtime::TrainingSession& session,
                             const v1::JobSpec& spec, const std::string& restored_from) {
  progress_.set_restored_from(restored_from);
  total_steps_ = spec.train().steps();
  of_pairs_ = spec.train().has_dpo();
  progress_.set_step(state.step());
  progress_.set_start_step(state.step());
  logged_step_ = state.step();
  progress_.set_train_loss(state.train_loss());
  progress_.set_validation_loss(state.validation_step() > 0 ? state.validation_loss() : NAN);
  progress_.set_validation_step(state.validation_step());
  progress_.set_skipped_steps(state.skipped_steps());
  progress_.set_planned_bytes(session.plan().arena_bytes);
  const bool host_memory = spec.resources().device() != v1::DEVICE_KIND_CUDA;
  progress_.set_required_bytes(
      plan::RequiredBytes(session.plan(), session.plan().arena_bytes, host_memory));
  progress_.set_allocated_bytes(session.allocated_bytes());
  const plan::StepPlan& plan = session.plan();
  progress_.clear_train_heads();
  for (const graph::LossHead& head : plan.train.graph.losses) {
    if (plan.loss_heads > 1) progress_.add_train_heads()->set_name(head.name);
  }
  flops_per_step_ = plan.flops_per_step;
  const auto profile = plan::ProfileOf(spec, plan.options.threads);
  if (profile.ok()) matmul_rate_ = plan::RateOf(*profile, plan.options.compute_dtype).peak;
}

void ProgressReporter::Step(const runtime::StepReport& report, absl::Time now) {
  const bool first = !progress_.has_first_step_time();
  if (first) *progress_.mutable_first_step_time() = ToProto(now);
  const double rate = static_cast<double>(report.tokens) / report.seconds;
  progress_.set_step(report.step);
  progress_.set_train_loss(report.train_loss);
  for (int head = 0; head < progress_.train_heads_size(); ++head) {
    progress_.mutable_train_heads(head)->set_loss(report.head_losses[head]);
  }
  progress_.set_lr(report.lr);
  progress_.set_grad_norm(report.grad_norm);
  progress_.set_clipped_norm(report.clipped_norm);
  progress_.set_skipped_steps(report.skipped_steps);
  if (log_ && report.skipped && report.loss_scale_at_floor && !progress_.loss_scale_at_floor()) {
    spdlog::warn(
        "step {}: the loss scale has backed off to its floor; gradients that are not "
        "finite even so skip their step and are not the scale's doing",
        report.step);
  }
  progress_.set_loss_scale(report.loss_scale);
  progress_.set_loss_scale_at_floor(report.loss_scale_at_floor);
  progress_.set_tokens_per_second(
      first ? rate : progress_.tokens_per_second() * (1 - kRateWeight) + rate * kRateWeight);
  SetData(report.data);
  progress_.set_step_seconds(report.seconds);
  progress_.set_data_wait_seconds(report.data_wait_seconds);
  progress_.set_communication_wait_seconds(report.communication_wait_seconds);
  progress_.set_forward_seconds(report.forward_seconds);
  progress_.set_backward_seconds(report.backward_seconds);
  progress_.set_update_seconds(report.update_seconds);
  progress_.set_communication_seconds(report.communication_seconds);
  progress_.set_model_flops_per_second(flops_per_step_ / report.seconds);
  if (matmul_rate_ > 0) progress_.set_mfu(progress_.model_flops_per_second() / matmul_rate_);
  progress_.set_productive_seconds(progress_.productive_seconds() + report.seconds);
}

void ProgressReporter::Validation(int64_t step, const runtime::EvaluationReport& report) {
  progress_.set_validation_loss(report.loss);
  progress_.set_validation_step(step);
  progress_.clear_validation_heads();
  for (const runtime::EvaluationReport::Head& head : report.heads) {
    *progress_.add_validation_heads() = Measured(step, "", head);
  }
  progress_.clear_validation_sets();
  for (const runtime::EvaluationReport::Set& set : report.sets) {
    v1::ValidationSetReport* out = progress_.add_validation_sets();
    out->set_name(set.name);
    out->set_loss(set.loss);
    for (const runtime::EvaluationReport::Head& head : set.heads) {
      *out->add_heads() = Measured(step, absl::StrCat(" on ", set.name), head);
    }
  }
}

v1::LossReport ProgressReporter::Measured(int64_t step, const std::string& on,
                                          const runtime::EvaluationReport::Head& head) const {
  v1::LossReport report;
  report.set_name(head.name);
  report.set_loss(head.loss);
  report.set_accuracy(head.accuracy);
  if (!log_) return report;
  // Of pairs e to the loss means nothing.
  const std::string perplexity =
      of_pairs_ ? "" : absl::StrFormat(" perplexity %.4g", std::exp(head.loss));
  spdlog::info("step {}/{} validation{} {} loss {:.4f}{} accuracy {:.2f}%", step, total_steps_, on,
               head.name, head.loss, perplexity, 100 * head.accuracy);
  return report;
}

void ProgressReporter::SetData(const data::SourceStats& stats) {
  if (stats.samples == 0) return;
  v1::DataReport* data = progress_.mutable_data();
  data->set_samples(stats.samples);
  data->set_bytes_read(stats.bytes_read);
  data->set_busy_seconds(stats.busy_seconds);
  if (stats.damaged == data->damaged_samples() || stats.first_damage == nullptr) return;
  if (log_ && data->damaged_samples() == 0) {
    spdlog::warn("damaged images are replaced by others; the first: {}", *stats.first_damage);
  }
  data->set_damaged_samples(stats.damaged);
  data->set_first_damage(*stats.first_damage);
}

void ProgressReporter::Hold(absl::Duration held) {
  progress_.set_checkpoint_hold_seconds(absl::ToDoubleSeconds(held));
}

void ProgressReporter::CheckpointProblem(const std::string& problem, absl::Time now) {
  if (problem == progress_.checkpoint_problem()) return;
  progress_.set_checkpoint_problem(problem);
  Send(now, /*must=*/true);
}

void ProgressReporter::Send(absl::Time now, bool must) {
  LogStep(now, must);
  must = must || pending_;
  if (!must && now < last_sent_ + kSendInterval) return;
  last_sent_ = now;
  progress_.set_peak_resident_bytes(PeakResidentBytes());
  *progress_.mutable_time() = ToProto(now);
  v1::TrainerMessage message;
  *message.mutable_progress() = progress_;
  const bool sent = channel_->Send(message, absl::InfinitePast()).ok();
  pending_ = must && !sent;
}

void ProgressReporter::LogStep(absl::Time now, bool must) {
  if (!log_ || progress_.step() == logged_step_) return;
  if (!must && now < last_logged_ + kLogInterval) return;
  last_logged_ = now;
  logged_step_ = progress_.step();
  const double scale = progress_.loss_scale();
  std::string heads;
  for (const v1::LossReport& head : progress_.train_heads()) {
    absl::StrAppendFormat(&heads, "%s%s %.4f", heads.empty() ? " (" : ", ", head.name(),
                          head.loss());
  }
  if (!heads.empty()) heads += ')';
  spdlog::info("step {}/{} loss {:.4f}{} lr {:.3g} grad norm {:.3f}{} {:.0f} tokens/s",
               progress_.step(), total_steps_, progress_.train_loss(), heads, progress_.lr(),
               progress_.grad_norm(), scale > 0 ? fmt::format(" loss scale {:g}", scale) : "",
               progress_.tokens_per_second());
}

}  // namespace milepost::worker
