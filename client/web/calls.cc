#include "client/web/calls.h"

#include <algorithm>

#include "absl/status/status.h"
#include "client/web/json_api.h"
#include "common/pki/secret.h"
#include "common/steady_time.h"

namespace milepost::client {

Calls::Calls(const CallOptions& options) : options_(options) {
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Work(); });
}

Calls::~Calls() {
  std::deque<Task> left;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    left.swap(waiting_);
  }
  for (const Task& task : left) {
    task.drop(ErrorResponse(absl::UnavailableError("the web server stops")));
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Calls::Runnable() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Task& task) {
    const auto found = running_.find(task.principal);
    return found == running_.end() || found->second < options_.most_running;
  });
}

void Calls::Work() {
  const auto ready = [this] {
    mutex_.AssertReaderHeld();
    return stop_ || Runnable();
  };
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      if (stop_) return;
      const auto next = std::find_if(waiting_.begin(), waiting_.end(), [&](const Task& one) {
        mutex_.AssertHeld();
        return running_[one.principal] < options_.most_running;
      });
      task = std::move(*next);
      waiting_.erase(next);
      ++running_[task.principal];
    }
    task.run();
    absl::MutexLock lock(&mutex_);
    if (--running_[task.principal] == 0) running_.erase(task.principal);
  }
}

void Calls::Add(Task task) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stop_ && waiting_.size() < options_.most_waiting) {
      waiting_.push_back(std::move(task));
      return;
    }
  }
  task.drop(ErrorResponse(absl::ResourceExhaustedError("too many calls wait; try again soon")));
}

void Calls::ForgetOld(absl::Time now) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const Entry& entry = *it->second;
    const bool old = entry.done && (now >= entry.made + options_.kept || entry.writes != writes_);
    if (old) kept_bytes_ -= entry.response.body.size();
    it = old ? entries_.erase(it) : std::next(it);
  }
}

void Calls::Read(const std::string& principal, const std::string& what, Make make,
                 HttpAnswer answer) {
  const Key key(principal, Sha256(what));  // a request may have a megabyte
  auto entry = std::make_shared<Entry>();
  HttpResponse kept;
  {
    absl::MutexLock lock(&mutex_);
    ForgetOld(SteadyNow());
    const auto found = entries_.find(key);
    if (found != entries_.end() && found->second->writes == writes_) {
      if (!found->second->done) return found->second->waiting.push_back(std::move(answer));
      kept = found->second->response;
      entry = nullptr;
    } else {
      entry->writes = writes_;
      entry->waiting.push_back(std::move(answer));
      entries_[key] = entry;
    }
  }
  if (entry == nullptr) return answer(std::move(kept));
  Add({.principal = principal,
       .run = [this, key, entry, make = std::move(make)] { Finish(key, entry, make()); },
       .drop = [this, key,
                entry](HttpResponse refusal) { Finish(key, entry, std::move(refusal)); }});
}

void Calls::Finish(const Key& key, const std::shared_ptr<Entry>& entry, HttpResponse response) {
  std::vector<HttpAnswer> answers;
  {
    absl::MutexLock lock(&mutex_);
    answers.swap(entry->waiting);
    entry->done = true;
    entry->made = SteadyNow();
    const auto found = entries_.find(key);
    if (found != entries_.end() && found->second == entry) {
      if (kept_bytes_ + response.body.size() > options_.most_kept_bytes) {
        entries_.erase(found);
      } else {
        kept_bytes_ += response.body.size();
        entry->response = response;
      }
    }
  }
  for (const HttpAnswer& answer : answers) answer(response);
}

void Calls::Write(const std::string& principal, Make make, HttpAnswer answer) {
  Add({.principal = principal,
       .run =
           [this, make = std::move(make), answer] {
             HttpResponse response = make();
             {
               absl::MutexLock lock(&mutex_);
               ++writes_;
             }
             answer(std::move(response));
           },
       .drop = [answer](HttpResponse refusal) { answer(std::move(refusal)); }});
}

}  // namespace milepost::client
