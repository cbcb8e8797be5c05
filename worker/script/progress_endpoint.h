// The URL at which a script's rank says how far it is (script_progress.h): HTTP on loopback, for
// this rank alone.
//
//   MP_ASSIGN_OR_RETURN(auto endpoint, ProgressEndpoint::Start(scratch_folder));
//   environment: endpoint->url(), endpoint->token_file()
//   if (const auto news = endpoint->TakeNews()) Send(*news);
//
// A POST needs `Authorization: Bearer TOKEN`, with the token in the file. The answer is 200, or 400
// if it is no status, 401 without the token, 413 above 64 KiB. Thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_PROGRESS_ENDPOINT_H_
#define MILEPOST_WORKER_SCRIPT_PROGRESS_ENDPOINT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/http/http_server.h"
#include "worker/script/script_progress.h"

namespace milepost::worker {

class ProgressEndpoint {
 public:
  // Writes the token into `folder`, which only this user may read. UNAVAILABLE: no port or no disk.
  static absl::StatusOr<std::unique_ptr<ProgressEndpoint>> Start(const std::string& folder);

  const std::string& url() const { return url_; }
  const std::string& token_file() const { return token_file_; }

  // What is new since the last call; the first time what holds before any report. Does not block.
  std::optional<v1::Progress> TakeNews();

 private:
  ProgressEndpoint() = default;
  HttpResponse Answer(const HttpRequest& request);

  std::string url_, token_file_, token_;
  absl::Mutex mutex_;
  ScriptProgress progress_ ABSL_GUARDED_BY(mutex_);
  bool news_ ABSL_GUARDED_BY(mutex_) = true;
  std::unique_ptr<HttpServer> server_;  // last: it ends first
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_PROGRESS_ENDPOINT_H_
