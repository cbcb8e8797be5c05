// Requests that wait for a model, which answers one at a time, in the order in which they came.
//
//   TextQueue queue(16, [&](TextQueue::Waiting& one) { Answer(one); });
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

  // `answer` runs on the queue's own thread.
  TextQueue(size_t most_waiting, std::function<void(Waiting&)> answer);
  // Ends after the request that is being answered; others get UNAVAILABLE. Whoever destroys it must
  // see to it that `answer` ends soon.
  ~TextQueue();
  TextQueue(const TextQueue&) = delete;
  TextQueue& operator=(const TextQueue&) = delete;

  // False, and `one` is as it was: most_waiting others wait, besides the one that is answered.
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
  std::thread thread_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_TEXT_QUEUE_H_
