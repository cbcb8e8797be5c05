#include "engine/runtime/executor/executor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/short_slices.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace milepost::runtime {
namespace {

// Tickets that are met within a few microseconds are not worth a sleep.
constexpr int kSpins = 200;

}  // namespace

std::vector<Section> SectionsOf(const plan::Program& program) {
  std::vector<Section> sections;
  bool reduced = false;
  for (const plan::PlannedOp& op : program.ops) {
    Section section = Section::kMicroStep;
    if (op.when == plan::When::kUpdate) section = reduced ? Section::kUpdate : Section::kReduce;
    reduced = reduced || op.op.kind == graph::OpKind::kReduceScalars;
    sections.push_back(section);
  }
  return sections;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    const plan::StepPlan& plan, const plan::Program& program, Backend* backend,
    std::function<void(const absl::Status&)> on_failure) {
  auto executor = std::unique_ptr<Executor>(new Executor(program, std::move(on_failure)));
  MP_RETURN_IF_ERROR(executor->Bind(plan, program, backend));
  constexpr const char* kNames[kThreads] = {"", "mp-comm", "mp-activations", "mp-gradients"};
  for (const Thread thread : {kCommunication, kActivations, kGradients}) {
    ThreadState& state = executor->threads_[thread];
    const auto used = [](const std::vector<Thunk>& section) { return !section.empty(); };
    if (std::none_of(state.thunks.begin(), state.thunks.end(), used)) continue;
    ++executor->others_;
    state.thread = std::thread([e = executor.get(), thread] { e->Loop(thread); });
    pthread_setname_np(state.thread.native_handle(), kNames[thread]);
  }
  return executor;
}

Executor::Executor(const plan::Program& program,
                   std::function<void(const absl::Status&)> on_failure)
    : ops_(static_cast<int64_t>(program.ops.size())), on_failure_(std::move(on_failure)) {}

Executor::~Executor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (ThreadState& state : threads_) {
    if (state.thread.joinable()) state.thread.join();
  }
}

absl::Status Executor::Bind(const plan::StepPlan& plan, const plan::Program& program,
                            Backend* backend) {
  section_of_ = SectionsOf(program);
  std::vector<uint8_t> signals(program.ops.size());
  for (const plan::PlannedOp& op : program.ops) {
    thread_of_.push_back(ThreadOf(op.stream));
    for (int32_t before : op.wait_for) {
      if (ThreadOf(program.ops[before].stream) != ThreadOf(op.stream)) signals[before] = 1;
    }
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const plan::PlannedOp& op = program.ops[i];
    last_only_.push_back(op.when == plan::When::kLastMicroStep);
    absl::StatusOr<BoundOp> bound = backend->Bind(plan, program, op);
    if (!bound.ok()) {
      return Annotate(bound.status(), absl::StrCat("op ", i, " (", graph::Name(op.op.kind), ")"));
    }
    Thunk thunk;
    thunk.run = *std::move(bound);
    thunk.planned = &op;
    thunk.index = static_cast<int32_t>(i);
    thunk.last_only = last_only_.back() != 0;
    thunk.signals = signals[i] != 0;
    for (int32_t before : op.wait_for) {
      MP_CHECK(program.ops[before].stream != op.stream && before < static_cast<int32_t>(i));
      if (ThreadOf(program.ops[before].stream) != ThreadOf(op.stream)) {
        thunk.waits_for.push_back(before);
      }
    }
    threads_[ThreadOf(op.stream)].thunks[static_cast<int>(section_of_[i])].push_back(
        std::move(thunk));
  }
  return absl::OkStatus();
}

absl::Status Executor::Run(Section section, const StepContext& context) {
  if (!failed_.load(std::memory_order_acquire)) {
    command_.section = section;
    command_.context = context;
    command_.bases[static_cast<int>(section)] = base_;
    base_ += ops_;
    if (HasThreads()) Post(command_);
    RunThread(kCaller, command_);
  }
  const bool failed = failed_.load(std::memory_order_acquire);
  const bool goes_on = section == Section::kMicroStep && context.last_micro_step;
  if (HasThreads() && (failed || !goes_on)) Join();
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return status_;
}

void Executor::RunThread(Thread thread, const Command& command) {
  ThreadState& state = threads_[thread];
  const int64_t base = command.bases[static_cast<int>(command.section)];
  double now = SteadySeconds();
  for (Thunk& thunk : state.thunks[static_cast<int>(command.section)]) {
    if (thunk.last_only && !command.context.last_micro_step) continue;
    if (!thunk.waits_for.empty()) {
      AwaitOps(thunk, command);
      const double waited = SteadySeconds();
      if (thread == kCaller) wait_seconds_ += waited - now;
      now = waited;
    }
    if (failed_.load(std::memory_order_acquire)) return Release(thread);
    if (absl::Status status = thunk.run(command.context); !status.ok()) {
      return Fail(thread, Annotate(status, graph::Name(thunk.planned->op.kind)));
    }
    const double end = SteadySeconds();
    thunk.seconds += end - now;
    state.seconds[static_cast<int>(thunk.planned->op.phase)] += end - now;
    ++thunk.runs;
    now = end;
    if (thunk.signals) {
      state.progress.store(base + thunk.index + 1, std::memory_order_release);
      state.progress.notify_all();
    }
  }
}

void Executor::AwaitOps(const Thunk& thunk, const Command& command) {
  for (const int32_t before : thunk.waits_for) {
    const bool same_section = section_of_[before] == command.section;
    if (same_section && last_only_[before] != 0 && !command.context.last_micro_step) continue;
    const int64_t ticket = command.bases[static_cast<int>(section_of_[before])] + before + 1;
    AwaitProgress(threads_[thread_of_[before]].progress, ticket);
  }
}

// Others wake from any wait for this thread, which goes no further, and see that something failed.
void Executor::Release(Thread thread) {
  std::atomic<int64_t>& progress = threads_[thread].progress;
  progress.store(std::numeric_limits<int64_t>::max(), std::memory_order_release);
  progress.notify_all();
}

void Executor::AwaitProgress(std::atomic<int64_t>& progress, int64_t ticket) {
  for (int spin = 0;; ++spin) {
    const int64_t reached = progress.load(std::memory_order_acquire);
    if (reached >= ticket) return;
    if (spin >= kSpins) progress.wait(reached, std::memory_order_acquire);
  }
}

void Executor::Post(const Command& command) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return posted_ - LeastFinished() < static_cast<int64_t>(queue_.size()); });
    queue_[posted_ % queue_.size()] = command;
    ++posted_;
  }
  changed_.notify_all();
}

void Executor::Join() {
  const double start = SteadySeconds();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return LeastFinished() == posted_; });
  wait_seconds_ += SteadySeconds() - start;
}

int64_t Executor::LeastFinished() const {
  int64_t least = posted_;
  for (const ThreadState& state : threads_) {
    if (state.thread.joinable()) least = std::min(least, state.finished);
  }
  return least;
}

void Executor::Loop(Thread thread) {
  TakeShortSlices();
  ThreadState& state = threads_[thread];
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || state.finished < posted_; });
    if (state.finished == posted_) return;  // stopped, and nothing left
    const Command command = queue_[state.finished % queue_.size()];
    lock.unlock();
    if (failed_.load(std::memory_order_acquire)) {
      Release(thread);
    } else {
      RunThread(thread, command);
    }
    lock.lock();
    ++state.finished;
    changed_.notify_all();
  }
}

void Executor::Fail(Thread thread, const absl::Status& status) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = status_.ok();
    if (first) status_ = status;
  }
  failed_.store(true, std::memory_order_release);
  Release(thread);
  if (first && on_failure_) on_failure_(status);
}

StreamTimes Executor::stream_times() const {
  using graph::Phase;
  const auto& compute = threads_[kCaller].seconds;
  double communication = 0;
  for (const Thread thread : {kCommunication, kActivations, kGradients}) {
    const auto& seconds = threads_[thread].seconds;
    communication = std::accumulate(seconds.begin(), seconds.end(), communication);
  }
  const auto in = [&](Phase phase) { return compute[static_cast<int>(phase)]; };
  return {.forward = in(Phase::kForward),
          .backward = in(Phase::kBackward) + in(Phase::kRecompute),
          .update = in(Phase::kUpdate),
          .exposed = wait_seconds_,
          .communication = communication};
}

std::vector<OpKindTime> Executor::Times() const {
  std::vector<OpKindTime> times;
  for (const ThreadState& thread : threads_) {
    for (const auto& section : thread.thunks) {
      for (const Thunk& thunk : section) {
        AddOpTime(*thunk.planned, thunk.runs, thunk.seconds, &times);
      }
    }
  }
  return times;
}

}  // namespace milepost::runtime
