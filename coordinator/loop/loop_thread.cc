#include "coordinator/loop/loop_thread.h"

#include <utility>

#include "absl/synchronization/notification.h"

namespace milepost::coordinator {

absl::StatusOr<std::string> Do(Loop* loop, Loop::Entry entry) {
  absl::Notification finished;
  absl::StatusOr<std::string> result;
  entry.done = [&](const absl::StatusOr<std::string>& its) {
    result = its;
    finished.Notify();
  };
  loop->Post(std::move(entry));
  finished.WaitForNotification();
  return result;
}

absl::StatusOr<std::string> Do(Loop* loop, Event event) {
  return Do(loop, Loop::Entry{.event = [event = std::move(event)] { return event; }});
}

absl::Status LoopThread::Begin(std::vector<Event> events) {
  absl::Status result;
  const Loop::Next next = loop_.Begin(
      std::move(events), [&result](const absl::Status& committed) { result = committed; });
  if (next.what == Loop::Next::kWrite) loop_.Wrote(work_.write(loop_.writing()));
  return result;
}

void LoopThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void LoopThread::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
  wake_.Signal();
}

void LoopThread::Stop() {
  loop_.Close();
  Wake();
  if (thread_.joinable()) thread_.join();
}

void LoopThread::Run() {
  while (true) {
    const Loop::Next next = loop_.Step();
    if (next.what == Loop::Next::kWrite) {
      loop_.Wrote(work_.write(loop_.writing()));
      continue;
    }
    if (work_.after_turn) work_.after_turn();
    if (loop_.closed()) break;
    if (next.what == Loop::Next::kStep) continue;
    absl::MutexLock lock(&mutex_);
    // Whoever posts or closes from here on has woken it.
    if (!woken_) wake_.WaitWithTimeout(&mutex_, next.at_most);
    woken_ = false;
  }
  loop_.End();
}

}  // namespace milepost::coordinator
