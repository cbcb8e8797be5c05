#include "coordinator/rpc/call_watch.h"

#include <algorithm>
#include <utility>

#include "common/steady_time.h"

namespace milepost::coordinator {

CallWatch::CallWatch(bool with_thread) {
  if (with_thread) thread_ = std::thread(&CallWatch::Run, this);
}

CallWatch::~CallWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

uint64_t CallWatch::Begin(Call call) {
  absl::MutexLock lock(&mutex_);
  calls_[++last_id_] = {.call = std::move(call)};
  return last_id_;
}

void CallWatch::End(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(id);
}

void CallWatch::Writing(uint64_t id, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = calls_.find(id); found != calls_.end()) found->second.writing = now;
}

void CallWatch::Written(uint64_t id) { Writing(id, absl::InfiniteFuture()); }

void CallWatch::Sweep(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, watched] : calls_) {
    if (watched.cancelled) continue;
    watched.over = watched.call.holds() ? absl::InfiniteFuture() : std::min(watched.over, now);
    const bool stalled = now >= watched.writing + kLongestWrite;
    if (!stalled && now < watched.over + kGrace) continue;
    watched.cancelled = true;
    watched.call.cancel();
  }
}

void CallWatch::Run() {
  while (true) {
    Sweep(SteadyNow());
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kEvery)) return;
  }
}

}  // namespace milepost::coordinator
