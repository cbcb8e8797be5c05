// Walks a plan::Program on a Backend: the communication stream and those on which pipeline stages
// hand on to each other (where the program has them) each on a thread of the executor's, all others
// on the calling thread, in program order: a host that copies to itself or computes twice at once
// gains nothing.
//
//   MP_ASSIGN_OR_RETURN(auto executor, Executor::Create(plan, plan.train, &backend, on_failure));
//   for (each micro-step) MP_RETURN_IF_ERROR(executor->Run(Section::kMicroStep, context));
//   MP_RETURN_IF_ERROR(executor->Run(Section::kReduce, context));   // scalars are final now
//   MP_RETURN_IF_ERROR(executor->Run(Section::kUpdate, context));
//
// Every op is bound at creation. A run makes no allocation and no system call but those by which
// the threads wait for each other; where there is one it takes no lock either.
//
// One thread at a time drives an executor. An error of any stream stops all, is returned by the
// current Run and by every later one.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_EXECUTOR_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_EXECUTOR_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/op_time.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

enum class Section : uint8_t {
  kMicroStep,  // forward and backward. Joins all streams, but on the last micro-step returns when
               // the compute stream is done: the communication stream may still be reducing.
  kReduce,     // update ops up to kReduceScalars. Joins all streams.
  kUpdate,     // update ops after it. Joins all streams.
};
inline constexpr int kSections = 3;
// By op index: the section that each op of the program is part of.
std::vector<Section> SectionsOf(const plan::Program& program);

class Executor {
 public:
  // `plan`, `program` (one of its programs) and `backend` must outlive the executor. `on_failure`
  // is called once, from the failing stream's thread, when an op fails: it must make a
  // communication op that is under way return (Communicator::Abort).
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const plan::StepPlan& plan, const plan::Program& program, Backend* backend,
      std::function<void(const absl::Status&)> on_failure);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  absl::Status Run(Section section, const StepContext& context);

  // Call only after a section that joins.
  StreamTimes stream_times() const;
  // By kind and phase, in order of first appearance. Call only after a section that joins.
  std::vector<OpKindTime> Times() const;

 private:
  struct Thunk {
    BoundOp run;
    const plan::PlannedOp* planned = nullptr;
    int32_t index = 0;  // in the program
    bool last_only = false;
    bool signals = false;            // an op of another thread waits for it
    std::vector<int32_t> waits_for;  // indices of ops of other threads
    int64_t runs = 0;
    double seconds = 0;
  };
  // Ops have tickets that grow along a run of the executor: base of the section's latest run +
  // index + 1. A thread's progress is the ticket of the last op it has finished.
  struct Command {
    Section section = Section::kMicroStep;
    std::array<int64_t, kSections> bases = {};
    StepContext context;
  };
  static constexpr int kPhases = static_cast<int>(graph::Phase::kRecompute) + 1;
  enum Thread : int { kCaller, kCommunication, kActivations, kGradients };
  static constexpr int kThreads = kGradients + 1;
  static Thread ThreadOf(plan::Stream stream) {
    switch (stream) {
      case plan::Stream::kCommunication:
        return kCommunication;
      case plan::Stream::kStageActivations:
        return kActivations;
      case plan::Stream::kStageGradients:
        return kGradients;
      default:
        return kCaller;
    }
  }
  struct ThreadState {
    std::array<double, kPhases> seconds = {};  // in its ops, by phase
    std::array<std::vector<Thunk>, kSections> thunks;
    std::atomic<int64_t> progress{0};
    int64_t finished = 0;  // of the commands posted
    std::thread thread;    // none: the caller's, or nothing runs there
  };

  Executor(const plan::Program& program, std::function<void(const absl::Status&)> on_failure);
  absl::Status Bind(const plan::StepPlan& plan, const plan::Program& program, Backend* backend);
  void RunThread(Thread thread, const Command& command);
  void AwaitOps(const Thunk& thunk, const Command& command);
  void Release(Thread thread);
  void AwaitProgress(std::atomic<int64_t>& progress, int64_t ticket);
  void Post(const Command& command);
  void Join();
  void Loop(Thread thread);
  void Fail(Thread thread, const absl::Status& status);
  bool HasThreads() const { return others_ > 0; }
  int64_t LeastFinished() const;

  const int64_t ops_;
  std::vector<Section> section_of_;            // by op index
  std::vector<uint8_t> last_only_;             // by op index
  std::array<ThreadState, kThreads> threads_;  // by Thread
  std::vector<Thread> thread_of_;              // by op index
  int others_ = 0;                             // threads beside the caller's
  std::function<void(const absl::Status&)> on_failure_;
  Command command_;   // of the calling thread
  int64_t base_ = 0;  // of the next run
  double wait_seconds_ = 0;

  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;           // first failure
  std::array<Command, 4> queue_;  // for the other threads: a ring
  int64_t posted_ = 0;
  bool stop_ = false;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_EXECUTOR_H_
