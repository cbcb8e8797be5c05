#include "client/serve/text_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace milepost::client {

TextQueue::TextQueue(size_t most_waiting, size_t at_once, std::function<void(Waiting&)> answer)
    : most_waiting_(most_waiting), answer_(std::move(answer)) {
  for (size_t i = 0; i < at_once; ++i) threads_.emplace_back([this] { Run(); });
}

TextQueue::~TextQueue() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  absl::MutexLock lock(&mutex_);
  for (const Waiting& one : waiting_) {
    one.reply->Fail(absl::UnavailableError("the server is ending"));
  }
}

bool TextQueue::Add(Waiting&& one) {
  std::vector<Waiting> left;  // let go outside the lock
  absl::MutexLock lock(&mutex_);
  if (stop_) return false;
  if (waiting_.size() >= most_waiting_) {
    const auto gone = std::stable_partition(waiting_.begin(), waiting_.end(),
                                            [](const Waiting& w) { return !w.reply->Left(); });
    std::move(gone, waiting_.end(), std::back_inserter(left));
    waiting_.erase(gone, waiting_.end());
  }
  if (waiting_.size() >= most_waiting_) return false;
  waiting_.push_back(std::move(one));
  return true;
}

size_t TextQueue::waiting() {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

void TextQueue::Run() {
  while (true) {
    Waiting one;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || !waiting_.empty();
      };
      mutex_.Await(absl::Condition(&due));
      if (stop_) return;
      one = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (!one.reply->Left()) answer_(one);
  }
}

}  // namespace milepost::client
