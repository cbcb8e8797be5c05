#include "worker/trainer/checkpoint_uploader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/trainer/checkpoint_copy.h"
#include "worker/trainer/upload_attempt.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
constexpr absl::Duration kReconnectSlice = absl::Milliseconds(50);
constexpr absl::Duration kFullDiskPause = absl::Seconds(2);

state::StateLayout LayoutOf(const std::vector<v1::TensorInfo>& tensors) {
  absl::StatusOr<state::StateLayout> layout = state::StateLayout::FromProto(tensors);
  MP_CHECK(layout.ok()) << layout.status();
  return *std::move(layout);
}

}  // namespace

class CheckpointUploader::Impl {
 public:
  Impl(const Endpoint& coordinator, UploaderOptions options,
       const std::vector<runtime::StateInterval>& sources)
      : options_(std::move(options)),
        layout_(LayoutOf(options_.tensors)),
        streams_of_rank_(StreamsPerRank(layout_.bytes(), options_.world)),
        uploader_(coordinator, streams_of_rank_) {
    for (const runtime::StateInterval& source : sources) copy_bytes_ += BytesOf(source);
    thread_ = std::thread(&Impl::Loop, this);
  }

  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    uploader_.Cancel();
    thread_.join();
  }

  absl::StatusOr<absl::Duration> Save(SourceParts sources, const v1::TrainerState& state,
                                      bool final) {
    const absl::Time begin = Clock::Real()->Now();
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Impl::CopyIsFree));
      MP_RETURN_IF_ERROR(prepare_status_);
      if (state_.active) {
        spdlog::warn("step {}: its checkpoint gives way to step {}'s: the coordinator is away",
                     upload_.begin.step(), state.step());
      }
      copying_ = true;
    }
    const absl::Status copied = Copy(sources);
    Describe(state);
    const absl::Time end = Clock::Real()->Now();
    absl::MutexLock lock(&mutex_);
    copying_ = false;
    if (!copied.ok()) {
      state_.active = false;
      return copied;
    }
    final_ = final;
    ++saves_;
    state_.active = true;
    saved_time_ = end;
    return end - begin;
  }

  absl::Status AwaitCopy() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&prepared_));
    return prepare_status_;
  }

  absl::Status Wait(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithDeadline(absl::Condition(this, &Impl::Idle), deadline)) {
      return absl::DeadlineExceededError("the checkpoint is not committed yet");
    }
    return state_.last;
  }

  UploadState State() const {
    absl::MutexLock lock(&mutex_);
    return state_;
  }

 private:
  bool CopyIsFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return prepared_ && !attempting_;
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !state_.active; }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (state_.active && !copying_);
  }

  int64_t BytesOf(const runtime::StateInterval& interval) const {
    return layout_.BytesOf({interval.tensor, interval.begin, interval.end});
  }

  absl::Status Copy(SourceParts sources) {
    std::vector<state::TensorSlice> slices;
    int64_t to = 0;
    MP_RETURN_IF_ERROR(sources([&](const std::vector<runtime::StateInterval>& part) {
      const int64_t begin = to;
      for (const runtime::StateInterval& source : part) {
        const int64_t bytes = BytesOf(source);
        MP_CHECK(to + bytes <= copy_.bytes()) << "the state grew";
        std::memcpy(copy_.data() + to, source.data, static_cast<size_t>(bytes));
        if (bytes > 0) {
          slices.push_back({{source.tensor, source.begin, source.end}, copy_.data() + to});
        }
        to += bytes;
      }
      copy_.Written(begin, to);
    }));
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return std::pair(a.interval.tensor, a.interval.begin) <
             std::pair(b.interval.tensor, b.interval.begin);
    });
    upload_.chunks = state::SplitIntoChunks(layout_, slices);
    upload_.checksums.clear();
    if (options_.copy_folder.empty()) return absl::OkStatus();
    for (const state::TensorSlice& chunk : upload_.chunks) {
      const auto size = static_cast<size_t>(layout_.BytesOf(chunk.interval));
      upload_.checksums.push_back(Xxh3(chunk.data, size));
    }
    return absl::OkStatus();
  }

  void Describe(const v1::TrainerState& state) {
    upload_.layout = &layout_;
    upload_.rank = options_.rank;
    upload_.streams_of_rank = streams_of_rank_;
    v1::BeginCheckpointRequest& begin = upload_.begin;
    begin.Clear();
    begin.set_job(options_.job);
    begin.set_generation(options_.generation);
    begin.set_step(state.step());
    begin.set_bytes(layout_.bytes());
    begin.set_streams(streams_of_rank_ * options_.world);
    begin.mutable_tensors()->Assign(options_.tensors.begin(), options_.tensors.end());
    *begin.mutable_state() = state;
    begin.set_model_yaml(options_.model_yaml);
  }

  void Loop() {
    absl::StatusOr<CheckpointCopy> copy = CheckpointCopy::Make(copy_bytes_, options_.copy_folder);
    absl::MutexLock lock(&mutex_);
    prepare_status_ = copy.status();
    if (copy.ok()) copy_ = *std::move(copy);
    prepared_ = true;
    absl::Duration backoff = kFirstBackoff;
    while (true) {
      mutex_.Await(absl::Condition(this, &Impl::HasWork));
      if (stopping_) return;
      const int64_t save = saves_;
      attempting_ = true;
      mutex_.Unlock();
      UploadResult result = uploader_.Run(upload_);
      mutex_.Lock();
      attempting_ = false;
      const absl::Duration pause = Settle(result, backoff);
      if (pause == absl::ZeroDuration()) {
        backoff = kFirstBackoff;
        continue;
      }
      backoff = std::min(backoff * 2, kLongestBackoff);
      PauseFor(pause, save);
    }
  }

  // Less when there is a newer Save, or when the coordinator was away and is back.
  void PauseFor(absl::Duration pause, int64_t save) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || saves_ != save;
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

  // Zero: this upload is over. Otherwise how long to pause before the next attempt.
  absl::Duration Settle(const UploadResult& result, absl::Duration backoff)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t step = upload_.begin.step();
    if (result.end == UploadEnd::kRetry && !stopping_) {
      Problem("holding the checkpoint until the coordinator takes it", "", result);
      return backoff * absl::Uniform(bits_, 0.7, 1.3);
    }
    const absl::Time now = Clock::Real()->Now();
    if (result.end == UploadEnd::kFullDisk && final_ &&
        now < saved_time_ + options_.full_disk_retry) {
      Problem("the last checkpoint does not fit, trying again",
              absl::StrCat(" for ", absl::FormatDuration(options_.full_disk_retry)), result);
      return kFullDiskPause;
    }
    state_.active = false;
    state_.last = result.status;
    if (result.end == UploadEnd::kCommitted) {
      state_.committed_step = step;
      state_.problem.clear();
      spdlog::info("step {}: checkpoint {} committed in {:.2f} s", step, result.checkpoint,
                   absl::ToDoubleSeconds(now - saved_time_));
    } else if (result.end != UploadEnd::kFenced && !stopping_) {
      Problem(final_ ? "the last checkpoint was not saved"
                     : "the checkpoint was not saved, training goes on",
              "", result);
    }
    return absl::ZeroDuration();
  }

  // Said once, not at every attempt.
  void Problem(absl::string_view what, const std::string& how_long, const UploadResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string head =
        absl::StrCat("step ", upload_.begin.step(), ": ", what, how_long, ": ");
    if (absl::StartsWith(state_.problem, head)) return;
    state_.problem = absl::StrCat(head, result.status.message());
    spdlog::warn("{}", state_.problem);
  }

  const UploaderOptions options_;
  const state::StateLayout layout_;
  const int streams_of_rank_;
  Uploader uploader_;
  int64_t copy_bytes_ = 0;
  absl::BitGen bits_;

  // Written by Save while `copying_`, read by the thread while `attempting_`.
  CheckpointCopy copy_;
  Upload upload_;

  mutable absl::Mutex mutex_;
  bool prepared_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status prepare_status_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool copying_ ABSL_GUARDED_BY(mutex_) = false;
  bool attempting_ ABSL_GUARDED_BY(mutex_) = false;
  bool final_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t saves_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time saved_time_ ABSL_GUARDED_BY(mutex_);
  UploadState state_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

CheckpointUploader::CheckpointUploader(const Endpoint& coordinator, UploaderOptions options,
                                       const std::vector<runtime::StateInterval>& sources)
    : impl_(std::make_unique<Impl>(coordinator, std::move(options), sources)) {}

CheckpointUploader::~CheckpointUploader() = default;

absl::StatusOr<absl::Duration> CheckpointUploader::Save(SourceParts sources,
                                                        const v1::TrainerState& state, bool final) {
  return impl_->Save(sources, state, final);
}

absl::StatusOr<absl::Duration> CheckpointUploader::Save(
    const std::vector<runtime::StateInterval>& sources, const v1::TrainerState& state, bool final) {
  const auto whole = [&](absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)> copy) {
    copy(sources);
    return absl::OkStatus();
  };
  return impl_->Save(whole, state, final);
}

absl::Status CheckpointUploader::AwaitCopy() { return impl_->AwaitCopy(); }

absl::Status CheckpointUploader::Wait(absl::Time deadline) { return impl_->Wait(deadline); }

UploadState CheckpointUploader::State() const { return impl_->State(); }

}  // namespace milepost::worker
