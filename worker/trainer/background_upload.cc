#include "worker/trainer/background_upload.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
constexpr absl::Duration kReconnectSlice = absl::Milliseconds(50);
constexpr absl::Duration kFullDiskPause = absl::Seconds(2);

}  // namespace

BackgroundUpload::BackgroundUpload(const Endpoint& coordinator, int streams, Options options)
    : options_(std::move(options)), uploader_(coordinator, streams) {
  thread_ = std::thread(&BackgroundUpload::Loop, this);
}

BackgroundUpload::~BackgroundUpload() {
  Cancel();
  thread_.join();
}

void BackgroundUpload::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  uploader_.Cancel();
}

absl::Status BackgroundUpload::Claim(int64_t step) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BackgroundUpload::IsFree));
  if (!prepare_status_.ok()) return prepare_status_;
  if (withdrawn_) return absl::CancelledError("nothing more is saved");
  gave_way_ = state_.active && upload_.durable;
  if (state_.active) {
    spdlog::warn("step {}: its checkpoint gives way to step {}'s: the coordinator is away",
                 upload_.begin.step(), step);
  }
  claimed_ = true;
  return absl::OkStatus();
}

void BackgroundUpload::Submit(Upload upload, bool final) {
  const absl::Time now = Clock::Real()->Now();
  upload_ = std::move(upload);
  absl::MutexLock lock(&mutex_);
  claimed_ = false;
  final_ = final;
  copy_due_ = upload_.copy != nullptr;
  state_.durable = upload_.durable;
  ++submitted_;
  state_.active = true;
  submit_time_ = now;
}

void BackgroundUpload::GiveUp() {
  absl::MutexLock lock(&mutex_);
  GiveUpLocked();
}

void BackgroundUpload::Withdraw() {
  absl::MutexLock lock(&mutex_);
  withdrawn_ = true;
  if (claimed_) GiveUpLocked();
}

// What still waited when its memory was claimed may be written over.
void BackgroundUpload::GiveUpLocked() {
  claimed_ = false;
  if (!state_.active) return;
  state_.active = false;
  state_.problem = absl::StrCat("step ", upload_.begin.step(),
                                ": the checkpoint was not saved: a later one took its place, and "
                                "was given up");
  state_.last = absl::UnavailableError(state_.problem);
}

absl::Status BackgroundUpload::AwaitPrepared() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&prepared_));
  return prepare_status_;
}

absl::Status BackgroundUpload::Wait(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  if (!mutex_.AwaitWithDeadline(absl::Condition(this, &BackgroundUpload::Idle), deadline)) {
    return absl::DeadlineExceededError("the checkpoint is not committed yet");
  }
  return state_.active ? absl::CancelledError("told to end") : state_.last;
}

UploadState BackgroundUpload::State() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

UploadResult BackgroundUpload::Attempt(bool first) {
  if (first && upload_.copy != nullptr) {
    const absl::Status copied = upload_.copy();
    if (!upload_.durable)
      return {copied.ok() ? UploadEnd::kCopied : UploadEnd::kFailed, copied, ""};
    copy_problem_.clear();
    if (!copied.ok()) {
      copy_problem_ =
          absl::StrCat("step ", upload_.begin.step(),
                       ": the checkpoint has no copies in hosts' memory: ", copied.message());
      spdlog::warn("{}", copy_problem_);
    }
  }
  return uploader_.Run(upload_);
}

void BackgroundUpload::Loop() {
  const absl::Status prepared = options_.prepare ? options_.prepare() : absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  prepare_status_ = prepared;
  prepared_ = true;
  absl::Duration backoff = kFirstBackoff;
  int64_t attempted = 0;
  while (true) {
    mutex_.Await(absl::Condition(this, &BackgroundUpload::HasWork));
    if (stopping_) return;
    const int64_t submitted = submitted_;
    attempting_ = true;
    copy_due_ = false;
    mutex_.Unlock();
    UploadResult result = Attempt(std::exchange(attempted, submitted) != submitted);
    mutex_.Lock();
    attempting_ = false;
    const absl::Duration pause = Settle(result, backoff);
    if (pause == absl::ZeroDuration()) {
      backoff = kFirstBackoff;
      continue;
    }
    backoff = std::min(backoff * 2, kLongestBackoff);
    PauseFor(pause, submitted);
  }
}

void BackgroundUpload::PauseFor(absl::Duration pause, int64_t submitted) {
  const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || submitted_ != submitted;
  };
  const absl::Time end = Clock::Real()->Now() + pause;
  if (uploader_.Connected()) {
    mutex_.AwaitWithDeadline(absl::Condition(&changed), end);
    return;
  }
  bool connected = false;
  while (!changed() && !connected && Clock::Real()->Now() < end) {
    mutex_.Unlock();
    connected = uploader_.AwaitConnection(std::min(end, Clock::Real()->Now() + kReconnectSlice));
    mutex_.Lock();
  }
}

absl::Duration BackgroundUpload::Settle(const UploadResult& result, absl::Duration backoff) {
  const int64_t step = upload_.begin.step();
  if (result.end == UploadEnd::kRetry && !stopping_) {
    Problem("holding the checkpoint until the coordinator takes it", "", result);
    return backoff * absl::Uniform(bits_, 0.7, 1.3);
  }
  const absl::Time now = Clock::Real()->Now();
  if (result.end == UploadEnd::kFullDisk && final_ &&
      now < submit_time_ + options_.full_disk_retry) {
    Problem("the last checkpoint does not fit, trying again",
            absl::StrCat(" for ", absl::FormatDuration(options_.full_disk_retry)), result);
    return kFullDiskPause;
  }
  state_.active = false;
  state_.last = result.status;
  if (result.end == UploadEnd::kCommitted) {
    state_.committed_step = step;
    state_.problem = copy_problem_;
    spdlog::info("step {}: checkpoint {} committed in {:.2f} s", step, result.checkpoint,
                 absl::ToDoubleSeconds(now - submit_time_));
  } else if (result.end == UploadEnd::kCopied) {
    state_.problem.clear();
  } else if (result.end != UploadEnd::kFenced && !stopping_) {
    Problem(final_ ? "the last checkpoint was not saved"
                   : "the checkpoint was not saved, training goes on",
            "", result);
  }
  return absl::ZeroDuration();
}

void BackgroundUpload::Problem(absl::string_view what, const std::string& how_long,
                               const UploadResult& result) {
  const std::string head = absl::StrCat("step ", upload_.begin.step(), ": ", what, how_long, ": ");
  if (absl::StartsWith(state_.problem, head)) return;
  state_.problem = absl::StrCat(head, result.status.message());
  spdlog::warn("{}", state_.problem);
}

}  // namespace milepost::worker
