// Fetches a rank's next micro-batches on a thread of its own while the current ones are trained on.
//
//   Prefetcher prefetcher(source, layout, /*depth=*/2);
//   prefetcher.Start(/*first_sample=*/state.samples_consumed());
//   MP_ASSIGN_OR_RETURN(const MicroBatch* batch, prefetcher.Next());   // micro-step 0 of that step
//   ...                                                                // valid until the next Next
//
// Order: micro-steps of the first step, then those of the next one, and so on for ever. Memory is
// bounded: depth + 1 micro-batches, allocated at construction; nothing is allocated afterwards.
// Start, Next and the destructor belong to one thread.
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

struct MicroBatch {
  int64_t first_sample = 0;               // global number of the first of its samples
  std::vector<std::vector<char>> fields;  // in the source's order, micro_batch samples each
  // By field: valid targets of all of this rank's micro-batches of the step.
  std::vector<int64_t> step_targets;
};

class Prefetcher {
 public:
  Prefetcher(std::shared_ptr<const SampleSource> data, const BatchLayout& layout, int depth = 2);
  ~Prefetcher();  // stops the thread
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Bytes of all micro-batches.
  int64_t Bytes() const;

  // Starts, or restarts at another position: `first_sample` is the global number of a step's first
  // sample (over all ranks). Drops what was fetched before.
  void Start(int64_t first_sample);

  // The next micro-batch, waiting for it if need be; valid until the next call of Next or Start. A
  // data error stays: every later Next returns it until Start. Start must have been called (CHECK).
  absl::StatusOr<const MicroBatch*> Next();

  // Seconds that Next has waited since construction.
  double wait_seconds() const { return wait_seconds_; }

 private:
  void Stop();
  void Produce(int64_t first_sample);
  absl::Status Fill(int64_t number, int64_t step_first, MicroBatch& batch);
  absl::Status CountStep(int64_t step_first);

  const std::shared_ptr<const SampleSource> data_;
  const BatchLayout layout_;
  std::vector<MicroBatch> slots_;      // a ring
  std::vector<int64_t> step_targets_;  // of the step being fetched

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t produced_ = 0;  // micro-batches since Start; slot = number % slots
  int64_t taken_ = 0;     // handed out by Next; the last of them is still in use
  bool stop_ = false;
  absl::Status error_;

  std::thread thread_;
  double wait_seconds_ = 0;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_PREFETCHER_H_
