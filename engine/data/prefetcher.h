// Fetches a rank's next micro-batches on its own threads, while the rank trains on the current one.
//
//   Prefetcher prefetcher(source, layout, {.depth = 2, .threads = 4});
//   prefetcher.Start(/*first_sample=*/state.samples_consumed());
//   MP_ASSIGN_OR_RETURN(const MicroBatch* batch, prefetcher.Next());   // micro-step 0 of that step
//   ...                                                   // valid until the next call of Next
//
// Order: micro-steps of the first step, then those of the next step, and so on without end, for any
// number of threads. Memory is bounded: depth + 1 micro-batches are allocated at construction, and
// nothing of ours later. One thread must call Start, Next and the destructor.
#ifndef MILEPOST_ENGINE_DATA_PREFETCHER_H_
#define MILEPOST_ENGINE_DATA_PREFETCHER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/sample_source.h"

namespace milepost::data {

// Counts over this rank's micro-batches of a step.
struct StepCounts {
  std::vector<int64_t> targets;       // by field: valid targets in all micro-batches
  std::vector<int64_t> most_targets;  // by field: valid targets in the micro-batch with the most
  std::vector<int64_t> documents;     // by micro-step: packed documents
};

struct MicroBatch {
  int64_t first_sample = 0;               // global number of its first sample
  std::vector<std::vector<char>> fields;  // in the source's order, micro_batch samples each
  StepCounts step;                        // counts of the step that it belongs to
};

struct PrefetchOptions {
  int depth = 2;    // micro-batches ahead of the current one, at least 1
  int threads = 1;  // above 1: each fetches single samples, for costly samples
};

// Deep enough that every thread has a sample to fetch while Next waits for a micro-batch.
PrefetchOptions ForThreads(int threads, int64_t micro_batch);

class Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const SampleSource> data, const BatchLayout& layout,
             const PrefetchOptions& options = {});
  ~Prefetcher();  // stops the threads
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The bytes of all micro-batches.
  int64_t Bytes() const;

  // Starts, or restarts at another position. `first_sample` is the global number of a step's first
  // sample, over all ranks. Drops what was fetched before.
  void Start(int64_t first_sample);

  // Returns the next micro-batch, and waits for it if necessary. It is valid until the next call of
  // Next or Start. A data error stays: every later Next returns it, until Start. It is the error of
  // the first bad sample, for any number of threads. Start must have been called (CHECK).
  absl::StatusOr<const MicroBatch*> Next();

  // The seconds that Next has waited since construction.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    MicroBatch batch;
    int64_t number = -1;  // its micro-batch since Start, complete or not
    int64_t missing = 0;  // units of it not yet fetched
  };

  void Stop();
  void Produce(int64_t first_sample);
  bool MayFetch(int64_t unit) const;  // `mutex_` is held
  bool BatchIsThere() const;
  bool ErrorIsDue() const;
  absl::Status FetchUnit(int64_t unit, int64_t first_sample, MicroBatch& batch);
  absl::Status CountStep(int64_t step_first, StepCounts* counts) const;

  const std::shared_ptr<const SampleSource> data_;
  const BatchLayout layout_;
  // A micro-batch is fetched in this many parts, each by any thread.
  const int64_t units_;
  std::vector<Slot> slots_;  // a ring: micro-batch n lies in slot n % size
  // Counts of the step that is being fetched; used with one thread.
  StepCounts counts_;

  std::mutex mutex_;
  std::condition_variable fetched_;
  std::condition_variable freed_;
  int64_t next_unit_ = 0;  // since Start; threads get units in order
  int64_t in_flight_ = 0;  // handed out, not yet fetched
  int64_t taken_ = 0;      // micro-batches that Next returned; the last is in use
  bool stop_ = false;
  absl::Status error_;
  int64_t error_unit_ = 0;  // the first bad unit

  std::vector<std::thread> threads_;
  const int thread_count_;
  double wait_seconds_ = 0;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_PREFETCHER_H_
