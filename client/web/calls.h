// Runs the calls that pages request, on a few threads. When several pages request the same thing at
// once or within a second, it is asked only once.
//
//   calls.Read(principal, "JobService/GetJob jobs/7", [=] { return Ask(...); }, answer);
//   calls.Write(principal, [=] { return Ask(...); }, answer);
//
// Only callers with the same `principal` share answers. A read that comes after a Write's answer
// shows what the Write changed. Three numbers are bounded: waiting calls (further ones get 429),
// running calls of one principal, and kept bytes. Thread-safe. Neither Read nor Write blocks.
#ifndef MILEPOST_CLIENT_WEB_CALLS_H_
#define MILEPOST_CLIENT_WEB_CALLS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"

namespace milepost::client {

struct CallOptions {
  int threads = 16;
  int most_running = 8;  // calls of one principal
  size_t most_waiting = 512;
  absl::Duration kept = absl::Seconds(1);
  size_t most_kept_bytes = 64 << 20;
};

class Calls {
 public:
  using Make = std::function<HttpResponse()>;  // blocks

  explicit Calls(const CallOptions& options);
  ~Calls();  // waits for running calls; waiting ones get 503
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  void Read(const std::string& principal, const std::string& what, Make make, HttpAnswer answer);
  void Write(const std::string& principal, Make make, HttpAnswer answer);

 private:
  struct Task {
    std::string principal;
    std::function<void()> run;
    std::function<void(HttpResponse)> drop;
  };
  // One read. It exists while it runs, and while its answer is kept.
  struct Entry {
    int64_t writes = 0;  // number of writes before the read began
    bool done = false;
    absl::Time made;
    HttpResponse response;
    std::vector<HttpAnswer> waiting;
  };
  using Key = std::pair<std::string, std::string>;

  void Add(Task task);
  void Work();
  bool Runnable() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Finish(const Key& key, const std::shared_ptr<Entry>& entry, HttpResponse response);
  void ForgetOld(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallOptions options_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> running_ ABSL_GUARDED_BY(mutex_);  // by principal
  std::map<Key, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_CALLS_H_
