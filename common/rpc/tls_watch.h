// Says when the files of a TLS folder stop being of use, and when they are again.
//
//   TlsWatch watch(TlsFolder("/etc/milepost/tls"), kLookAtTlsFiles, LogTlsFiles);
//
// gRPC reads the files again by itself and keeps, without a word, the last ones that it could use:
// a certificate that was replaced badly would be noticed when the old one has run out. `changed` is
// called from a thread of the watch, once for every change of what CheckTlsFolder says, and never
// again once the destructor has returned, which waits for a call in progress.
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

// What processes do with it: an error in the log, and a line when all is well again.
void LogTlsFiles(const absl::Status& status);

class TlsWatch {
 public:
  // Taken to be good at first: whoever begins with bad files does not begin.
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
