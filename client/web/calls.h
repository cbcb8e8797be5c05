// Calls that pages ask for, on a few threads: what many ask for at a time, or within a second, is
// asked for once.
//
//   calls.Read(principal, "JobService/GetJob jobs/7", [=] { return Ask(...); }, answer);
//   calls.Write(principal, [=] { return Ask(...); }, answer);
//
// Only askers with the same `principal` share answers. What a Write changes, reads that come after
// its answer show. Bounded: calls that wait (more get 429), those of one principal that run, and
// bytes that are kept. Thread-safe; neither blocks.
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
  int most_running = 8;  // of one principal
  size_t most_waiting = 512;
  absl::Duration kept = absl::Seconds(1);
  size_t most_kept_bytes = 64 << 20;
};

class Calls {
 public:
  using Make = std::function<HttpResponse()>;  // blocks

  explicit Calls(const CallOptions& options);
  ~Calls();  // waits for what runs; what waits gets 503
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
  // One read, while it is asked for and for as long as its answer is kept.
  struct Entry {
    int64_t writes = 0;  // before it was asked for
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
