#include "worker/trainer/scalar_log.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace milepost::worker {

namespace {

constexpr absl::Duration kPointInterval = absl::Milliseconds(100);
constexpr absl::Duration kFlushInterval = absl::Seconds(1);

}  // namespace

ScalarLog::ScalarLog(const std::string& folder, int64_t start_step, absl::Time now) {
  auto events = TensorBoardWriter::Create(folder, start_step, now);
  if (events.ok()) {
    events_ = *std::move(events);
  } else {
    spdlog::warn("report.tensorboard: {}; training goes on without",
                 std::string(events.status().message()));
  }
}

ScalarLog::~ScalarLog() { Flush(); }

void ScalarLog::Step(const v1::Progress& progress, absl::Time now) {
  if (events_ == nullptr || now < last_point_ + kPointInterval) return;
  last_point_ = now;
  const std::pair<const char*, double> scalars[] = {
      {"train/loss", progress.train_loss()},
      {"train/learning_rate", progress.lr()},
      {"train/gradient_norm", progress.grad_norm()},
      {"train/clipped_gradient_norm", progress.clipped_norm()},
      {"train/skipped_steps", static_cast<double>(progress.skipped_steps())},
      {"speed/tokens_per_second", progress.tokens_per_second()},
      {"speed/step_seconds", progress.step_seconds()},
      {"speed/data_wait_seconds", progress.data_wait_seconds()},
      {"speed/communication_wait_seconds", progress.communication_wait_seconds()},
      {"memory/allocated_bytes", static_cast<double>(progress.allocated_bytes())},
  };
  for (const auto& [tag, value] : scalars) events_->Add(tag, progress.step(), value, now);
  if (progress.loss_scale() > 0) {
    events_->Add("train/loss_scale", progress.step(), progress.loss_scale(), now);
  }
  if (now < last_flush_ + kFlushInterval) return;
  last_flush_ = now;
  Flush();
}

void ScalarLog::Validation(const v1::Progress& progress, absl::Time now) {
  if (events_ == nullptr) return;
  events_->Add("validation/loss", progress.validation_step(), progress.validation_loss(), now);
  Flush();
}

void ScalarLog::Flush() {
  if (events_ == nullptr) return;
  if (absl::Status status = events_->Flush(); !status.ok()) {
    spdlog::warn("report.tensorboard: {}; training goes on without", std::string(status.message()));
    events_.reset();
  }
}

}  // namespace milepost::worker
