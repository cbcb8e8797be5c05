// Requests that wait for a model, which answers some at a time, in the order in which they came.
//
//   TextQueue queue(/*most_waiting=*/16, /*at_once=*/4,
//                   [&](TextQueue::Waiting& one) { Answer(one); });
//   if (!queue.Add(std::move(one))) ... full: say so ...
//
// Thread-safe.
#ifndef MILEPOST_CLIENT_SERVE_TEXT_QUEUE_H_
#define MILEPOST_CLIENT_SERVE_TEXT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/serve/answer_request.h"
#include "client/serve/api_request.h"

namespace milepost::client {

class TextQueue {
 public:
  struct Waiting {
    TextRequest request;
    std::unique_ptr<TextReply> reply;
  };

  // `answer` runs on the queue's own threads, `at_once` of them.
  TextQueue(size_t most_waiting, size_t at_once, std::function<void(Waiting&)> answer);
  // Ends after the requests that are being answered; others get UNAVAILABLE. Whoever destroys it
  // must see to it that `answer` ends soon.
  ~TextQueue();
  TextQueue(const TextQueue&) = delete;
  TextQueue& operator=(const TextQueue&) = delete;

  // False, and `one` is as it was: most_waiting others wait, besides those that are answered.
  // Those whose clients have left do not count, and are dropped.
  bool Add(Waiting&& one);
  size_t waiting();

 private:
  void Run();

  const size_t most_waiting_;
  const std::function<void(Waiting&)> answer_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_TEXT_QUEUE_H_
