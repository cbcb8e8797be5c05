// Reports when the files of a TLS folder become unusable, and when they are usable again.
//
//   TlsWatch watch(TlsFolder("/etc/milepost/tls"), kLookAtTlsFiles, LogTlsFiles);
//
// gRPC reads the files again by itself, and silently keeps the last usable ones. So without this
// watch nobody would notice a bad new certificate until the old one has expired. `changed` is
// called on a thread of the watch, once for every change of CheckTlsFolder's result. The destructor
// waits for a running call; later there are no calls.
#ifndef MILEPOST_COMMON_RPC_TLS_WATCH_H_
#define MILEPOST_COMMON_RPC_TLS_WATCH_H_

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"

namespace milepost {

inline constexpr absl::Duration kLookAtTlsFiles = absl::Seconds(10);

// The usual callback: logs an error, and a line when the files are usable again.
void LogTlsFiles(const absl::Status& status);

class TlsWatch {
 public:
  // The files count as good at first, because a process with bad files does not start.
  TlsWatch(TlsFolder folder, absl::Duration every,
           std::function<void(const absl::Status&)> changed);
  ~TlsWatch();
  TlsWatch(const TlsWatch&) = delete;
  TlsWatch& operator=(const TlsWatch&) = delete;

 private:
  void Run();

  const TlsFolder folder_;
  const absl::Duration every_;
  const std::function<void(const absl::Status&)> changed_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_TLS_WATCH_H_
