#include "engine/data/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {

PrefetchOptions ForThreads(int threads, int64_t micro_batch) {
  const int64_t wanted = threads == 1 ? 0 : (2 * threads + micro_batch - 1) / micro_batch;
  return {.depth = static_cast<int>(std::max<int64_t>(2, wanted)), .threads = threads};
}

Prefetcher::Prefetcher(std::shared_ptr<const SampleSource> data, const BatchLayout& layout,
                       const PrefetchOptions& options)
    : data_(std::move(data)),
      layout_(layout),
      units_(options.threads == 1 ? 1 : layout.micro_batch),
      slots_(static_cast<size_t>(options.depth + 1)),
      thread_count_(options.threads) {
  MP_CHECK(options.depth >= 1 && options.threads >= 1) << options.depth << " " << options.threads;
  counts_.targets.resize(data_->fields().size());
  counts_.most_targets.resize(data_->fields().size());
  counts_.documents.resize(static_cast<size_t>(layout.accumulation));
  for (Slot& slot : slots_) {
    slot.batch.step = counts_;
    for (const Field& field : data_->fields()) {
      slot.batch.fields.emplace_back(layout.micro_batch * field.sample_bytes);
    }
  }
}

Prefetcher::~Prefetcher() { Stop(); }

int64_t Prefetcher::Bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    for (const auto& field : slot.batch.fields) bytes += static_cast<int64_t>(field.size());
  }
  return bytes;
}

void Prefetcher::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  freed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Prefetcher::Start(int64_t first_sample) {
  Stop();
  for (Slot& slot : slots_) slot.number = -1;
  next_unit_ = 0;
  in_flight_ = 0;
  taken_ = 0;
  stop_ = false;
  error_ = absl::OkStatus();
  for (int i = 0; i < thread_count_; ++i) {
    threads_.emplace_back([this, first_sample] { Produce(first_sample); });
  }
}

bool Prefetcher::MayFetch(int64_t unit) const {
  // The slot is free once the batch after the one that it held has been taken.
  const auto slots = static_cast<int64_t>(slots_.size());
  return error_.ok() && unit / units_ - taken_ < slots - (taken_ > 0 ? 1 : 0);
}

void Prefetcher::Produce(int64_t first_sample) {
  std::unique_lock lock(mutex_);
  while (true) {
    freed_.wait(lock, [&] { return stop_ || MayFetch(next_unit_); });
    if (stop_) return;
    const int64_t unit = next_unit_++;
    const int64_t number = unit / units_;
    Slot& slot = slots_[static_cast<size_t>(number) % slots_.size()];
    if (unit % units_ == 0) {
      slot.number = number;
      slot.missing = units_;
    }
    ++in_flight_;
    lock.unlock();
    absl::Status status = FetchUnit(unit, first_sample, slot.batch);
    lock.lock();
    --in_flight_;
    --slot.missing;
    if (!status.ok() && (error_.ok() || unit < error_unit_)) {
      error_ = std::move(status);
      error_unit_ = unit;
    }
    if (slot.missing == 0 || !error_.ok()) fetched_.notify_one();
  }
}

absl::Status Prefetcher::FetchUnit(int64_t unit, int64_t first_sample, MicroBatch& batch) {
  const int64_t number = unit / units_;
  const int64_t micro_step = number % layout_.accumulation;
  const int64_t step_first = first_sample + number / layout_.accumulation * layout_.GlobalBatch();
  const int64_t batch_first = layout_.FirstSample(step_first, micro_step);
  const int64_t part = unit % units_;
  if (part == 0) {
    batch.first_sample = batch_first;
    if (thread_count_ > 1) {
      MP_RETURN_IF_ERROR(CountStep(step_first, &batch.step));
    } else {
      // One thread meets a step's first micro-batch before its others.
      if (micro_step == 0) MP_RETURN_IF_ERROR(CountStep(step_first, &counts_));
      batch.step = counts_;
    }
  }
  const int64_t count = layout_.micro_batch / units_;
  absl::InlinedVector<char*, kInlineFields> into;
  for (size_t field = 0; field < batch.fields.size(); ++field) {
    into.push_back(batch.fields[field].data() + part * count * data_->fields()[field].sample_bytes);
  }
  return data_->Fetch(batch_first + part * count, count, into);
}

absl::Status Prefetcher::CountStep(int64_t step_first, StepCounts* counts) const {
  for (int64_t a = 0; a < layout_.accumulation; ++a) {
    MP_ASSIGN_OR_RETURN(
        counts->documents[a],
        data_->CountDocuments(layout_.FirstSample(step_first, a), layout_.micro_batch));
  }
  for (size_t field = 0; field < counts->targets.size(); ++field) {
    int64_t all = 0, most = 0;
    for (int64_t a = 0; data_->fields()[field].targets != 0 && a < layout_.accumulation; ++a) {
      MP_ASSIGN_OR_RETURN(
          const int64_t count,
          data_->CountTargets(field, layout_.FirstSample(step_first, a), layout_.micro_batch));
      all += count;
      most = std::max(most, count);
    }
    counts->targets[field] = all;
    counts->most_targets[field] = most;
  }
  return absl::OkStatus();
}

bool Prefetcher::BatchIsThere() const {
  const Slot& slot = slots_[static_cast<size_t>(taken_) % slots_.size()];
  return slot.number == taken_ && slot.missing == 0 &&
         (error_.ok() || taken_ < error_unit_ / units_);
}

// Batches before the bad one are still handed out, and no earlier unit may yet fail.
bool Prefetcher::ErrorIsDue() const {
  return !error_.ok() && in_flight_ == 0 && taken_ >= error_unit_ / units_;
}

absl::StatusOr<const MicroBatch*> Prefetcher::Next() {
  MP_CHECK(!threads_.empty()) << "Start was not called";
  std::unique_lock lock(mutex_);
  if (!BatchIsThere() && !ErrorIsDue()) {
    const auto start = std::chrono::steady_clock::now();
    fetched_.wait(lock, [&] { return BatchIsThere() || ErrorIsDue(); });
    wait_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (!BatchIsThere()) return error_;
  const MicroBatch* batch = &slots_[static_cast<size_t>(taken_++) % slots_.size()].batch;
  lock.unlock();
  freed_.notify_all();
  return batch;
}

}  // namespace milepost::data
