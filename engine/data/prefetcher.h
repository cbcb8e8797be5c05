// Fetches a rank's next micro-batches on threads of its own while the current ones are trained on.
//
//   Prefetcher prefetcher(source, layout, {.depth = 2, .threads = 4});
//   prefetcher.Start(/*first_sample=*/state.samples_consumed());
//   MP_ASSIGN_OR_RETURN(const MicroBatch* batch, prefetcher.Next());   // micro-step 0 of that step
//   ...                                                                // valid until the next Next
//
// Order: micro-steps of the first step, then those of the next one, and so on for ever, whatever
// the number of threads. Memory is bounded: depth + 1 micro-batches, allocated at construction;
// nothing of ours is allocated afterwards. Start, Next and the destructor belong to one thread.
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

// What this rank's micro-batches of a step have.
struct StepCounts {
  std::vector<int64_t> targets;       // by field: valid ones, of all
  std::vector<int64_t> most_targets;  // by field: of the one that has the most
  std::vector<int64_t> documents;     // by micro-step: packed ones
};

struct MicroBatch {
  int64_t first_sample = 0;               // global number of the first of its samples
  std::vector<std::vector<char>> fields;  // in the source's order, micro_batch samples each
  StepCounts step;                        // that it is a part of
};

struct PrefetchOptions {
  int depth = 2;    // micro-batches ahead of the one in use, at least 1
  int threads = 1;  // more than one: each fetches sample by sample, for samples that cost time
};

// So deep that every thread has a sample to fetch while a micro-batch is waited for.
PrefetchOptions ForThreads(int threads, int64_t micro_batch);

class Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const SampleSource> data, const BatchLayout& layout,
             const PrefetchOptions& options = {});
  ~Prefetcher();  // stops the threads
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Bytes of all micro-batches.
  int64_t Bytes() const;

  // Starts, or restarts at another position: `first_sample` is the global number of a step's first
  // sample (over all ranks). Drops what was fetched before.
  void Start(int64_t first_sample);

  // The next micro-batch, waiting for it if need be; valid until the next call of Next or Start. A
  // data error stays: every later Next returns it until Start; it is the first bad sample's,
  // however many threads there are. Start must have been called (CHECK).
  absl::StatusOr<const MicroBatch*> Next();

  // Seconds that Next has waited since construction.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    MicroBatch batch;
    int64_t number = -1;  // micro-batch since Start that it holds or is being filled with
    int64_t missing = 0;  // units of it that have not been fetched
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
  // A micro-batch is fetched in so many parts, each by any thread.
  const int64_t units_;
  std::vector<Slot> slots_;  // a ring: micro-batch n lies in slot n % size
  // Of the step being fetched, with one thread.
  StepCounts counts_;

  std::mutex mutex_;
  std::condition_variable fetched_;
  std::condition_variable freed_;
  int64_t next_unit_ = 0;  // since Start; handed to threads in order
  int64_t in_flight_ = 0;  // handed out, not yet fetched
  int64_t taken_ = 0;      // micro-batches handed out by Next; the last of them is still in use
  bool stop_ = false;
  absl::Status error_;
  int64_t error_unit_ = 0;  // the first bad unit

  std::vector<std::thread> threads_;
  const int thread_count_;
  double wait_seconds_ = 0;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_PREFETCHER_H_
