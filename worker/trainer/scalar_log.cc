#include "worker/trainer/scalar_log.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kPointInterval = absl::Milliseconds(100);
constexpr absl::Duration kFlushInterval = absl::Seconds(1);
constexpr char kOwnerFile[] = "job-uid";  // TensorBoard reads files of events alone
constexpr size_t kShortUid = 8;

}  // namespace

std::string ScalarFolder(const std::string& base, const std::string& job, const std::string& uid) {
  const std::string folder = absl::StrCat(base, "/", absl::StrReplaceAll(job, {{"/", "-"}}));
  const std::string file = absl::StrCat(folder, "/", kOwnerFile);
  std::string owner;
  if (std::ifstream(file) >> owner) {
    return owner == uid ? folder : absl::StrCat(folder, "-", uid.substr(0, kShortUid));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::ofstream(file) << uid << "\n";
  return folder;
}

absl::Status WithRemedy(const absl::Status& status) {
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(
      absl::StrCat(status.message(), "; name a folder where this host's worker may write (under ",
                   "systemd: one of ReadWritePaths= of milepost-worker)"));
}

ScalarLog::ScalarLog(const std::string& folder, int64_t start_step, absl::Time now) {
  auto events = TensorBoardWriter::Create(folder, start_step, now);
  status_ = WithRemedy(events.status());
  if (events.ok()) events_ = *std::move(events);
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
      {"speed/forward_seconds", progress.forward_seconds()},
      {"speed/backward_seconds", progress.backward_seconds()},
      {"speed/update_seconds", progress.update_seconds()},
      {"speed/communication_seconds", progress.communication_seconds()},
      {"speed/communication_wait_seconds", progress.communication_wait_seconds()},
      {"speed/checkpoint_hold_seconds", progress.checkpoint_hold_seconds()},
      {"speed/model_flops_per_second", progress.model_flops_per_second()},
      {"speed/mfu", progress.mfu()},
      {"memory/peak_resident_bytes", static_cast<double>(progress.peak_resident_bytes())},
      {"memory/allocated_bytes", static_cast<double>(progress.allocated_bytes())},
  };
  for (const auto& [tag, value] : scalars) events_->Add(tag, progress.step(), value, now);
  for (const v1::LossReport& head : progress.train_heads()) {
    events_->Add(absl::StrCat("train/", head.name(), "/loss"), progress.step(), head.loss(), now);
  }
  if (progress.loss_scale() > 0) {
    events_->Add("train/loss_scale", progress.step(), progress.loss_scale(), now);
  }
  if (now < last_flush_ + kFlushInterval) return;
  last_flush_ = now;
  Flush();
}

void ScalarLog::Validation(const v1::Progress& progress, absl::Time now) {
  if (events_ == nullptr) return;
  const int64_t step = progress.validation_step();
  const auto add = [&](const std::string& group, double loss, const auto& heads) {
    events_->Add(absl::StrCat(group, "/loss"), step, loss, now);
    for (const v1::LossReport& head : heads) {
      const std::string of_head = absl::StrCat(group, "/", head.name());
      events_->Add(absl::StrCat(of_head, "/loss"), step, head.loss(), now);
      events_->Add(absl::StrCat(of_head, "/accuracy"), step, head.accuracy(), now);
    }
  };
  add("validation", progress.validation_loss(), progress.validation_heads());
  for (const v1::ValidationSetReport& set : progress.validation_sets()) {
    add(absl::StrCat("validation@", set.name()), set.loss(), set.heads());
  }
  Flush();
}

void ScalarLog::Flush() {
  if (events_ == nullptr) return;
  status_ = events_->Flush();
  if (status_.ok()) return;
  spdlog::warn("report.tensorboard: {}; training goes on without", std::string(status_.message()));
  events_.reset();
}

}  // namespace milepost::worker
