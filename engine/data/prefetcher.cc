#include "engine/data/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {

Prefetcher::Prefetcher(std::shared_ptr<const SampleSource> data, const BatchLayout& layout,
                       int depth)
    : data_(std::move(data)), layout_(layout), slots_(depth + 1) {
  MP_CHECK(depth >= 1) << depth;
  step_targets_.resize(data_->fields().size());
  for (MicroBatch& slot : slots_) {
    slot.step_targets.resize(data_->fields().size());
    for (const Field& field : data_->fields()) {
      slot.fields.emplace_back(layout.micro_batch * field.sample_bytes);
    }
  }
}

Prefetcher::~Prefetcher() { Stop(); }

int64_t Prefetcher::Bytes() const {
  int64_t bytes = 0;
  for (const MicroBatch& slot : slots_) {
    for (const auto& field : slot.fields) bytes += static_cast<int64_t>(field.size());
  }
  return bytes;
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
    const int64_t step = number / layout_.accumulation;
    absl::Status status = Fill(number % layout_.accumulation,
                               first_sample + step * layout_.GlobalBatch(), slots_[number % slots]);
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

absl::Status Prefetcher::Fill(int64_t number, int64_t step_first, MicroBatch& batch) {
  if (number == 0) MP_RETURN_IF_ERROR(CountStep(step_first));
  batch.step_targets = step_targets_;
  batch.first_sample = layout_.FirstSample(step_first, number);
  absl::InlinedVector<char*, 4> into;
  for (std::vector<char>& field : batch.fields) into.push_back(field.data());
  return data_->Fetch(batch.first_sample, layout_.micro_batch, into);
}

absl::Status Prefetcher::CountStep(int64_t step_first) {
  std::fill(step_targets_.begin(), step_targets_.end(), 0);
  for (size_t field = 0; field < step_targets_.size(); ++field) {
    if (data_->fields()[field].targets == 0) continue;
    for (int64_t a = 0; a < layout_.accumulation; ++a) {
      MP_ASSIGN_OR_RETURN(
          const int64_t targets,
          data_->CountTargets(field, layout_.FirstSample(step_first, a), layout_.micro_batch));
      step_targets_[field] += targets;
    }
  }
  return absl::OkStatus();
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
