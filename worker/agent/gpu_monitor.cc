#include "worker/agent/gpu_monitor.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/proto_time.h"
#include "common/steady_time.h"
#include "common/xid.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kFarewell = absl::Milliseconds(500);
// Between measurements, however often they are asked for.
constexpr absl::Duration kShortestInterval = absl::Milliseconds(100);

constexpr int64_t kMeasurementsPerCheck = 10;

// Of a GPU with a grave error.
struct Distrust {
  int xid = 0;
  int64_t measurements = 0;  // since
  absl::Status failure;      // of the last check
};

absl::Time Now() { return Clock::Real()->Now(); }

}  // namespace

// What the thread and the monitor share; it outlives a monitor whose thread hangs.
struct GpuMonitor::Shared {
  std::shared_ptr<Nvml> nvml;
  std::vector<Watched> watched;
  absl::Duration interval;

  absl::Mutex mutex;
  Report report ABSL_GUARDED_BY(mutex);  // empty: the monitor is gone
  bool soon ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  absl::Time busy_since ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
  bool overdue_told ABSL_GUARDED_BY(mutex) = false;
  // ---- the thread's own, by GPU ----
  Check check;
  std::map<int, std::pair<int, absl::Time>> last_xid;
  std::map<int, Distrust> distrusted;

  void Tell(v1::DeviceFacts facts) ABSL_LOCKS_EXCLUDED(mutex) {
    absl::MutexLock lock(&mutex);
    if (report) report(std::move(facts));
  }
  void TakeXids();
  std::string ProblemOf(int gpu);
  void MeasureAll();
};

void GpuMonitor::Shared::TakeXids() {
  for (const Nvml::Xid& xid : nvml->TakeXids()) {
    last_xid[xid.gpu] = {xid.code, Now()};
    if (XidNeedsCheck(xid.code)) distrusted[xid.gpu] = {.xid = xid.code};
  }
}

// Empty for a GPU that may be used.
std::string GpuMonitor::Shared::ProblemOf(int gpu) {
  const auto found = distrusted.find(gpu);
  if (found == distrusted.end()) return "";
  Distrust& distrust = found->second;
  if (distrust.measurements++ % kMeasurementsPerCheck == 1) {
    distrust.failure = check(gpu);
    if (distrust.failure.ok()) {
      distrusted.erase(found);
      return "";
    }
  }
  return absl::StrCat("the driver reported XID ", XidText(distrust.xid),
                      distrust.failure.ok() ? "; it is checked next" : "; it fails a check: ",
                      std::string(distrust.failure.message()));
}

void GpuMonitor::Shared::MeasureAll() {
  TakeXids();
  for (const Watched& entry : watched) {
    {
      absl::MutexLock lock(&mutex);
      busy_since = SteadyNow();  // checks of other GPUs may have taken long
    }
    v1::DeviceFacts facts = nvml->Measure(entry.gpu);
    facts.set_slot(entry.slot);
    *facts.mutable_time() = ToProto(Now());
    if (facts.problem().empty()) facts.set_problem(ProblemOf(entry.gpu));
    if (const auto xid = last_xid.find(entry.gpu); xid != last_xid.end()) {
      facts.set_last_xid(xid->second.first);
      *facts.mutable_last_xid_time() = ToProto(xid->second.second);
    }
    Tell(std::move(facts));
  }
}

void GpuMonitor::Loop(std::shared_ptr<Shared> shared) {
  const auto wanted = [s = shared.get()]()
                          ABSL_NO_THREAD_SAFETY_ANALYSIS { return s->soon || s->stopping; };
  absl::MutexLock lock(&shared->mutex);
  while (!shared->stopping) {
    shared->soon = false;
    shared->busy_since = SteadyNow();
    shared->mutex.Unlock();
    shared->MeasureAll();
    shared->mutex.Lock();
    shared->busy_since = absl::InfiniteFuture();
    shared->overdue_told = false;
    shared->mutex.AwaitWithTimeout(absl::Condition(&shared->stopping), kShortestInterval);
    shared->mutex.AwaitWithTimeout(absl::Condition(&wanted), shared->interval);
  }
  shared->nvml.reset();  // before the end is told: the library is then closed
  shared->ended = true;
}

GpuMonitor::GpuMonitor(std::shared_ptr<Nvml> nvml, std::vector<Watched> watched,
                       absl::Duration interval, Report report, Check check)
    : shared_(std::make_shared<Shared>()) {
  shared_->nvml = std::move(nvml);
  shared_->watched = std::move(watched);
  shared_->interval = interval;
  shared_->check = std::move(check);
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->report = std::move(report);
  }
  std::thread(&GpuMonitor::Loop, shared_).detach();
}

GpuMonitor::~GpuMonitor() {
  absl::MutexLock lock(&shared_->mutex);
  shared_->stopping = true;
  shared_->report = nullptr;
  shared_->mutex.AwaitWithTimeout(absl::Condition(&shared_->ended), kFarewell);
}

void GpuMonitor::MeasureSoon() {
  absl::MutexLock lock(&shared_->mutex);
  shared_->soon = true;
}

absl::Time GpuMonitor::CheckProgress(absl::Time now, absl::Duration patience) {
  absl::MutexLock lock(&shared_->mutex);
  const absl::Time due = shared_->busy_since + patience;
  if (now < due) return std::min(due, now + patience);
  if (!std::exchange(shared_->overdue_told, true)) {
    for (const Watched& entry : shared_->watched) {
      v1::DeviceFacts facts;
      facts.set_slot(entry.slot);
      *facts.mutable_time() = ToProto(Now());
      facts.set_problem(absl::StrCat("the driver has not answered for ",
                                     absl::FormatDuration(patience), ": restart the host"));
      shared_->report(std::move(facts));
    }
  }
  return now + patience;
}

}  // namespace milepost::worker
