// The address at which a script's rank talks to Milepost: HTTP on loopback, for this rank alone.
//
//   MP_ASSIGN_OR_RETURN(auto endpoint, RankEndpoint::Start(scratch_folder, answer_slowly));
//   environment: endpoint->url(), endpoint->token_file()
//   if (const auto news = endpoint->TakeNews()) Send(*news);
//
// A POST needs `Authorization: Bearer TOKEN`, with the token in the file. /progress takes what a
// script says of how far it is (script_progress.h): 200, or 400 if it is no status, 413 above
// 64 KiB. Other paths are answered by `slow`. 401 without the token. Thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_RANK_ENDPOINT_H_
#define MILEPOST_WORKER_SCRIPT_RANK_ENDPOINT_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"
#include "worker/script/script_progress.h"

namespace milepost::worker {

class RankEndpoint {
 public:
  // Answers a path and a body. Called on a thread of its own, one at a time; may block.
  using Slow = std::function<HttpResponse(const std::string& path, const std::string& body)>;

  // Writes the token into `folder`, which only this user may read. UNAVAILABLE: no port or no disk.
  static absl::StatusOr<std::unique_ptr<RankEndpoint>> Start(const std::string& folder, Slow slow);
  ~RankEndpoint();  // blocks while `slow` does

  const std::string& url() const { return url_; }  // without a path
  const std::string& token_file() const { return token_file_; }

  // What is new since the last call; the first time what holds before any report. Does not block.
  std::optional<v1::Progress> TakeNews();

 private:
  struct Waiting {
    HttpRequest request;
    HttpAnswer answer;
  };

  explicit RankEndpoint(Slow slow) : slow_(std::move(slow)) {}
  void Take(HttpRequest request, const HttpAnswer& answer);
  HttpResponse TakeProgress(const std::string& body);
  void AnswerSlowly();
  bool HasWaiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || !waiting_.empty();
  }

  const Slow slow_;
  std::string url_, token_file_, token_;
  absl::Mutex mutex_;
  ScriptProgress progress_ ABSL_GUARDED_BY(mutex_);
  bool news_ ABSL_GUARDED_BY(mutex_) = true;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // at most one for each connection
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  std::unique_ptr<HttpServer> server_;  // last: it ends first
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_RANK_ENDPOINT_H_
