#include "engine/data/prefetcher.h"

#include <chrono>
#include <utility>

#include "common/check.h"

namespace milepost::data {

Prefetcher::Prefetcher(std::shared_ptr<const TokenMixture> data, const BatchLayout& layout,
                       int depth)
    : data_(std::move(data)), layout_(layout), slots_(depth + 1) {
  MP_CHECK(depth >= 1) << depth;
  const int64_t tokens = layout.micro_batch * data_->sequence_length();
  for (MicroBatch& slot : slots_) {
    slot.tokens.resize(tokens);
    slot.targets.resize(tokens);
  }
}

Prefetcher::~Prefetcher() { Stop(); }

int64_t Prefetcher::Bytes(int64_t micro_batch, int64_t sequence_length, int depth) {
  return (depth + 1) * 2 * micro_batch * sequence_length * static_cast<int64_t>(sizeof(int32_t));
}

void Prefetcher::Stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::Start(int64_t first_sample) {
  Stop();
  produced_ = 0;
  taken_ = 0;
  stop_ = false;
  error_ = absl::OkStatus();
  thread_ = std::thread([this, first_sample] { Produce(first_sample); });
}

void Prefetcher::Produce(int64_t first_sample) {
  const int64_t slots = slots_.size();
  for (int64_t number = 0;; ++number) {
    {
      std::unique_lock lock(mutex_);
      // The slot is free once the batch after the one that it held has been taken.
      changed_.wait(lock, [&] { return stop_ || number - taken_ < slots - (taken_ > 0 ? 1 : 0); });
      if (stop_) return;
    }
    MicroBatch& slot = slots_[number % slots];
    const int64_t step = number / layout_.accumulation;
    slot.first_sample = layout_.FirstSample(first_sample + step * layout_.GlobalBatch(),
                                            number % layout_.accumulation);
    absl::Status status =
        data_->FetchBatch(slot.first_sample, layout_.micro_batch, absl::MakeSpan(slot.tokens),
                          absl::MakeSpan(slot.targets));
    std::lock_guard lock(mutex_);
    if (!status.ok()) {
      error_ = std::move(status);
      changed_.notify_all();
      return;
    }
    ++produced_;
    changed_.notify_all();
  }
}

absl::StatusOr<const MicroBatch*> Prefetcher::Next() {
  MP_CHECK(thread_.joinable()) << "Start was not called";
  std::unique_lock lock(mutex_);
  if (taken_ == produced_ && error_.ok()) {
    const auto start = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return taken_ < produced_ || !error_.ok(); });
    wait_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (taken_ == produced_) return error_;  // batches before the bad one are still handed out
  const MicroBatch* batch = &slots_[taken_++ % slots_.size()];
  lock.unlock();
  changed_.notify_all();
  return batch;
}

}  // namespace milepost::data
